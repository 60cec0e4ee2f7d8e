"""What is kept of each sweep is what the compiled loops do, and what plain NumPy finds."""

import numpy as np
import pymc as pm
import pytest

from pymc_deer import reference, sweep_trace
from pymc_deer.backends.trajectory import Noise
from pymc_deer.calibration import Pilot
from pymc_deer.jacobian import Rule
from pymc_deer.sweep import Kernel
from pymc_deer.sweep_trace import SweepTrace, TracedSolve, trace_sweeps
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS

N = 100
TOL = 1e-6


def solve_of(case: Problem, window: int, rule: Rule) -> TracedSolve:
    spec = case.solver(BACKENDS[0], window, rule).spec
    pilot = Pilot(case.start, case.tuning, case.params)
    noise = Noise.of(case.tape(N, seed=2), case.tuning.step_size, case.density.dtype)
    return TracedSolve(case.density, spec, pilot, noise, window, TOL)


@pytest.mark.parametrize(
    ("kernel", "rule", "window"),
    [
        ("mala", "secant", 16),
        pytest.param("mala", "preconditioned", N, marks=pytest.mark.slow),
        pytest.param("mala", "exact", 16, marks=pytest.mark.slow),
        pytest.param("hmc", "secant", 16, marks=pytest.mark.slow),
    ],
)
def test_sweeps_are_those_of_the_compiled_loop(kernel: Kernel, rule: Rule, window: int) -> None:
    case = problem("eight_schools", kernel)
    tape = case.tape(N, seed=2)
    solved = case.run(case.solver(BACKENDS[0], window, rule), tape)
    states, residuals, committed = solve_of(case, window, rule).traced(np.random.default_rng(0))
    assert np.abs(states[-1] - solved.z).max() < 1e-9
    # JAX keeps its last window full with noise that is thrown away, and may need one sweep less.
    assert abs(len(residuals) - solved.n_sweeps) <= 1
    assert committed[0] == 0
    assert committed[-1] == N
    assert (np.diff(committed) >= 1).all()


def test_residuals_are_what_transitions_of_the_guess_differ_by() -> None:
    case, window = problem("eight_schools"), 16
    tape = case.tape(N, seed=2)
    states, residuals, committed = solve_of(case, window, "secant").traced(np.random.default_rng(0))
    for k, done in enumerate(committed[:-1]):
        seen = range(done, min(N, done + window))
        before = np.vstack([case.start, states[k]])
        for t in seen:
            step = reference.transition(
                case.whitened_logp_dlogp, before[t], tape.xi[t], tape.log_u[t],
                case.tuning.step_size,
            )  # fmt: skip
            expected = np.abs(step.z - states[k, t]).max()
            assert residuals[k, t] == pytest.approx(expected, abs=1e-9)
        unseen = [t for t in range(N) if t not in seen]
        assert np.isnan(residuals[k, unseen]).all()
        assert np.isnan(states[k, seen.stop :]).all()


def test_batches_and_single_states_give_one_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    solve = solve_of(problem("eight_schools"), 16, "stochastic")
    batched = solve.traced(np.random.default_rng(5))
    monkeypatch.setattr(sweep_trace, "BATCHINGS", ("mapped", "mapped"))
    mapped = solve.traced(np.random.default_rng(5))
    for one, other in zip(batched, mapped, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0, shape=3)
        pm.Bernoulli("k", 0.5)
    return model


def trace(model: pm.Model, **options: object) -> SweepTrace:
    return trace_sweeps(60, model=model, backend="jax", step_size=0.8, **options)


def test_a_trace_ends_at_the_sequential_chain(model: pm.Model) -> None:
    whole = trace(model)
    assert (whole.n_transitions, whole.window, whole.tol) == (60, 60, 1e-6)
    assert whole.states.shape == (whole.n_sweeps + 1, 60, 3)
    assert np.ptp(whole.states[0], axis=0).max() == 0
    assert whole.errors[-1].max() < 1e-4
    assert whole.errors[0].max() > 0.1
    assert 0.5 < whole.acceptance_rate < 1
    for k, n in enumerate(whole.committed):
        assert (whole.errors[k, :n] < 1e-4).all()


def test_what_steers_sweeps_leaves_the_states(model: pm.Model) -> None:
    whole = trace(model)
    for options in (
        {"window": 20},
        {"curvature": 3.0, "jacobian": "preconditioned"},
        {"jacobian": "stochastic", "probes": 2},
        {"max_sweeps": 1},
    ):
        other = trace(model, **options)
        assert np.abs(other.exact - whole.exact).max() < 1e-9
        assert other.errors[-1].max() < 1e-4
        same = np.array_equal(other.committed, whole.committed)
        assert same == ("max_sweeps" in options)


def test_seeds_and_kernels_make_other_chains(model: pm.Model) -> None:
    whole = trace(model)
    assert np.array_equal(trace(model).states, whole.states, equal_nan=True)
    for other in (trace(model, random_seed=1), trace(model, kernel="hmc", n_leapfrog=2)):
        assert np.abs(other.exact - whole.exact).max() > 0.1
        assert other.errors[-1].max() < 1e-4


def test_windows_are_no_wider_than_the_chain(model: pm.Model) -> None:
    assert trace(model, window=1000).window == 60
