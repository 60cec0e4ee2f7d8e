"""Time outside compiled code: ``uv run python -m tests.benchmarks.overhead``.

Eight schools, 4 chains of 10,000 draws on one core, behind a first run of the same. The compiled
solver is the calls that the backends time with a :class:`~pymc_deer.backends.pace.Pace`: from the
moment at which a call is allowed its work until its results are there. All else that the phases of
a run take is overhead: generators and tapes, what lies between calls, what warm-up learns, what is
recorded. It is told by phase, and as a whole for each recorded draw and chain, in time that the
processor gave to Python's threads: others at work on the machine do not lengthen it. Recording has
a thread of its own, whose time counts as well, although the draws hardly ever wait for it.

Beside it stands what is not overhead of a draw, by the clock on the wall: the compiled solver,
setting up (graphs, compilation, the pilot chain), and ArviZ's conversion to InferenceData and
PyMC's convergence checks of what was recorded. Each number is the least of several runs. The rows
go to ``docs/benchmarks/overhead.json``.
"""

import argparse
import logging
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import pymc_deer
from pymc_deer.backends.pace import Pace
from pymc_deer.beside import Beside
from pymc_deer.examples import eight_schools
from pymc_deer.sampling.phases import Phases
from tests.benchmarks.measure import write

DRAWS, CHAINS = 10_000, 4
PHASES = ("warmup", "sampling", "recording")
TARGET = 2.0
"""Microseconds of overhead for each draw and chain."""


class Watch:
    """Seconds by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = defaultdict(float)

    def add(self, name: str, seconds: float) -> None:
        self.seconds[name] += seconds

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """The function, whose calls are timed."""

        def call(*arguments: Any, **named: Any) -> Any:
            begun = time.perf_counter()
            try:
                return function(*arguments, **named)
            finally:
                self.add(name, time.perf_counter() - begun)

        return call


@contextmanager
def watched(watch: Watch) -> Iterator[None]:
    """Have compiled calls, the phases without them, and the last steps add to `watch`."""

    class TimedPace(Pace):
        def allows(self, weight: float) -> int:
            allowed = super().allows(weight)
            self.begun = time.thread_time()
            return allowed

        def took(self, pieces: int, weight: float) -> None:
            watch.add("compiled", time.thread_time() - self.begun)
            watch.add("solver", self._clock() - self._begun)
            super().took(pieces, weight)

    class OwnPhases(Phases):
        @contextmanager
        def of(self, phase: str) -> Iterator[None]:
            before, begun = watch.seconds["compiled"], time.thread_time()
            with super().of(phase):
                yield
            compiled = watch.seconds["compiled"] - before
            watch.add(phase, time.thread_time() - begun - compiled)

    do = Beside.do

    def do_timed(beside: Beside, call: Callable[[], None]) -> None:
        def timed() -> None:
            begun = time.thread_time()
            call()
            watch.add("recording", time.thread_time() - begun)

        do(beside, timed)

    conversion = pymc_deer.sampling.memory_recorder.inference_data
    checks = pymc_deer.sampling.inference_data.run_convergence_checks
    targets = {
        "pymc_deer.backends.base.Pace": TimedPace,
        "pymc_deer.sampling.driver.Phases": OwnPhases,
        "pymc_deer.beside.Beside.do": do_timed,
        "pymc_deer.sampling.memory_recorder.inference_data": watch.timed("conversion", conversion),
        "pymc_deer.sampling.inference_data.run_convergence_checks": watch.timed("checks", checks),
    }
    with ExitStack() as stack:
        for name, replacement in targets.items():
            stack.enter_context(patch(name, replacement))
        yield


def run(kernel: str, backend: str, n_draws: int) -> dict[str, float]:
    """Seconds of one run, by name."""
    watch = Watch()
    begun = time.perf_counter()
    with watched(watch):
        pymc_deer.sample(
            n_draws,
            model=eight_schools(),
            kernel=kernel,
            backend=backend,
            chains=CHAINS,
            cores=1,
            window=1,
            random_seed=20_250_103,
            progressbar=False,
        )
    seconds = watch.seconds
    seen = sum(seconds[name] for name in (*PHASES, "conversion", "checks", "solver"))
    return seconds | {"set_up": time.perf_counter() - begun - seen}


def rows(repeats: int, n_draws: int) -> Iterator[dict[str, object]]:
    """Each backend and kernel."""
    for backend in ("numba", "jax"):
        for kernel in ("mala", "hmc"):
            run(kernel, backend, n_draws)
            runs = [run(kernel, backend, n_draws) for _ in range(repeats)]
            least = {name: min(each[name] for each in runs) for name in runs[0]}
            per_draw = {name: 1e6 * least[name] / (n_draws * CHAINS) for name in PHASES}
            yield {
                "backend": backend,
                "kernel": kernel,
                "overhead_us": round(sum(per_draw.values()), 2),
                **{f"{name}_us": round(value, 2) for name, value in per_draw.items()},
                **{
                    f"{name}_s": round(least[name], 3)
                    for name in ("solver", "set_up", "conversion", "checks")
                },
            }


def main() -> None:
    """Measure every backend and kernel."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--draws", type=int, default=DRAWS)
    given = parser.parse_args()
    # Convergence is checked where it would be told of.
    logging.getLogger("pymc").setLevel(logging.CRITICAL)
    write("overhead", rows(given.repeats, given.draws))


if __name__ == "__main__":
    main()
