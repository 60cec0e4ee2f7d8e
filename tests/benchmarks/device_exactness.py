"""A device beside the CPU: ``uv run python -m tests.benchmarks.device_exactness``.

The same noise, drawn by NumPy, for chains on Numba, step by step, and on the device that JAX runs
on by default: step by step and in windows, one chain and a batch of four alike. Differences are the
largest of all states of 4096 transitions, in whitened units, beside the tolerance of windows. The
problem is the logistic regression of ``scaling.py`` with N = 1000 and D = 25, the rule ``secant``.
The rows go to ``docs/benchmarks/device_exactness.json``.
"""

import argparse
from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytensor

from pymc_deer.backends import make_solver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel, SweepSpec
from tests.benchmarks.measure import write
from tests.benchmarks.scaling import TOLERANCE, Problem

N, WINDOW = 4096, 1024
KERNELS: tuple[Kernel, ...] = ("mala", "hmc")
_PATH = {"step_size": 0.6, "lengths": (2, 6), "jitter": 0.2}


def rows(precisions: list[str]) -> Iterator[dict[str, object]]:
    """A row for each precision, kernel, window and number of chains."""
    for precision in precisions:
        with pytensor.config.change_flags(floatX=precision):
            problem = Problem(1000, 25)
        for kernel in KERNELS:
            expected = chains(problem, "numba", kernel, 1, 1)[0].z
            for window, n_chains in ((1, 1), (1, 4), (WINDOW, 1), (WINDOW, 4)):
                found = chains(problem, "jax", kernel, window, n_chains)
                yield {
                    "device": jax.devices()[0].device_kind,
                    "precision": precision,
                    "kernel": kernel,
                    "window": window,
                    "chains": n_chains,
                    "sweeps": max(one.n_sweeps for one in found),
                    "fallback": max(one.n_fallback for one in found),
                    "tol": TOLERANCE[precision],
                    "difference": float(f"{max(np.abs(f.z - expected).max() for f in found):.1e}"),
                }


def chains(
    problem: Problem, backend: BackendName, kernel: Kernel, window: int, n_chains: int
) -> list[Trajectory]:
    """All of them on the same noise from the same start."""
    tuning = problem.tuning if kernel == "mala" else replace(problem.tuning, **_PATH)
    rng = np.random.default_rng(3)
    tape = Streams.spawn(rng).tape(N, problem.dimension, tuning)
    start, dtype = rng.normal(size=problem.dimension), problem.density.dtype
    plan = WindowPlan(window, None, TOLERANCE[dtype], N)
    spec = SweepSpec(problem.metric.kind, "secant", kernel=kernel)
    solver = make_solver(backend, problem.density, spec, plan)
    request = TapedRequest(start, tape, tuning, np.random.default_rng(0))
    return solver.run_together([request] * n_chains, problem.params, N)


def main() -> None:
    """Compare in the precisions that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--precisions", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    write("device_exactness", rows(parser.parse_args().precisions))


if __name__ == "__main__":
    main()
