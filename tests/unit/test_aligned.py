"""Arrays that JAX takes as they are on a CPU, without a copy."""

import jax
import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_deer.backends.aligned import aligned_zeros, empty_tape
from pymc_deer.backends.trajectory import Noise


@pytest.mark.parametrize("dtype", ["float32", "float64", "uint64"])
@pytest.mark.parametrize("shape", [(3,), (1, 7, 11), (2, 1000)])
def test_arrays_are_aligned_and_zero(shape: tuple[int, ...], dtype: str) -> None:
    array = aligned_zeros(shape, np.dtype(dtype))
    assert_array_equal(array, np.zeros(shape, dtype), strict=True)
    assert array.ctypes.data % 64 == 0
    assert array.flags.c_contiguous
    assert array.flags.writeable


@pytest.mark.parametrize("size", [3, 1001])
def test_jax_reads_a_tape_where_it_lies(size: int) -> None:
    """A copy, for all transitions that a call may have, can take longer than those of the call."""
    noise = Noise(np.ones((5, size)), np.ones(5), np.ones(5), np.ones(5, np.int64))
    with jax.enable_x64(True):
        for array in empty_tape(2, noise, 301):
            assert np.shares_memory(array, np.asarray(jax.device_put(array)))
