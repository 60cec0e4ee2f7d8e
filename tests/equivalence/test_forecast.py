"""Windows whose first guess is the chain on the standard normal target have the same states."""

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.forecast import LinearTransitions, known_ahead, on_standard_normal
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.jacobian import Rule
from pymc_deer.metric import identity_metric
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel, SweepSpec
from tests.equivalence.problems import KERNELS, Problem, problem
from tests.support import BACKENDS

N, WINDOW = 256, 64


def standardized(case: Problem) -> Problem:
    return replace(case, tuning=replace(case.tuning, standardized=True))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kernel", "rule"), [("mala", "secant"), ("hmc", "preconditioned")])
def test_states(single_threaded: None, backend: BackendName, kernel: Kernel, rule: Rule) -> None:
    case = problem("eight_schools", kernel)
    tape, solver = case.tape(N), case.solver(backend, WINDOW, rule)
    exact = case.run(case.solver(backend, 1), tape)
    found = standardized(case).run(solver, tape)
    assert found.n_fallback == 0
    assert np.abs(found.z - exact.z).max() <= 1e-4
    assert (found.z != case.run(solver, tape).z).any(), "another way to the same states"


class StandardNormal:
    """Three standard normals, whose identity metric is right."""

    def __init__(self, backend: BackendName, kernel: Kernel) -> None:
        with pm.Model() as model:
            pm.Normal("x", shape=3)
        self.density = build_density(model)
        self.size = self.density.size
        spec = SweepSpec("diag", "preconditioned", kernel=kernel)
        plan = WindowPlan(WINDOW, WINDOW, 1e-6, capacity=N)
        self.solver: Solver = make_solver(backend, self.density, spec, plan)
        self.lengths = (1, 1) if kernel == "mala" else (1, 5)

    def run(self, seed: int = 3, **changes: Any) -> Trajectory:
        metric = identity_metric("diag", self.size)
        tuning = Tuning(0.4, 1.0, metric, 0.2, self.lengths, standardized=True)
        tuning = replace(tuning, **changes)
        tape = Streams.spawn(np.random.default_rng(seed)).tape(N, self.size, tuning)
        start = np.full(self.size, 0.5)
        request = TapedRequest(start, tape, tuning, np.random.default_rng(0))
        [found] = self.solver.run_together([request], (), N)
        return found


@cache
def standard_normal(backend: BackendName, kernel: Kernel) -> StandardNormal:
    return StandardNormal(backend, kernel)


# To Numba, forecasts of paths are arrays like any.
@pytest.mark.parametrize(
    ("kernel", "backend"),
    [case for case in product(KERNELS, BACKENDS) if case != ("hmc", "numba")],
)
def test_what_the_metric_believes_takes_one_sweep_a_window(
    single_threaded: None, backend: BackendName, kernel: Kernel
) -> None:
    """First windows and those that slide in: each guess is right from the start."""
    case = standard_normal(backend, kernel)
    found = case.run()
    assert found.n_sweeps == N // WINDOW
    assert (found.log_alpha < 0).sum() > 0
    assert case.run(standardized=False).n_sweeps > 2 * found.n_sweeps


@pytest.fixture
def spoiled(
    single_threaded: None, monkeypatch: pytest.MonkeyPatch
) -> Callable[[BackendName, float], StandardNormal]:
    """The case with forecasts of other transitions, and with so many times the bends."""

    def jax(factor: float) -> StandardNormal:
        from pymc_deer.backends import jax_loops

        def bent(*paths: Any) -> LinearTransitions:
            right = on_standard_normal(*paths)
            return right._replace(bend=factor * right.bend)

        right = jax_loops.forecast
        monkeypatch.setattr(jax_loops, "forecast", lambda *noise: right(*noise)[::-1])
        monkeypatch.setattr(jax_loops, "on_standard_normal", bent)
        # Compiled loops have the right ones.
        return StandardNormal("jax", "mala")

    def numba(factor: float) -> StandardNormal:
        from pymc_deer.backends import numba

        def mutant(*job: Any) -> tuple[np.ndarray, np.ndarray]:
            ahead, bend = known_ahead(*job)
            return ahead[::-1].copy(), factor * bend

        monkeypatch.setattr(numba, "known_ahead", mutant)
        return standard_normal("numba", "mala")

    return lambda backend, factor: {"jax": jax, "numba": numba}[backend](factor)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_forecast_of_other_transitions_is_caught(
    spoiled: Callable[[BackendName, float], StandardNormal], backend: BackendName
) -> None:
    """It takes more sweeps, to the same states."""
    expected = standard_normal(backend, "mala").run()
    found = spoiled(backend, 1.0).run()
    assert found.n_sweeps >= 2 * expected.n_sweeps
    np.testing.assert_allclose(found.z, expected.z, atol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("factor", [0.0, -1.0], ids=["that stay", "of the other sign"])
def test_decisions_within_a_scan_are_caught(
    spoiled: Callable[[BackendName, float], StandardNormal], backend: BackendName, factor: float
) -> None:
    """Where the metric is right, the second sweep of a window is the last one: with bends."""
    expected = standard_normal(backend, "mala").run()
    found = spoiled(backend, factor).run()
    assert found.n_sweeps > 2 * expected.n_sweeps
    np.testing.assert_allclose(found.z, expected.z, atol=1e-5)
