"""Breaking the code breaks the tests: each invariant's check, run on a mutant that violates it."""

from collections.abc import Callable

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_deer import jacobian, kernel, leapfrog, reference, sweep
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS

# The mutants live in the graph, which all backends share; the fastest to compile will do.
BACKEND = BACKENDS[-1]
WINDOW = 64


@pytest.fixture
def case(single_threaded) -> Problem:
    return problem("eight_schools")


def check_states(case: Problem) -> None:
    """The windowed states are those of the oracle."""
    tape = case.tape(256, seed=4)
    solved = case.run(case.solver(BACKEND, WINDOW), tape)
    states, _ = reference.sequential(
        case.whitened_logp_dlogp, case.start, tape.xi, tape.log_u, case.tuning.step_size
    )
    np.testing.assert_array_less(np.abs(solved.z - states), 1e-4)


def check_sweeps(case: Problem, rule: jacobian.Rule) -> None:
    """Sweeps commit several steps each: the linearisation is of use."""
    tape = case.tape(256, seed=4)
    solved = case.run(case.solver(BACKEND, WINDOW, rule), tape)
    assert solved.n_sweeps <= 256 / 2


def check_oracle_ratios(case: Problem) -> None:
    """The sequential chain's Metropolis ratios are those of the oracle."""
    tape = case.tape(64, seed=5)
    solved = case.run(case.solver(BACKEND, 1), tape)
    _, ratios = reference.sequential(
        case.whitened_logp_dlogp, case.start, tape.xi, tape.log_u, case.tuning.step_size
    )
    np.testing.assert_allclose(solved.log_alpha, ratios, atol=1e-8)


def test_the_checks_pass_on_the_code_itself(case):
    check_states(case)
    check_oracle_ratios(case)
    check_sweeps(case, "preconditioned")
    check_sweeps(case, "secant")
    check_sweeps(case, "stochastic")


def _without_kinetic_energy(original: Callable[..., kernel.Transition]):
    def mutant(density, state, xi, log_u, path, tangent=None):
        moved = original(density, state, xi, log_u, path, tangent)
        step_size = pt.expand_dims(path.step_size, -1)
        proposal = state.z + step_size * (xi + step_size / 2 * state.dlogp)
        logp, dlogp = density(proposal)
        log_alpha = logp - state.logp
        accepted = log_alpha > log_u
        wide = pt.expand_dims(accepted, -1)
        new = kernel.State(
            pt.switch(wide, proposal, state.z),
            pt.switch(accepted, logp, state.logp),
            pt.switch(wide, dlogp, state.dlogp),
        )
        return moved._replace(state=new, log_alpha=log_alpha, accepted=accepted)

    return mutant


def test_a_wrong_acceptance_term_is_caught(case, monkeypatch):
    monkeypatch.setattr(sweep, "transition", _without_kinetic_energy(kernel.transition))
    with pytest.raises(AssertionError):
        check_states(case)
    with pytest.raises(AssertionError):
        check_oracle_ratios(case)


def test_a_wrong_jacobian_costs_sweeps_and_never_states(case, monkeypatch):
    """A useless linearisation is caught by the sweeps it takes; the states stay exact."""
    monkeypatch.setattr(
        sweep, "preconditioned_jacobian", lambda path, *_: pt.zeros_like(path.step_size)
    )
    check_states(case)
    with pytest.raises(AssertionError):
        check_sweeps(case, "preconditioned")


def test_a_secant_that_sees_no_curvature_is_caught(case, monkeypatch):
    monkeypatch.setattr(sweep, "secant_curvature", lambda previous, *_: pt.zeros_like(previous))
    with pytest.raises(AssertionError):
        check_sweeps(case, "secant")


def test_a_wrong_sign_of_the_hessian_is_caught(case, monkeypatch):
    def mutant(hvp, directions):
        return leapfrog.Tangent(lambda z, v: -hvp(z, v), directions)

    monkeypatch.setattr(sweep, "Tangent", mutant)
    with pytest.raises(AssertionError):
        check_sweeps(case, "stochastic")


def test_committing_unconverged_states_is_caught(case, monkeypatch):
    """The commit rule is what makes states exact: a mutant that trusts any guess is wrong."""
    original = sweep.build_sweep

    def mutant(*args, **kwargs):
        program = original(*args, **kwargs)
        *outputs, committed = program.outputs
        everything = pt.as_tensor(program.inputs[0].shape[0]).astype(committed.dtype)
        return sweep.Program(program.inputs, [*outputs, everything])

    monkeypatch.setattr(f"pymc_deer.backends.{BACKEND}.build_sweep", mutant)
    with pytest.raises(AssertionError):
        check_states(case)
