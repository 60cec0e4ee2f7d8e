"""Shared pieces of the benchmarks: paired timings, tuned problems, what they ran on."""

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pytensor

from pymc_deer import DeerMALA
from pymc_deer.backends import make_solver, runs_on_gpu
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.chains.plan import window_plan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import Density, build_density
from pymc_deer.options import BackendName
from pymc_deer.step import DeerStep
from pymc_deer.sweep import SweepSpec

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"

PACKAGES = (
    *("pymc-deer", "pymc", "pytensor", "numba", "jax", "numpy"),
    *("nutpie", "numpyro", "blackjax"),
)
"""Packages whose versions results are stored with."""


@dataclass(frozen=True)
class Warmed:
    """A model after warm-up: density, tuning, and a whitened state of the typical set."""

    model: pm.Model
    density: Density
    tuning: Tuning
    z: np.ndarray
    params: tuple[np.ndarray, ...]


def warm_up(
    model: pm.Model,
    sampler: type[DeerStep] = DeerMALA,
    *,
    backend: BackendName = "numba",
    n_draws: int = 1000,
) -> Warmed:
    """Run the sampler's own warm-up of `n_draws` recorded draws."""
    with model:
        step = sampler(backend=backend, window=1)  # type: ignore[call-arg]
        step.setup_chain(np.random.default_rng(1), n_draws, 1)
        point = model.initial_point()
        for _ in range(n_draws):
            point, _ = step.step(point)
        step.stop_tuning()
        point, _ = step.step(point)
    assert isinstance(step, DeerStep)
    record = step.record
    assert record is not None
    density = build_density(model)
    tuning = record.warmup.tuning
    x = density.layout.ravel(point, density.dtype)
    return Warmed(model, density, tuning, tuning.metric.to_z(x), density.param_values(point))


def chain_of(case: Warmed, backend: str) -> Callable[[int], Callable[[], object]]:
    """The model's MALA chain step by step, compiled: what runs so many transitions of it."""
    density, kind = case.density, case.tuning.metric.kind
    plan = window_plan(1, None, 1e-6, density)
    solver = make_solver(backend, density, SweepSpec(kind, "secant"), plan)

    def of_length(n: int) -> Callable[[], object]:
        tape = Streams.spawn(np.random.default_rng(0)).tape(n, density.size, case.tuning)
        request = TapedRequest(case.z, tape, case.tuning, np.random.default_rng(0))
        return lambda: solver.run(request, case.params)

    of_length(2)()
    return of_length


def paired_ratio(
    one: Callable[[], object], other: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """Median of the time ratio one / other over interleaved pairs, and both medians in seconds."""
    for warm in (one, other):
        warm()
    times = np.array([[_seconds(one), _seconds(other)] for _ in range(repeats)])
    return float(np.median(times[:, 0] / times[:, 1])), *np.median(times, axis=0).tolist()


def paired_chains(
    one: Callable[[int], Callable[[], object]], other: Callable[[int], Callable[[], object]]
) -> tuple[float, float, float]:
    """As :func:`paired_ratio`, of two chains: nine pairs of a tenth of a second, by transition."""
    _, _, seconds = paired_ratio(one(100), other(100), 1)
    n = max(10, int(10 / seconds))
    ratio, before, now = paired_ratio(one(n), other(n), 9)
    return ratio, before / n, now / n


def answer_of(module: str, *arguments: str, **environment: str) -> dict[str, Any]:
    """The JSON that a module prints last, run by a process of its own.

    Parameters
    ----------
    environment
        Variables that it has besides.
    """
    command = [sys.executable, "-m", module, *arguments]
    every = {**os.environ, **environment}
    done = subprocess.run(command, env=every, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def take_no_options(description: str | None) -> None:
    """Answer ``--help``, and refuse what else a command without options is given."""
    argparse.ArgumentParser(description=description).parse_args()


def write(
    name: str, rows: Iterable[dict[str, object]], old: Sequence[dict[str, object]] = ()
) -> None:
    """Write the rows to ``docs/benchmarks/NAME.json`` with what they ran on.

    New ones are printed as they come.
    """
    written = []
    for row in rows:
        written.append(row)
        if row not in old:
            print("  ".join(f"{key}={value}" for key, value in row.items()), flush=True)
    write_json(RESULTS / f"{name}.json", written)


def write_on_gpu(name: str, rows: Iterable[dict[str, object]]) -> None:
    """As :func:`write`, of rows that come in float32 from JAX's GPU.

    Raises
    ------
    SystemExit
        Where there is none.
    """
    os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
    if not runs_on_gpu("jax"):
        raise SystemExit("JAX has no GPU here.")
    with pytensor.config.change_flags(floatX="float32"):
        write(name, rows)


def short(value: float) -> float:
    """To four digits."""
    return float(f"{value:.4g}")


def write_json(file: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Write rows to a file, with what they ran on."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps({**surroundings(), "rows": rows}, indent=1) + "\n")


def surroundings() -> dict[str, Any]:
    """Date, hardware and versions."""
    return {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "hardware": {
            "processor": _processor(),
            "cores": len(os.sched_getaffinity(0))
            if hasattr(os, "sched_getaffinity")
            else os.cpu_count(),
            "memory_gib": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        },
        "versions": {name: number for name in PACKAGES if (number := _version(name))},
    }


def _processor() -> str:
    """Its name, where the system tells."""
    file = Path("/proc/cpuinfo")
    lines = file.read_text().splitlines() if file.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
