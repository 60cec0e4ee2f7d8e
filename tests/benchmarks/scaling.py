"""Transitions a second against window, dimension, observations and chains, beside the bound.

A logistic regression with N(0, 1) priors and N observations of D independent features, whitened by
its curvature at the mode, so that no warm-up is needed and every size is as easy as the others. A
window's time is compared with that of the sequential chain on the same backend, in interleaved
pairs. The bound is the time of a sweep's gradients, two for each state of the window, at the
device's measured rates (``rates.py``).
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from scipy.special import expit

from pymc_deer.backends import make_solver, runs_on_gpu
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.trajectory import REPORTED
from pymc_deer.chains.plan import window_plan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import Density, build_density
from pymc_deer.metric import Metric
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel, SweepSpec
from tests.benchmarks.measure import short
from tests.benchmarks.rates import Rates, gradient_work, measure_rates
from tests.benchmarks.worker import Task, Worker

Row = dict[str, Any]

DENSE_UP_TO = 100
"""Dimensions up to which the metric is dense, as it is by default."""

RULE, CURVATURE = "secant", 1.5
_NEWTON_STEPS, _DIAGONAL_STEPS = 8, 30
TOLERANCE = {"float64": 1e-6, "float32": 1e-4}


@dataclass(frozen=True)
class Point:
    """Sizes of one measurement; `axis` is the one that its neighbours differ in."""

    axis: str
    backend: BackendName = "jax"
    n: int = 1000
    dimension: int = 25
    chains: int = 1
    windows: tuple[int, ...] = (256,)


@dataclass(frozen=True)
class Effort:
    """How long each measurement may take.

    Attributes
    ----------
    seconds
        Of one timed run, about.
    repeats
        Interleaved runs of each way, at most.
    matrix, copied
        Sizes at which the device's rates are measured.
    patience
        Seconds of a point after which its ways are not run once more.
    limit
        Seconds after which a point is given up.
    """

    seconds: float
    repeats: int
    matrix: int
    copied: int
    patience: float = 60.0
    limit: float = 150.0


CPU = (
    Point("window", windows=(4, 16, 64, 256, 1024, 4096)),
    Point("window", backend="numba", windows=(16, 64, 256, 1024)),
    *(Point("dimension", dimension=d) for d in (10, 100, 1000, 10_000)),
    *(Point("observations", n=n) for n in (100, 10_000, 100_000)),
    *(Point("chains", chains=c) for c in (1, 4, 16, 64)),
    Point("window", windows=(16_384, 65_536)),
    Point("observations", n=1_000_000),
)
CPU_QUICK = (Point("window", windows=(16, 64)), Point("observations", n=100, windows=(64,)))
GPU = (
    Point("window", windows=(8192, 65_536)),
    Point("observations", n=10_000, windows=(16_384,)),
    Point("window", windows=(16, 256, 1024)),
    Point("observations", n=10_000, windows=(1024,)),
    Point("window", chains=4, windows=(1024, 8192)),
    *(Point("observations", n=n, windows=(1024,)) for n in (100, 100_000, 1_000_000)),
    *(Point("dimension", dimension=d, windows=(1024,)) for d in (10, 100, 1000, 10_000)),
    *(Point("chains", chains=c, windows=(1024,)) for c in (16, 64)),
)
GPU_QUICK = CPU_QUICK

CPU_EFFORT = Effort(0.5, 3, 2048, 2**25, limit=900.0)
GPU_EFFORT = Effort(0.3, 3, 8192, 2**28)
QUICK_EFFORT = Effort(0.1, 1, 512, 2**22)


class Problem:
    """A logistic regression whose posterior is whitened without sampling."""

    def __init__(self, n: int, dimension: int) -> None:
        rng = np.random.default_rng(6)
        features = rng.normal(size=(n, dimension)) / np.sqrt(dimension)
        y = rng.binomial(1, expit(features @ rng.normal(size=dimension)))
        self.n, self.dimension = n, dimension
        self.metric = _whitening(features, y)
        with pm.Model() as model:
            beta = pm.Normal("beta", 0.0, 1.0, shape=dimension)
            logits = pt.dot(features.astype(pytensor.config.floatX), beta)
            pm.Bernoulli("y", logit_p=logits, observed=y)
        self.density: Density = build_density(model)
        self.params = self.density.param_values(model.initial_point())

    @property
    def tuning(self) -> Tuning:
        """A step size that accepts about three quarters of the proposals in any dimension."""
        step_size = 1.2 * self.dimension ** (-1 / 6)
        return Tuning(step_size, CURVATURE, self.metric, standardized=True)

    def solver(self, backend: BackendName, window: int, kernel: Kernel = "mala") -> Solver:
        """With calls as long as those of a run."""
        noise = "device" if runs_on_gpu(backend) else "host"
        spec = SweepSpec(self.metric.kind, RULE, kernel=kernel, noise=noise)
        plan = window_plan(window, None, TOLERANCE[self.density.dtype], self.density)
        return make_solver(backend, self.density, spec, plan)

    def runs(
        self, solver: Solver, n: int, chains: int, tuning: Tuning | None = None
    ) -> list[TapedRequest]:
        """Noise and starts of n transitions, tuned as above where nothing else is said.

        What is asked for is what draws are reported with.
        """
        tuning = tuning or self.tuning
        found = []
        for seed in range(chains):
            rng = np.random.default_rng([7, seed])
            tape = Streams.spawn(rng).tape(n, self.dimension, tuning, solver.draw_momenta)
            start = rng.normal(size=self.dimension)
            found.append(TapedRequest(start, tape, tuning, rng, asked=REPORTED))
        return found


def prepare(effort: Mapping[str, Any]) -> Callable[[Mapping[str, Any]], Row]:
    """In a process of its own: what answers a point, as a dict, with its rows."""
    asked = Effort(**effort)
    rates: list[Rates] = []

    def answer(point: Mapping[str, Any]) -> Row:
        if not rates:
            dtype = pytensor.config.floatX
            rates.append(measure_rates(dtype, asked.matrix, asked.copied))
        device = {"device": jax.devices()[0].device_kind, "precision": pytensor.config.floatX}
        return {"rows": [row | device for row in measure(Point(**point), asked, rates[0])]}

    return answer


def measure(point: Point, effort: Effort, rates: Rates) -> Iterator[Row]:
    """A row for every window of a point, the sequential chain's first."""
    problem = Problem(point.n, point.dimension)
    single = _timed(problem, point, 1, effort.seconds)
    ways = {1: single} | {w: _timed(problem, point, w, effort.seconds) for w in point.windows}
    seconds: dict[int, list[float]] = {window: [] for window in ways}
    sweeps: dict[int, float] = {}
    end = time.perf_counter() + effort.patience
    for _ in range(effort.repeats):
        for window, way in ways.items():
            taken, sweeps[window] = way()
            seconds[window].append(taken)
        if time.perf_counter() > end:
            break
    for window, taken in seconds.items():
        of_single = np.array(seconds[1])
        row = {**asdict(point), "window": window}
        del row["windows"]
        states = point.chains * (2 * window if window > 1 else 1)
        per_1000 = 1000.0 if window == 1 else sweeps[window]
        itemsize = np.dtype(problem.density.dtype).itemsize
        work = gradient_work(point.n, point.dimension, states, itemsize)
        # The time of a transition of all chains, from that of a sweep.
        bound = rates.seconds(*work) * per_1000 / 1000
        each = float(np.median(taken))
        yield {
            **row,
            "transitions_per_s": short(point.chains / each),
            "speed_up": short(float(np.median(of_single / np.array(taken)))),
            "sweeps_per_1000": short(0.0 if window == 1 else per_1000),
            "us_per_state": short(1e9 * each / (per_1000 * states)),
            "bound_transitions_per_s": short(point.chains / bound),
            "share_of_bound": short(bound / each),
            "matrix_gflops": short(rates.flops / 1e9),
            "bandwidth_gb_s": short(rates.bandwidth(work[-1]) / 1e9),
        }


def rows(
    points: Sequence[Point],
    effort: Effort,
    environment: Mapping[str, str],
    cores: int,
    end: float = float("inf"),
) -> Iterator[Row]:
    """The rows of all points, in a process that is begun anew when one takes too long."""
    task = Task(__name__, {"effort": asdict(effort)}, dict(environment), cores)
    worker = None
    try:
        for point in points:
            if time.perf_counter() > end:
                return
            if worker is None or not worker.is_alive:
                worker = Worker(task)
                worker.wait()
            answer = worker.ask(asdict(point), effort.limit)
            if answer["status"] == "ok":
                yield from answer["rows"]
            else:
                yield {**asdict(point), "window": None, "status": answer["status"]}
    finally:
        if worker is not None:
            worker.end()


def _timed(
    problem: Problem, point: Point, window: int, seconds: float
) -> Callable[[], tuple[float, float]]:
    """What times a transition of all chains and counts its sweeps, a thousand of them.

    It solves as many windows as take the time asked for, found by a first one.
    """
    solver = problem.solver(point.backend, window)
    n = solver.plan.capacity

    def run(runs: Sequence[TapedRequest]) -> tuple[float, float]:
        begun = time.perf_counter()
        found = solver.run_together(runs, problem.params, n)
        taken = time.perf_counter() - begun
        total = len(runs[0].tape)
        n_sweeps = max(one.n_sweeps for one in found)
        n_swept = total - max(one.n_fallback for one in found)
        return taken / total, 1000 * n_sweeps / max(n_swept, 1)

    one = problem.runs(solver, n, point.chains)
    begun = time.perf_counter()
    each, _ = run(one)
    if time.perf_counter() - begun < 10 * seconds:
        # The first was slowed down by compilation.
        each, _ = run(one)
    calls = int(np.clip(seconds / (each * n), 1, 1000))
    runs = problem.runs(solver, calls * n, point.chains)
    return lambda: run(runs)


def _whitening(features: np.ndarray, y: np.ndarray) -> Metric:
    """Centre at the mode, scales from the curvature there."""
    beta, size = np.zeros(features.shape[1]), features.shape[1]
    if size <= DENSE_UP_TO:
        for _ in range(_NEWTON_STEPS):
            gradient, weights = _derivatives(features, y, beta)
            beta += np.linalg.solve(_precision(features, weights), gradient)
        _, weights = _derivatives(features, y, beta)
        return Metric(beta, np.linalg.cholesky(np.linalg.inv(_precision(features, weights))))
    for _ in range(_DIAGONAL_STEPS):
        gradient, weights = _derivatives(features, y, beta)
        # A diagonal step overshoots where features are correlated by chance.
        beta += 0.5 * gradient / (1 + weights @ features**2)
    _, weights = _derivatives(features, y, beta)
    return Metric(beta, 1 / np.sqrt(1 + weights @ features**2))


def _derivatives(
    features: np.ndarray, y: np.ndarray, beta: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradient of the log-density, and the weights of the observations in its curvature."""
    p = expit(features @ beta)
    return features.T @ (y - p) - beta, p * (1 - p)


def _precision(features: np.ndarray, weights: np.ndarray) -> np.ndarray:
    return np.eye(features.shape[1]) + (features.T * weights) @ features
