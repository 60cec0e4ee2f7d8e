"""Speed by window: ``uv run python -m tests.benchmarks.windows [NAME ...] [--backend NAME]``.

Every model of the zoo, or those named: the same tape of 1024 transitions after warm-up, solved in
windows of several widths, as a ratio to the sequential chain of the same backend in interleaved
pairs. Above 1 the window is faster. ``auto`` is the width that ``window="auto"`` chose, and
``auto_over_best`` its speed over that of the fastest width; target: at least 0.95. The rows made
replace those of the same model and backend in ``docs/benchmarks/windows.json``; the suite of
``python -m tests.benchmarks`` measures some models of its own in the same way.
"""

import argparse
import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

from pymc_deer import DeerMALA
from pymc_deer.backends import make_solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.noise import draw_tape
from pymc_deer.options import BackendName
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import RESULTS, Warmed, paired_ratio, warm_up, write
from tests.zoo import MODELS

WINDOWS = (16, 64, 256, 1024)
N = 1024
REPEATS = 5
MAX_SWEEPS = 64
"""Sweeps allowed to a window here. At two gradients a state, more would pay only where a batch is
128 times cheaper than its states."""

BUILDS = MODELS | {name: case.build for name, case in CASES.items()}


def prepare() -> Callable[[tuple[str, BackendName]], dict[str, Any]]:
    """In a process of the suite: what answers a model and a backend with their row."""
    return lambda asked: measure(*asked)


def measure(name: str, backend: BackendName) -> dict[str, object]:
    """Speed-up over the sequential chain for every width, and what auto chose."""
    model = BUILDS[name]()
    chosen = choice(model, backend)
    case = warm_up(model, backend=backend, n_draws=400)
    sequential = runner(case, backend, 1)
    speed, seconds = {1: 1.0}, np.inf
    for window in WINDOWS:
        ratio, once, _ = paired_ratio(sequential, runner(case, backend, window), REPEATS)
        speed[window], seconds = round(ratio, 3), min(seconds, once)
    return {
        "model": name,
        "backend": backend,
        "dimension": case.density.size,
        "sequential_microseconds": round(1e6 * seconds / N, 2),
        **{f"speed_{window}": value for window, value in speed.items()},
        "auto": chosen,
        "auto_over_best": round(speed[chosen] / max(speed.values()), 3),
    }


def choice(model: pm.Model, backend: BackendName) -> int:
    """The window that the sampler's own measurements lead to."""
    with model:
        step = DeerMALA(backend=backend)
    assert isinstance(step, DeerMALA)
    return step.calibration.window


def runner(case: Warmed, backend: BackendName, window: int) -> Callable[[], object]:
    """Solves the tape in windows of one width, by the rule that auto begins with."""
    normal, uniform = (np.random.default_rng([3, i]) for i in range(2))
    tape = draw_tape(normal, uniform, N, case.density.size)
    spec = SweepSpec(case.tuning.metric.kind, "secant")
    plan = WindowPlan(window, min(window, MAX_SWEEPS), tol=1e-6, capacity=N)
    solver = make_solver(backend, case.density, spec, plan)
    rng = np.random.default_rng(0)
    return lambda: solver.solve(case.z, tape, case.tuning, case.params, rng)


def main() -> None:
    """Measure what the command line names, and write the table after every model."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--backend", choices=("numba", "jax"))
    arguments = parser.parse_args()
    backends: list[BackendName] = ["numba", "jax"]
    file = RESULTS / "windows.json"
    for name in arguments.names or MODELS:
        for backend in [arguments.backend] if arguments.backend else backends:
            old = json.loads(file.read_text())["rows"] if file.exists() else []
            row = measure(name, backend)
            kept = [r for r in old if (r["model"], r["backend"]) != (name, backend)]
            write("windows", [*kept, row], kept)


if __name__ == "__main__":
    main()
