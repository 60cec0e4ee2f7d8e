"""All samplers on one model, in turn: each in its own process, which lives through its runs."""

import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

from tests.benchmarks.cases import CASES
from tests.benchmarks.figures import FIRST, Run, figures, median
from tests.benchmarks.samplers import IMPORTED, SAMPLERS, USES_JAX, InJax, Job, Sampler
from tests.benchmarks.worker import Task, Worker

Row = dict[str, Any]

PAIRED = ("ess_per_s", "us_per_gradient", *FIRST)
"""Figures of which every repeat is kept, so that ratios can be those of neighbours in time."""


@dataclass(frozen=True)
class Setting:
    """What all runs of a suite have in common.

    Attributes
    ----------
    cores
        Cores of each sampler's process.
    precision
        ``"float64"`` or ``"float32"``.
    on_gpu
        Whether chains run on JAX's default device, whatever it is, instead of the CPU's cores.
    """

    cores: int
    precision: str
    on_gpu: bool

    def environment(self, splits_cpu: bool, chains: int) -> dict[str, str]:
        """Of a process; `splits_cpu` where each chain is to have a device of its own."""
        # Several processes share the GPU, on which JAX's products of float32 matrices else have
        # three digits.
        variables = {
            "PYTENSOR_FLAGS": f"floatX={self.precision}",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "JAX_DEFAULT_MATMUL_PRECISION": "highest",
        }
        if splits_cpu and not self.on_gpu:
            variables["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={chains}"
        return variables


def prepare(
    model: str, sampler: str, sizes: Mapping[str, Any], cores: int, on_gpu: bool
) -> Callable[[int], Row]:
    """In the sampler's process: what answers a seed with the figures of a run."""
    if sampler in IMPORTED:
        import_module(IMPORTED[sampler])
    built = CASES[model].build()
    dimension = sum(value.size for value in built.initial_point().values())

    run = of_seed(SAMPLERS[sampler], Job(built, **sizes, cores=cores, seed=1), on_gpu)

    def answer(seed: int) -> Row:
        # A GPU runs all chains at the same time, whatever the cores.
        row = figures(run(seed), 1 if on_gpu else cores)
        return {"dimension": dimension, **row, **_device(on_gpu)}

    return answer


def of_seed(sampler: Sampler, job: Job, on_gpu: bool) -> Callable[[int], Run]:
    """What runs the job with a seed.

    For a GPU what can be is compiled ahead, while other processes compile theirs: a minute of it
    is dear, and compilation leaves it idle.
    """
    if on_gpu and isinstance(sampler, InJax):
        return sampler.compiled(job)
    return lambda seed: sampler(replace(job, seed=seed))


MOMENT = "%Y-%m-%d %H:%M:%S"

Workers = dict[str, Worker]


@contextmanager
def started(
    name: str, samplers: Sequence[str], sizes: Mapping[str, Any], setting: Setting
) -> Iterator[Workers]:
    """A process for each sampler, which prepares itself, with no compiled code on disk."""
    with ExitStack() as stack:
        workers: Workers = {}
        for sampler in samplers:
            task = stack.enter_context(
                with_empty_caches(sampler_task(name, sampler, sizes, setting))
            )
            workers[sampler] = stack.enter_context(Worker(task))
        yield workers


@contextmanager
def with_empty_caches(task: Task) -> Iterator[Task]:
    """The task with a place of its own for compiled code, which goes in the end."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as cache:
        flags = f"{task.environment['PYTENSOR_FLAGS']},base_compiledir={cache}"
        places = {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": cache}
        yield replace(task, environment=task.environment | places)


def race(
    name: str,
    workers: Workers,
    sizes: Mapping[str, Any],
    repeats: int,
    limit: float,
    setting: Setting,
    end: float = float("inf"),
    begun: str | None = None,
) -> Iterator[Row]:
    """A sampler's row each time that it has run, of its runs so far; the last one is of all.

    Those that fail or take too long say so.

    Parameters
    ----------
    workers
        What `started` gives, by sampler.
    sizes
        ``draws``, ``tune`` and ``chains``.
    limit
        Seconds for a run.
    end
        Moment of `time.perf_counter` after which no run is begun.
    begun
        Date and time that tell which runs followed on one another; now, by default.
    """
    begun = begun or time.strftime(MOMENT)
    common = {"run": begun, "precision": setting.precision, "cores": setting.cores, **sizes}
    answers: dict[str, list[Row]] = {sampler: [] for sampler in workers}

    def row(sampler: str, answer: Row) -> Row:
        answers[sampler].append(answer)
        return {"model": name, "sampler": sampler, **common, **summary(answers[sampler])}

    for sampler, worker in workers.items():
        ready = worker.wait()
        if ready["status"] != "ready":
            yield row(sampler, ready)
    for seed in range(1, repeats + 1):
        for sampler, worker in workers.items():
            failed = any(answer["status"] != "ok" for answer in answers[sampler])
            if failed or time.perf_counter() > end:
                continue
            answer = worker.ask(seed, limit)
            print(_line(name, sampler, answer), flush=True)
            yield row(sampler, answer)


def summary(answers: Sequence[Row]) -> Row:
    """Medians over the repeats, and each repeat's figures that ratios are made of.

    Of what includes compilation, the first one.
    """
    failed = [answer for answer in answers if answer["status"] != "ok"]
    if failed:
        return {"status": failed[0]["status"], "repeats": len(answers)}
    each = {name: [_short(answer[name]) for answer in answers] for name in PAIRED}
    values = median(answers) | {name: answers[0][name] for name in FIRST}
    return {
        "repeats": len(answers),
        **{name: _short(value) for name, value in values.items()},
        "each": each,
    }


def sampler_task(name: str, sampler: str, sizes: Mapping[str, Any], setting: Setting) -> Task:
    """A process that runs one sampler on one model."""
    splits_cpu = sampler in USES_JAX
    return Task(
        __name__,
        {
            **{"model": name, "sampler": sampler, "sizes": dict(sizes)},
            **{"cores": setting.cores, "on_gpu": setting.on_gpu},
        },
        # Chains are beside each other: threads of BLAS as well would only slow them, PyMC's and
        # nutpie's by up to four times.
        setting.environment(splits_cpu, sizes["chains"]) | {"OPENBLAS_NUM_THREADS": "1"},
        setting.cores,
    )


def _device(on_gpu: bool) -> Row:
    """The device that JAX ran on, and the most memory that was taken of it."""
    if not on_gpu:
        return {}
    import jax

    device = jax.devices()[0]
    memory = device.memory_stats() or {}
    peak = memory.get("peak_bytes_in_use", 0)
    return {"device": device.device_kind, "peak_device_mib": peak // 2**20}


def _short(value: Any) -> Any:
    """Four digits; what is not finite as None, which JSON has."""
    if not isinstance(value, float):
        return value
    return float(f"{value:.4g}") if abs(value) < float("inf") else None


def _line(name: str, sampler: str, answer: Row) -> str:
    if answer["status"] != "ok":
        return f"{name}  {sampler}: {answer['status']}"
    shown = ("ess_per_s", "ess_per_s_all", "max_r_hat", "compile_s", "sampling_s", "total_s")
    return f"{name}  {sampler}: " + "  ".join(f"{k}={answer[k]:.4g}" for k in shown)
