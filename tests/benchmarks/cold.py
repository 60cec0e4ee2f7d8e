"""From a cold start to the first draw: a new process, with no compiled code on disk.

The time from the start of the process to its first recorded draw, imports, compilation and the
sampler's own warm-up included.
"""

import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import Any

from tests.benchmarks.race import Setting, sampler_task
from tests.benchmarks.worker import Worker

MODELS = (
    *("eight_schools", "german_credit", "radon"),
    *("stochastic_volatility", "hierarchical_100"),
)
SAMPLERS = ("deer_mala", "deer_hmc", "deer_hmc_numba", "nutpie")
QUICK_MODELS, QUICK_SAMPLERS = ("eight_schools",), ("deer_mala", "nutpie")
LIMIT = 180.0


def rows(
    models: Sequence[str], samplers: Sequence[str], tune: int | None, setting: Setting
) -> Iterator[dict[str, Any]]:
    """A row for every model and sampler.

    Parameters
    ----------
    tune
        Draws of warm-up; None for each sampler's own default.
    """
    for model in models:
        for sampler in samplers:
            yield {"model": model, "sampler": sampler, **first_draw(model, sampler, tune, setting)}


def first_draw(model: str, sampler: str, tune: int | None, setting: Setting) -> dict[str, Any]:
    """Seconds of one cold start."""
    sizes = {"draws": 4, "tune": tune, "chains": 4}
    with tempfile.TemporaryDirectory() as cache:
        task = sampler_task(model, sampler, sizes, setting)
        flags = f"{task.environment['PYTENSOR_FLAGS']},base_compiledir={cache}"
        task.environment.update(PYTENSOR_FLAGS=flags, NUMBA_CACHE_DIR=cache)
        with Worker(task) as worker:
            ready = worker.wait(LIMIT)
            importing = time.perf_counter() - worker.begun
            if ready["status"] != "ready":
                return ready
            answer = worker.ask(1, LIMIT)
    if answer["status"] != "ok":
        return {"status": answer["status"]}
    return {
        "seconds": round(importing + answer["total_s"], 2),
        "importing_s": round(importing, 2),
        "compile_s": round(answer["compile_s"], 2),
        "warmup_s": round(answer["warmup_s"], 2),
    }
