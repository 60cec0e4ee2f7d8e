"""Breaking the code breaks the tests: each invariant's check, run on a mutant that violates it."""

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_deer import jacobian, kernel, leapfrog, sweep
from tests.equivalence.problems import KERNELS, Problem, problem
from tests.support import BACKENDS

# The mutants live in the graph, which all backends share; the fastest to compile will do.
BACKEND = BACKENDS[-1]
WINDOW = 64


@pytest.fixture
def case(single_threaded) -> Problem:
    return problem("eight_schools")


@pytest.fixture
def hmc(single_threaded) -> Problem:
    return problem("eight_schools", "hmc")


def check_states(case: Problem, rule: jacobian.Rule = "preconditioned") -> None:
    """The windowed states are those of the oracle."""
    tape = case.tape(256, seed=4)
    solved = case.run(case.new_solver(BACKEND, WINDOW, rule), tape)
    states, _ = case.oracle(tape)
    np.testing.assert_array_less(np.abs(solved.z - states), 1e-4)


MOST_SWEEPS = {"mala": 100, "hmc": 128}
"""For 256 transitions."""


def check_sweeps(case: Problem, rule: jacobian.Rule) -> None:
    """Sweeps commit several steps each: the linearisation is of use."""
    tape = case.tape(256, seed=4)
    solved = case.run(case.new_solver(BACKEND, WINDOW, rule), tape)
    assert solved.n_sweeps <= MOST_SWEEPS[case.kernel]


def check_oracle_ratios(case: Problem) -> None:
    """The sequential chain's Metropolis ratios are those of the oracle."""
    tape = case.tape(64, seed=5)
    solved = case.run(case.new_solver(BACKEND, 1), tape)
    _, ratios = case.oracle(tape)
    np.testing.assert_allclose(solved.log_alpha, ratios, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_the_checks_pass_on_the_code_itself(single_threaded, name):
    case = problem("eight_schools", name)
    check_states(case)
    check_oracle_ratios(case)
    check_sweeps(case, "preconditioned")
    check_sweeps(case, "secant")
    check_sweeps(case, "stochastic")


@pytest.mark.parametrize("name", KERNELS)
def test_a_wrong_acceptance_term_is_caught(single_threaded, monkeypatch, name):
    def without_kinetic_energy(density, start, path, tangent):
        end, moved = leapfrog.leapfrog(density, start, path, tangent)
        return end._replace(momentum=start.momentum), moved

    case = problem("eight_schools", name)
    monkeypatch.setattr(kernel, "leapfrog", without_kinetic_energy)
    with pytest.raises(AssertionError):
        check_states(case)
    with pytest.raises(AssertionError):
        check_oracle_ratios(case)


def test_a_path_without_its_last_half_kick_is_caught(hmc, monkeypatch):
    original = leapfrog._ended

    def mutant(kicks, momentum, dlogp):
        return original(kicks, original(kicks, momentum, dlogp), dlogp)

    monkeypatch.setattr(leapfrog, "_ended", mutant)
    with pytest.raises(AssertionError):
        check_states(hmc)
    with pytest.raises(AssertionError):
        check_oracle_ratios(hmc)


def test_a_logp_of_the_state_before_the_last_is_caught(hmc, monkeypatch):
    original = leapfrog._step

    def mutant(density, tangent, step_size, kicks, moves, z, *others):
        moved = original(density, tangent, step_size, kicks, moves, z, *others)
        _, *parts = density.gradient(z)
        return [*moved[: -len(parts)], *parts]

    monkeypatch.setattr(leapfrog, "_step", mutant)
    with pytest.raises(AssertionError):
        check_oracle_ratios(hmc)


def test_paths_that_go_on_past_their_end_are_caught(hmc, monkeypatch):
    """In a batch of paths of different lengths, the shorter ones wait for the longest."""

    monkeypatch.setattr(leapfrog, "_held", lambda moves, old, new: new)
    with pytest.raises(AssertionError):
        check_states(hmc)
    # One state at a time has a path of its own.
    check_oracle_ratios(hmc)


def test_a_wrong_jacobian_costs_sweeps_and_never_states(case, monkeypatch):
    """A useless linearisation is caught by the sweeps it takes; the states stay exact."""
    monkeypatch.setattr(
        sweep, "preconditioned_jacobian", lambda path, *_: pt.zeros_like(path.step_size)
    )
    check_states(case)
    with pytest.raises(AssertionError):
        check_sweeps(case, "preconditioned")


@pytest.mark.parametrize("rule", ["preconditioned", "secant"])
def test_the_jacobian_of_another_number_of_steps_is_caught(hmc, monkeypatch, rule):
    name = f"{rule}_jacobian"
    original = getattr(sweep, name)

    def mutant(*arguments):
        *seen, path, curvature = arguments
        return original(*seen, path._replace(n_leapfrog=None), curvature)

    monkeypatch.setattr(sweep, name, mutant)
    check_states(hmc, rule)
    with pytest.raises(AssertionError):
        check_sweeps(hmc, rule)


def test_a_tangent_that_stays_where_it_is_is_caught(hmc, monkeypatch):
    original = leapfrog._step_tangent

    def mutant(hvp, z, directions, *others):
        _, *moved = original(hvp, z, directions, *others)
        return [directions, *moved]

    monkeypatch.setattr(leapfrog, "_step_tangent", mutant)
    check_states(hmc, "stochastic")
    with pytest.raises(AssertionError):
        check_sweeps(hmc, "stochastic")


def test_a_secant_that_sees_no_curvature_is_caught(case, monkeypatch):
    monkeypatch.setattr(sweep, "secant_jacobian", lambda previous, *_: pt.ones_like(previous))
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

    module = {"jax": "jax_programs", "numba": "numba"}[BACKEND]
    monkeypatch.setattr(f"pymc_deer.backends.{module}.build_sweep", mutant)
    with pytest.raises(AssertionError):
        check_states(case)
