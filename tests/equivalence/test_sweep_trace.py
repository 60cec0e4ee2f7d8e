"""What is kept of each sweep is what the compiled loops do, and what plain NumPy finds."""

from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_deer import reference
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.jacobian import Rule
from pymc_deer.ops.batch import Batching
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel
from pymc_deer.sweep_trace import SweepTrace, TracedSolve, trace_sweeps
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS

N = 100


def traced(case: Problem, backend: BackendName, window: int, rule: Rule) -> Any:
    """States, residuals and numbers of committed steps."""
    request = TapedRequest(
        case.start, case.tape(N + window, seed=2), case.tuning, np.random.default_rng(5)
    )
    return TracedSolve(case.solver(backend, window, rule), request, case.params).traced(N)


SLOW = pytest.mark.slow
CASES = [
    pytest.param("mala", "secant", 16, "jax"),
    pytest.param("mala", "preconditioned", N, "jax", marks=SLOW),
    pytest.param("mala", "exact", 16, "jax", marks=SLOW),
    pytest.param("hmc", "secant", 16, "jax", marks=SLOW),
    pytest.param("mala", "secant", 16, "numba", marks=SLOW),
]


@pytest.mark.parametrize(
    ("kernel", "rule", "window", "backend"), [c for c in CASES if c.values[-1] in BACKENDS]
)
def test_sweeps_are_those_of_the_compiled_loop(
    single_threaded: None, kernel: Kernel, rule: Rule, window: int, backend: BackendName
) -> None:
    case = problem("eight_schools", kernel)
    solved = case.run(case.solver(backend, window, rule), case.tape(N, seed=2))
    states, residuals, committed = traced(case, backend, window, rule)
    assert np.abs(states[-1] - solved.z).max() < 1e-9
    # What lies behind the end in the last windows is other noise.
    assert abs(len(residuals) - solved.n_sweeps) <= 1
    assert committed[0] == 0
    assert committed[-1] == N
    assert (np.diff(committed) >= 1).all()


def test_residuals_are_what_transitions_of_the_guess_differ_by() -> None:
    case, window = problem("eight_schools"), 16
    tape = case.tape(N, seed=2)
    states, residuals, committed = traced(case, "jax", window, "secant")
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
    arguments = problem("eight_schools"), "jax", 16, "secant"
    batched = traced(*arguments)
    compile_sweep, asked = JaxSolver.sweep_alone, []

    def refused(self: JaxSolver, batching: Batching) -> Any:
        asked.append(batching)
        if batching == "vectorized":
            raise NotImplementedError
        return compile_sweep(self, batching)

    monkeypatch.setattr(JaxSolver, "sweep_alone", refused)
    mapped = traced(*arguments)
    assert asked == ["vectorized", "mapped"]
    for one, other in zip(batched, mapped, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-9)


@pytest.fixture(scope="module")
def model() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0, shape=3)
        pm.Bernoulli("k", 0.5)
    return model


def trace(model: pm.Model, **options: object) -> SweepTrace:
    return trace_sweeps(60, model=model, step_size=0.8, **options)


@pytest.fixture(scope="module")
def whole(model: pm.Model) -> SweepTrace:
    """In one window, which is no wider than the chain."""
    return trace(model, window=1000)


def test_a_trace_ends_at_the_sequential_chain(whole: SweepTrace) -> None:
    assert (whole.n_transitions, whole.window, whole.tol) == (60, 60, 1e-6)
    assert whole.states.shape == (whole.n_sweeps + 1, 60, 3)
    assert np.ptp(whole.states[0], axis=0).max() > 1, "the guess is a chain"
    assert whole.errors[-1].max() < 1e-4
    assert whole.errors[0].max() > 0.01
    assert 0.5 < whole.acceptance_rate < 1
    for k, n in enumerate(whole.committed):
        assert (whole.errors[k, :n] < 1e-4).all()


@pytest.mark.parametrize(
    "options",
    [
        {"window": 20, "curvature": 3.0},
        {"max_sweeps": 1},
        pytest.param({"jacobian": "stochastic", "probes": 2}, marks=pytest.mark.slow),
    ],
    ids=lambda options: next(iter(options)),
)
def test_what_steers_sweeps_leaves_the_states(
    model: pm.Model, whole: SweepTrace, options: dict[str, object]
) -> None:
    other = trace(model, **options)
    assert np.abs(other.exact - whole.exact).max() < 1e-9
    assert other.errors[-1].max() < 1e-4
    same = np.array_equal(other.committed, whole.committed)
    assert same == ("max_sweeps" in options)


def test_seeds_and_kernels_make_other_chains(model: pm.Model, whole: SweepTrace) -> None:
    other = trace(model, random_seed=1, kernel="hmc", n_leapfrog=2)
    assert np.abs(other.exact - whole.exact).max() > 0.1
    assert other.errors[-1].max() < 1e-4
    assert other.acceptance_rate != whole.acceptance_rate
