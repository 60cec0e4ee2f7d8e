"""From one core to two: ``uv run python -m tests.benchmarks.cores``.

How many times faster the same transitions are on two cores: two chains, each in its thread, on both
backends, and on Numba one window of one chain, whose states are spread over threads. Interleaved
pairs; the rows go to ``docs/benchmarks/cores.json``.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pymc as pm

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.chains.plan import window_plan
from pymc_deer.chains.stretch import Streams
from pymc_deer.examples import correlated_logistic, eight_schools
from pymc_deer.options import BackendName
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed, paired_ratio, take_no_options, warm_up, write

MODELS: dict[str, tuple[Callable[[], pm.Model], int]] = {
    "eight schools": (eight_schools, 40_000),
    "logistic, N=1000, D=25": (lambda: correlated_logistic(1000, 25), 4000),
    "logistic, N=10000, D=50": (lambda: correlated_logistic(10_000, 50), 400),
}
"""Each with a number of transitions that takes about a tenth of a second."""

WINDOW = 256
REPEATS = 9


def tuned_solver(case: Warmed, backend: BackendName, window: int) -> Solver:
    plan = window_plan(window, None, 1e-6, case.density)
    return make_solver(backend, case.density, SweepSpec(case.tuning.metric.kind, "secant"), plan)


def speed_up(case: Warmed, solver: Solver, n: int, n_chains: int) -> tuple[float, float]:
    """Of `n_chains` chains of n transitions; and their microseconds a transition on one core."""
    chains = []
    for seed in range(n_chains):
        rng = np.random.default_rng(seed)
        tape = Streams.spawn(rng).tape(n, case.density.size, case.tuning)
        chains.append(TapedRequest(case.z, tape, case.tuning, rng))

    def on(cores: int) -> Callable[[], object]:
        limited = solver.for_chains(n_chains).on_cores(cores)
        return lambda: limited.run_together(chains, case.params, limited.plan.capacity)

    ratio, alone, _ = paired_ratio(on(1), on(2), REPEATS)
    return ratio, 1e6 * alone / (n * n_chains)


def rows() -> Iterator[dict[str, object]]:
    """Chains in threads, then a window's states in threads."""
    for name, (build, n) in MODELS.items():
        case = warm_up(build())
        for backend in ("numba", "jax"):
            ratio, alone = speed_up(case, tuned_solver(case, backend, 1), n, 2)
            yield row(name, backend, "two chains", ratio, alone)
        if case.density.n_numbers > 10_000:
            ratio, alone = speed_up(case, tuned_solver(case, "numba", WINDOW), n, 1)
            yield row(name, "numba", f"one window of {WINDOW}", ratio, alone)


def row(model: str, backend: str, what: str, ratio: float, alone: float) -> dict[str, object]:
    return {
        "model": model,
        "backend": backend,
        "what": what,
        "speed_up": round(ratio, 2),
        "microseconds_per_transition_on_one_core": round(alone, 2),
    }


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    write("cores", rows())


if __name__ == "__main__":
    main()
