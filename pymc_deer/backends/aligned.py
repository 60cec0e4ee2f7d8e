"""Memory that XLA reads where it lies."""

import math

import numpy as np

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
