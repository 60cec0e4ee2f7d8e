"""Sweeps with kernels of ours on a GPU: ``uv run python -m tests.benchmarks.row_blocks``.

Windows of the logistic regression of ``scaling.py`` in float32, once with kernels that go along the
rows of the data block by block (``pymc_deer.ops.row_blocks``), once with XLA's own. Both are
compiled before either is timed. Paths have 4 to 12 leapfrog steps. A row tells

``us``, ``us_without``
    Microseconds of a sweep from when it is started until the host knows the result, in the fastest
    of four runs.
``sweeps``, ``sweeps_without``
    Sweeps that the transitions took: kernels round otherwise.
``ms``, ``ms_without``
    Milliseconds of all transitions, with what the host does.

Products of any number of columns take part, also where kernels of ours are not the default. Where
there is no GPU there is nothing to compare. The rows go to
``docs/benchmarks/row_blocks.json``.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple
from unittest.mock import patch

import jax
import numpy as np

import pymc_deer.ops.row_blocks
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.placement import OneDevice
from pymc_deer.sweep import Kernel
from tests.benchmarks.measure import short, write_on_gpu
from tests.benchmarks.scaling import Problem

KERNELS: tuple[Kernel, ...] = ("mala", "hmc")
_PATH = {"step_size": 0.6, "lengths": (4, 12), "jitter": 0.2}
_REPEATS = 4


class Windows(NamedTuple):
    """Windows of C chains of a problem."""

    n: int
    dimension: int
    kernel: Kernel
    chains: int
    window: int


CASES = (
    Windows(1000, 25, "mala", 1, 1024),
    Windows(1000, 25, "mala", 1, 8192),
    Windows(1000, 25, "mala", 1, 65_536),
    Windows(1000, 25, "hmc", 1, 1024),
    Windows(10_000, 50, "hmc", 1, 1024),
    Windows(10_000, 50, "hmc", 4, 1024),
    Windows(10_000, 50, "mala", 1, 16_384),
    Windows(1000, 100, "hmc", 1, 1024),
)


class Timed(OneDevice):
    """The device, and seconds for which the host has waited for each call's sweeps."""

    def __init__(self, kernels: bool) -> None:
        self._kernels = kernels
        self.waits: list[float] = []

    @property
    def runs_kernels(self) -> bool:
        return self._kernels

    def fetched(self, arrays: Sequence[jax.Array]) -> list[np.ndarray]:
        begun = time.perf_counter()
        found = super().fetched(arrays)
        if all(array.ndim < 2 for array in arrays):
            self.waits.append(time.perf_counter() - begun)
        return found


def compiled(case: Windows, problem: Problem, kernels: bool) -> Callable[[], dict[str, float]]:
    """What times a run."""
    tuning = problem.tuning if case.kernel == "mala" else replace(problem.tuning, **_PATH)
    solver = problem.solver("jax", case.window, case.kernel)
    assert isinstance(solver, JaxSolver)
    solver.placement = place = Timed(kernels)
    n = solver.plan.capacity
    requests = problem.runs(solver, n, case.chains, tuning)

    def run() -> dict[str, float]:
        place.waits.clear()
        begun = time.perf_counter()
        found = solver.run_together(requests, problem.params, n)
        taken = time.perf_counter() - begun
        sweeps = max(one.n_sweeps for one in found)
        return {"us": 1e6 * sum(place.waits) / sweeps, "sweeps": sweeps, "ms": 1e3 * taken}

    with patch.object(pymc_deer.ops.row_blocks, "_MOST_COLUMNS", case.dimension):
        run()
    return run


def rows(cases: Sequence[Windows]) -> Iterator[dict[str, object]]:
    """A row for each."""
    for case in cases:
        problem = Problem(case.n, case.dimension)
        ways = [compiled(case, problem, kernels) for kernels in (True, False)]
        runs = [[way() for way in ways] for _ in range(_REPEATS)]
        ours, without = (
            min(column, key=lambda run: run["ms"]) for column in zip(*runs, strict=True)
        )
        yield {
            "device": jax.devices()[0].device_kind,
            **case._asdict(),
            **{k: short(v) for k, v in ours.items()},
            **{f"{k}_without": short(v) for k, v in without.items()},
        }


def main() -> None:
    """Measure all, or what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kernels", nargs="+", choices=KERNELS, default=list(KERNELS))
    given = parser.parse_args()
    write_on_gpu("row_blocks", rows([case for case in CASES if case.kernel in given.kernels]))


if __name__ == "__main__":
    main()
