"""Cost of a Newton sweep: ``uv run python -m tests.benchmarks.sweep_cost``.

The ratio of one sweep (``secant`` rule, dense metric, scan, residuals and all) to two evaluations
of the batched logp and gradient of the same width, by the same backend with the same blocks and
threads, in interleaved pairs. Target: at most 1.2 for N * D >= 25,000.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor.tensor as pt
from threadpoolctl import threadpool_limits

import pymc_deer.backends.jax  # noqa: F401
from pymc_deer.backends import numba as numba_backend
from pymc_deer.backends.forecast import on_standard_normal
from pymc_deer.backends.jax_functions import compiled
from pymc_deer.backends.jax_mode import JAX_CPU_MODE
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.density import Density, build_density
from pymc_deer.examples import correlated_logistic
from pymc_deer.metric import identity_metric
from pymc_deer.ops.batch import BatchMap
from pymc_deer.sweep import Program, SweepSpec, build_sweep
from tests.benchmarks.measure import paired_ratio, take_no_options, write

CASES = [(1000, 25, 64), (1000, 25, 512), (1000, 25, 2048), (2000, 50, 256), (10_000, 50, 128)]
REPEATS = 15
PER_CALL = 4
"""Sweeps, or pairs of gradients, between two looks at the clock."""


def build_gradient(density: Density, width: int | None, *, threaded: bool) -> Program:
    """Logp and gradient of a window of states, and nothing else."""
    x = pt.tensor("x", dtype=density.dtype, shape=(width, density.size))
    block = pt.tensor("block", dtype="int64", shape=())
    batch_map: Any = BatchMap(
        [x, *density.params],
        density.batch.both(x),
        n_mapped=1,
        batching="vectorized",
        threaded=threaded,
    )
    return Program([x, block, *density.params], batch_map(block, x, *density.params))


def measure(backend: str, n: int, size: int, width: int) -> dict[str, object]:
    """The ratio for one backend, data size and window."""
    model = correlated_logistic(n, size)
    density = build_density(model)
    rng = np.random.default_rng(0)
    params = density.param_values(model.initial_point())
    z = 0.05 * rng.normal(size=(width, size))
    metric = identity_metric("dense", size)
    noise = [rng.normal(size=(width, size)), np.log(rng.random(width))]
    step_sizes, lengths = np.full(width, 0.05), np.ones(width, dtype=np.int64)
    paths = [step_sizes, lengths, on_standard_normal(np, step_sizes, lengths).bend]
    scalars = [np.asarray(v) for v in (1.5, 1e-6)]
    block = np.asarray(numba_backend._BLOCK)
    memory, probes = np.full((width, 2 * size), np.nan), np.zeros((width, 0, size))
    sweep_arguments = [
        z, memory, z[0], *noise, probes, *paths, *scalars, block, *metric.arrays, *params
    ]  # fmt: skip
    run = _jax_runner if backend == "jax" else _numba_runner
    fixed = width if backend == "jax" else None
    threaded = numba_backend.available_threads() > 1
    program = build_sweep(
        density, SweepSpec("dense", "secant"), "vectorized", width=fixed, threaded=threaded
    )
    sweep = run(program, sweep_arguments)
    gradient = run(build_gradient(density, fixed, threaded=threaded), [z, block, *params])

    def two_gradients() -> None:
        gradient()
        gradient()

    with threadpool_limits(1 if backend == "numba" and threaded else None, user_api="blas"):
        ratio, seconds, _ = paired_ratio(sweep, two_gradients, REPEATS)
    return {
        "backend": backend,
        "observations": n,
        "dimension": size,
        "window": width,
        "ratio": round(ratio, 3),
        "microseconds_per_transition": round(1e6 * seconds / (PER_CALL * width), 2),
    }


def _numba_runner(program: Program, arguments: list[np.ndarray]) -> Callable[[], object]:
    function = program.linked(NUMBA_MODE)

    def several() -> None:
        for _ in range(PER_CALL):
            function(*arguments)

    return several


def _jax_runner(program: Program, arguments: list[np.ndarray]) -> Callable[[], object]:
    """Several in one call, as the sampler has them: each call takes its memory anew."""
    function = compiled(program, JAX_CPU_MODE)
    states, *others = map(jnp.asarray, arguments)

    @jax.jit
    def several(states: jax.Array) -> Any:
        def once(_: int, carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
            found = function(carry[0], *others)
            # What depends on the time before is not computed once for all.
            same = next(array for array in found if array.shape == states.shape)
            return carry[0] + 0.0 * same, found

        return jax.lax.fori_loop(1, PER_CALL, once, (states, function(states, *others)))

    return lambda: jax.block_until_ready(several(states))


def main() -> None:
    """Measure every case on both backends."""
    take_no_options(__doc__)
    write("sweep_cost", [measure(b, *case) for b in ("numba", "jax") for case in CASES])


if __name__ == "__main__":
    main()
