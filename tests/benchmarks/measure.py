"""Shared pieces of the benchmarks: paired timings, tuned problems, what they ran on."""

import json
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
import pymc as pm

from pymc_deer import DeerMALA
from pymc_deer.backends.base import Tuning
from pymc_deer.density import Density, build_density
from pymc_deer.options import BackendName
from pymc_deer.step import DeerStep

RESULTS = Path(__file__).parents[2] / "docs" / "benchmarks"


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


def paired_ratio(
    one: Callable[[], object], other: Callable[[], object], repeats: int
) -> tuple[float, float, float]:
    """Median of the time ratio one / other over interleaved pairs, and both medians in seconds."""
    for warm in (one, other):
        warm()
    times = np.array([[_seconds(one), _seconds(other)] for _ in range(repeats)])
    return float(np.median(times[:, 0] / times[:, 1])), *np.median(times, axis=0).tolist()


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
    RESULTS.mkdir(parents=True, exist_ok=True)
    packages = ("pymc", "pytensor", "numba", "jax", "numpy")
    report = {
        "date": time.strftime("%Y-%m-%d"),
        "machine": f"{platform.machine()}, Python {platform.python_version()}",
        "versions": {package: version(package) for package in packages},
        "rows": written,
    }
    (RESULTS / f"{name}.json").write_text(json.dumps(report, indent=1) + "\n")


def _seconds(function: Callable[[], object]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
