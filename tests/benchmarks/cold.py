"""From a cold start to the first draw: a new process, with no compiled code on disk.

The time from the start of the process to its first recorded draw, imports, compilation and the
sampler's own warm-up included.
"""

import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.figures import median
from tests.benchmarks.race import Setting, sampler_task, with_empty_caches
from tests.benchmarks.worker import Worker

MODELS = (
    *("eight_schools", "german_credit", "radon"),
    *("stochastic_volatility", "hierarchical_100"),
)
SAMPLERS = ("deer_mala", "deer_hmc", "deer_hmc_numba", "nutpie")
QUICK_MODELS, QUICK_SAMPLERS = ("eight_schools",), ("deer_mala", "nutpie")
LIMIT = 180.0
REPEATS = 3


def rows(
    model: str, samplers: Sequence[str], tune: int | None, setting: Setting, repeats: int
) -> Iterator[dict[str, Any]]:
    """A row for every sampler: medians of starts in turns.

    Parameters
    ----------
    tune
        Draws of warm-up; None for each sampler's own default.
    """
    starts: dict[str, list[dict[str, Any]]] = {sampler: [] for sampler in samplers}
    for _ in range(repeats):
        for sampler in samplers:
            starts[sampler].append(first_draw(model, sampler, tune, setting))
    for sampler, found in starts.items():
        failed = [start for start in found if "status" in start]
        medians = failed[0] if failed else {n: round(v, 2) for n, v in median(found).items()}
        yield {"model": model, "sampler": sampler, "repeats": repeats, **medians}


def first_draw(model: str, sampler: str, tune: int | None, setting: Setting) -> dict[str, Any]:
    """Seconds of one cold start."""
    sizes = {"draws": 4, "tune": tune, "chains": 4}
    with (
        with_empty_caches(sampler_task(model, sampler, sizes, setting)) as task,
        Worker(task) as worker,
    ):
        ready = worker.wait(LIMIT)
        importing = time.perf_counter() - worker.begun
        if ready["status"] != "ready":
            return ready
        answer = worker.ask(1, LIMIT)
    if answer["status"] != "ok":
        return {"status": answer["status"]}
    return {
        "seconds": importing + answer["total_s"],
        "importing_s": importing,
        "compile_s": answer["compile_s"],
        "warmup_s": answer["warmup_s"],
    }
