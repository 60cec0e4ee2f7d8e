"""Breaking the code breaks the tests: each invariant's check, run on a mutant that violates it."""

import numpy as np
import pytensor.tensor as pt
import pytest

from pymc_deer import jacobian, kernel, leapfrog, sweep
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.noise import Tape
from tests.equivalence.problems import KERNELS, Problem, problem
from tests.support import BACKENDS, quick_xla

# The mutants live in the graph, which all backends share; the fastest to compile will do.
BACKEND = BACKENDS[-1]
WINDOW = 64


@pytest.fixture
def case(single_threaded) -> Problem:
    return problem("eight_schools")


@pytest.fixture
def hmc(single_threaded) -> Problem:
    return problem("eight_schools", "hmc")


def tape_of(case: Problem) -> Tape:
    return case.tape(256, seed=4)


def run_anew(case: Problem, window: int, rule: jacobian.Rule = "preconditioned") -> Trajectory:
    """By programs of the code as it is now."""
    with quick_xla():
        return case.run(case.new_solver(BACKEND, window, rule), tape_of(case))


def check_states(case: Problem, solved: Trajectory) -> None:
    """The windowed states are those of the oracle."""
    states, _ = case.oracle(tape_of(case))
    np.testing.assert_array_less(np.abs(solved.z - states), 1e-4)


MOST_SWEEPS = {"mala": 100, "hmc": 128}
"""For 256 transitions."""


def check_sweeps(case: Problem, solved: Trajectory) -> None:
    """Sweeps commit several steps each: the linearisation is of use."""
    assert solved.n_sweeps <= MOST_SWEEPS[case.kernel]


def check_oracle_ratios(case: Problem, solved: Trajectory) -> None:
    """The sequential chain's Metropolis ratios are those of the oracle."""
    _, ratios = case.oracle(tape_of(case))
    np.testing.assert_allclose(solved.log_alpha, ratios, atol=1e-8)


@pytest.mark.parametrize("name", KERNELS)
def test_the_checks_pass_on_the_code_itself(single_threaded, name):
    case = problem("eight_schools", name)
    for rule in ("preconditioned", "secant", "stochastic"):
        solved = case.run(case.solver(BACKEND, WINDOW, rule), tape_of(case))
        check_states(case, solved)
        check_sweeps(case, solved)
    check_oracle_ratios(case, case.run(case.solver(BACKEND, 1), tape_of(case)))


def test_a_wrong_acceptance_term_is_caught(case, monkeypatch):
    def without_kinetic_energy(density, start, path, tangent):
        end, moved = leapfrog.leapfrog(density, start, path, tangent)
        return end._replace(momentum=start.momentum), moved

    monkeypatch.setattr(kernel, "leapfrog", without_kinetic_energy)
    with pytest.raises(AssertionError):
        check_states(case, run_anew(case, WINDOW))
    with pytest.raises(AssertionError):
        check_oracle_ratios(case, run_anew(case, 1))


def test_a_path_without_its_last_half_kick_is_caught(hmc, monkeypatch):
    original = leapfrog._ended

    def mutant(kicks, momentum, dlogp):
        return original(kicks, original(kicks, momentum, dlogp), dlogp)

    monkeypatch.setattr(leapfrog, "_ended", mutant)
    with pytest.raises(AssertionError):
        check_states(hmc, run_anew(hmc, WINDOW))
    with pytest.raises(AssertionError):
        check_oracle_ratios(hmc, run_anew(hmc, 1))


def test_a_logp_of_the_state_before_the_last_is_caught(hmc, monkeypatch):
    original = leapfrog._step

    def mutant(density, tangent, step_size, kicks, moves, z, *others):
        moved = original(density, tangent, step_size, kicks, moves, z, *others)
        _, *parts = density.gradient(z)
        return [*moved[: -len(parts)], *parts]

    monkeypatch.setattr(leapfrog, "_step", mutant)
    with pytest.raises(AssertionError):
        check_oracle_ratios(hmc, run_anew(hmc, 1))


def test_paths_that_go_on_past_their_end_are_caught(hmc, monkeypatch):
    """In a batch of paths of different lengths, the shorter ones wait for the longest."""

    monkeypatch.setattr(leapfrog, "_held", lambda moves, old, new: new)
    with pytest.raises(AssertionError):
        check_states(hmc, run_anew(hmc, WINDOW))
    # One state at a time has a path of its own.
    check_oracle_ratios(hmc, run_anew(hmc, 1))


def test_a_wrong_jacobian_costs_sweeps_and_never_states(case, monkeypatch):
    """A useless linearisation is caught by the sweeps it takes; the states stay exact."""
    monkeypatch.setattr(
        sweep, "preconditioned_jacobian", lambda path, *_: pt.zeros_like(path.step_size)
    )
    solved = run_anew(case, WINDOW)
    check_states(case, solved)
    with pytest.raises(AssertionError):
        check_sweeps(case, solved)


@pytest.mark.parametrize("rule", ["preconditioned", "secant"])
def test_the_jacobian_of_another_number_of_steps_is_caught(hmc, monkeypatch, rule):
    name = f"{rule}_jacobian"
    original = getattr(sweep, name)

    def mutant(*arguments):
        *seen, path, curvature = arguments
        return original(*seen, path._replace(n_leapfrog=None), curvature)

    monkeypatch.setattr(sweep, name, mutant)
    solved = run_anew(hmc, WINDOW, rule)
    check_states(hmc, solved)
    with pytest.raises(AssertionError):
        check_sweeps(hmc, solved)


def test_a_tangent_that_stays_where_it_is_is_caught(hmc, monkeypatch):
    original = leapfrog._step_tangent

    def mutant(hvp, z, directions, *others):
        _, *moved = original(hvp, z, directions, *others)
        return [directions, *moved]

    monkeypatch.setattr(leapfrog, "_step_tangent", mutant)
    solved = run_anew(hmc, WINDOW, "stochastic")
    check_states(hmc, solved)
    with pytest.raises(AssertionError):
        check_sweeps(hmc, solved)


def test_a_secant_that_sees_no_curvature_is_caught(case, monkeypatch):
    monkeypatch.setattr(sweep, "secant_jacobian", lambda previous, *_: pt.ones_like(previous))
    with pytest.raises(AssertionError):
        check_sweeps(case, run_anew(case, WINDOW, "secant"))


def test_a_wrong_sign_of_the_hessian_is_caught(case, monkeypatch):
    def mutant(hvp, directions):
        return leapfrog.Tangent(lambda z, v: -hvp(z, v), directions)

    monkeypatch.setattr(sweep, "Tangent", mutant)
    with pytest.raises(AssertionError):
        check_sweeps(case, run_anew(case, WINDOW, "stochastic"))


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
        check_states(case, run_anew(case, WINDOW))
