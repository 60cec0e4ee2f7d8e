"""Tapes in memory that XLA reads where it lies."""

import math
from collections.abc import Sequence

import numpy as np

from pymc_deer.backends.trajectory import Noise

_ALIGNMENT = 64
"""Bytes. On a CPU, JAX copies arrays that begin elsewhere, each time that a program takes them."""


def aligned_zeros(shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Zeros that a program on a CPU takes as they are.

    What is written to them while the program runs it may see or not.
    """
    n_bytes = math.prod(shape) * dtype.itemsize
    memory = np.zeros(n_bytes + _ALIGNMENT, np.uint8)
    first = -memory.ctypes.data % _ALIGNMENT
    return memory[first : first + n_bytes].view(dtype).reshape(shape)


def empty_tape(n_chains: int, like: Noise, rows: int) -> tuple[np.ndarray, ...]:
    """Room for the noise of all chains at full capacity, so that all calls have one shape.

    As it is, it accepts steps of size 0.
    """
    shapes = ((n_chains, rows, *array.shape[1:]) for array in like)
    tape = Noise(*(aligned_zeros(s, a.dtype) for s, a in zip(shapes, like, strict=True)))
    tape.log_u[:] = -np.inf
    tape.n_leapfrog[:] = 1
    return tape


def fill_tape(tape: tuple[np.ndarray, ...], noises: Sequence[Noise], at: int) -> None:
    """Put the noise of the first chains into the arrays, from row `at` on."""
    for padded, of_chains in zip(tape, zip(*noises, strict=True), strict=True):
        for mine, its in zip(padded, of_chains, strict=False):
            mine[at : at + len(its)] = its
