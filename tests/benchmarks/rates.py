"""What a device can do at most, measured: its matrix rate and its memory bandwidth, through JAX."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

_REPEATS = 5


@dataclass(frozen=True)
class Rates:
    """Floating-point operations a second of a large matrix product; bytes a second of a copy."""

    flops: float
    bandwidth: float

    def seconds(self, flops: float, n_bytes: float) -> float:
        """The least time for so much work: that of whichever takes longer."""
        return max(flops / self.flops, n_bytes / self.bandwidth)


def measure_rates(dtype: str, n_matrix: int, n_copied: int) -> Rates:
    """The rates of JAX's default device.

    Parameters
    ----------
    n_matrix
        Rows of the square matrices multiplied.
    n_copied
        Numbers read, and written.
    """
    with jax.enable_x64(dtype == "float64"):
        matrix = jax.random.normal(jax.random.key(0), (n_matrix, n_matrix), dtype)
        column = jnp.ones(n_copied, dtype)
        product = _least(jax.jit(lambda a: a @ a), matrix)
        copy = _least(jax.jit(lambda x: x + 1), column)
    return Rates(2 * n_matrix**3 / product, 2 * column.nbytes / copy)


def gradient_work(n: int, size: int, states: int, itemsize: int) -> tuple[float, float]:
    """Operations and bytes of a batch of gradients of a logistic regression.

    Two products with the data, N x D, for each state; the data read twice for all states together;
    and of each state N logits and N residuals, each written and read.
    """
    flops = 4.0 * n * size * states
    return flops, float(itemsize) * (2 * n * size + 4 * n * states)


def _least(function: Callable[..., Any], argument: Any) -> float:
    """Seconds of the fastest call."""
    jax.block_until_ready(function(argument))
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        jax.block_until_ready(function(argument))
        seconds.append(time.perf_counter() - begun)
    return min(seconds)
