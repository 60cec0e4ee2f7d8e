"""Speed by window: ``uv run python -m tests.benchmarks.windows [--backend numba|jax]``.

The same tape of 4096 transitions after warm-up, solved in windows of several widths, as a ratio to
the sequential chain of the same backend in interleaved pairs. Above 1 the window is faster.
"""

import argparse

import numpy as np

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import WindowPlan
from pymc_deer.examples import breast_cancer, correlated_logistic, eight_schools, radon
from pymc_deer.noise import draw_tape
from pymc_deer.options import BackendName
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed, paired_ratio, warm_up, write

MODELS = (eight_schools, breast_cancer, correlated_logistic, radon)
WINDOWS = (16, 64, 256, 1024)
N = 4096
REPEATS = 5


def measure(case: Warmed, backend: BackendName) -> list[dict[str, object]]:
    """Speed-up over the sequential chain for every window."""
    normal, uniform = (np.random.default_rng([3, i]) for i in range(2))
    tape = draw_tape(normal, uniform, N, case.density.size)
    spec = SweepSpec(case.tuning.metric.kind)

    def runner(window: int):
        plan = WindowPlan(window, max_sweeps=window, tol=1e-6, capacity=N)
        solver = make_solver(backend, case.density, spec, plan)
        rng = np.random.default_rng(0)
        return lambda: solver.solve(case.z, tape, case.tuning, case.params, rng)

    sequential, rows = runner(1), []
    for window in WINDOWS:
        windowed = runner(window)
        ratio, seconds, _ = paired_ratio(sequential, windowed, REPEATS)
        rows.append(
            {
                "backend": backend,
                "window": window,
                "speed_up": round(ratio, 3),
                "sequential_microseconds_per_transition": round(1e6 * seconds / N, 2),
                "sweeps_per_1000": round(1000 * windowed().n_sweeps / N),
            }
        )
    return rows


def main() -> None:
    """Measure every model on the chosen backends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", choices=("numba", "jax"), action="append")
    backends: list[BackendName] = parser.parse_args().backend or ["numba", "jax"]
    rows: list[dict[str, object]] = []
    for build in MODELS:
        case = warm_up(build())
        for backend in backends:
            rows += [{"model": build.__name__, **row} for row in measure(case, backend)]
    write("windows", rows)


if __name__ == "__main__":
    main()
