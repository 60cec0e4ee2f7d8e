"""What a device can do at most, measured: its matrix rate and its bandwidths, through JAX."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

_REPEATS = 5
_FEWEST, _COPIED = 2**10, 2**24


@dataclass(frozen=True)
class Rates:
    """What a device does in a second.

    Attributes
    ----------
    flops
        Floating-point operations of a large matrix product.
    bandwidth
        Bytes read, or read and written, whichever goes faster, by how many take turns: the more,
        the further away they lie.
    """

    flops: float
    bandwidth: Callable[[float], float]

    def seconds(self, flops: float, n_bytes: float, resident: float) -> float:
        """The least time for so much work: that of whichever takes longer."""
        return max(flops / self.flops, n_bytes / self.bandwidth(resident))


def measure_rates(dtype: str, n_matrix: int, n_copied: int) -> Rates:
    """The rates of JAX's default device; bandwidths are measured as they are asked for.

    Parameters
    ----------
    dtype
        Of all numbers.
    n_matrix
        Rows of the square matrices multiplied.
    n_copied
        Most numbers whose bandwidth is measured: more lie in memory as well.
    """
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        matrix = jax.random.normal(jax.random.key(0), (n_matrix, n_matrix), dtype)
        product = _least(jax.jit(lambda a: a @ a), matrix)
    moving = cache(partial(_bandwidth, dtype))

    def bandwidth(resident: float) -> float:
        n = resident / np.dtype(dtype).itemsize
        return moving(min(2 ** round(np.log2(max(n, _FEWEST))), n_copied))

    return Rates(2 * n_matrix**3 / product, bandwidth)


def _bandwidth(dtype: str, n: int) -> float:
    times = max(_COPIED // n, 1)
    with jax.enable_x64(dtype == "float64"), jax.default_matmul_precision("highest"):
        column = jnp.ones(n, dtype)
        rows = int(np.sqrt(n))
        matrix = jnp.full((rows, rows), 1 / rows, dtype)
        # In one program: calls take longer than small arrays do.
        writing = _least(jax.jit(partial(_copied, times)), column)
        reading = _least(jax.jit(partial(_read, times)), matrix)
    return times * max(2 * column.nbytes / writing, matrix.nbytes / reading)


def _copied(times: int, column: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, times, lambda _, x: x + 1, column)


def _read(times: int, matrix: jax.Array) -> jax.Array:
    return jax.lax.fori_loop(0, times, lambda _, x: matrix @ x, matrix[0])


def gradient_work(n: int, size: int, states: int, itemsize: int) -> tuple[float, float, float]:
    """Operations and bytes of a batch of gradients of a logistic regression, and the bytes that
    take turns in the caches.

    Two products with the data, N x D, for each state; the data read twice for all states together;
    and of each state N logits and N residuals, each written and read.
    """
    flops = 4.0 * n * size * states
    resident = float(itemsize) * (n * size + 2 * n * states)
    return flops, 2 * resident, resident


def _least(function: Callable[..., Any], argument: Any) -> float:
    """Seconds of the fastest call."""
    jax.block_until_ready(function(argument))
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
