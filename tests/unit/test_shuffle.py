"""Shuffle: NumPy's transpositions and new axes, and how Numba has them lie in memory."""

from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba.core import types
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key, numba_njit

import pymc_deer.ops.shuffle_numba  # noqa: F401
from pymc_deer.ops.shuffle import Shuffle

RNG = np.random.default_rng(0)


def shuffled(x: np.ndarray, order: tuple[Any, ...]) -> np.ndarray:
    """What NumPy makes of it."""
    kept = [axis for axis in order if axis != "x"]
    dropped = [axis for axis in range(x.ndim) if axis not in kept]
    moved = x.transpose(*kept, *dropped).reshape([x.shape[axis] for axis in kept])
    return np.expand_dims(moved, [i for i, axis in enumerate(order) if axis == "x"])


@cache
def numbas(shape: tuple[int, ...], order: tuple[Any, ...]) -> Any:
    """Numba's function for an array of that shape, whose axes of length 1 are known."""
    x = pt.tensor(dtype="float64", shape=[1 if n == 1 else None for n in shape])
    node = Shuffle(input_ndim=len(shape), new_order=order).make_node(x)
    function: Any
    function, key = numba_funcify_and_cache_key(node.op, node=node)
    assert key is not None
    return numba_njit(function.py_func, final_function=True)


ORDERS = [
    *[((), order) for order in [(), ("x", "x")]],
    *[((4,), order) for order in [("x", 0), (0, "x"), ("x", 0, "x")]],
    *[((1,), order) for order in [(), (0, "x")]],
    *[((4, 3), order) for order in [(0, 1), (1, 0), (0, "x", 1), (1, "x", 0)]],
    *[((1, 3), order) for order in [(1, 0), (1, "x")]],
    *[((4, 1), order) for order in [(0,), (1, 0)]],
    *[((2, 3, 4), order) for order in [(1, 0, 2), (1, 2, 0), (2, 1, 0)]],
    *[((2, 1, 4), order) for order in [(0, 2), (2, 0), (1, 0, 2)]],
]


@pytest.mark.parametrize(("shape", "order"), ORDERS)
def test_a_view_as_numpy_makes_it(shape: tuple[int, ...], order: tuple[Any, ...]) -> None:
    function = numbas(shape, order)
    wide = np.asarray(RNG.normal(size=[2 * n for n in shape]))
    gaps = wide[(*(slice(None, None, 2) for _ in shape), ...)]
    for x in (np.array(gaps, order="C"), np.array(gaps, order="F"), gaps):
        found, expected = function(x), shuffled(x, order)
        assert found.shape == expected.shape
        assert np.array_equal(found, expected)
        assert np.shares_memory(found, x)
        # What Numba says of it is what it computes addresses by.
        layout = function.nopython_signatures[-1].return_type.layout
        assert layout != "C" or expected.flags.c_contiguous
        assert layout != "F" or expected.flags.f_contiguous


@pytest.mark.parametrize(
    ("shape", "order", "layout"),
    [
        ((4,), ("x", 0), "C"),
        ((4,), (0, "x"), "C"),
        ((1, 3), (1, "x"), "C"),
        ((4, 1), (0,), "C"),
        ((4, 1), (1, 0), "C"),
        ((4, 3), (1, 0), "F"),
        ((4, 3), (0, "x", 1), "C"),
        ((2, 3, 4), (1, 0, 2), "A"),
    ],
)
def test_numba_knows_that_it_has_no_gaps(
    shape: tuple[int, ...], order: tuple[Any, ...], layout: str
) -> None:
    """Loops over arrays that may have some are slower."""
    function = numbas(shape, order)
    found = function(RNG.normal(size=shape))
    result = function.nopython_signatures[0].return_type
    assert isinstance(result, types.Array)
    assert result.layout == layout
    assert found.shape == shuffled(np.empty(shape), order).shape


def test_a_number_may_take_the_place_of_an_array_without_axes() -> None:
    """Numba has some of them as numbers."""
    assert np.array_equal(numbas((), ("x", "x"))(2.5), [[2.5]])


@pytest.mark.parametrize("dtype", ["float32", "bool"])
def test_any_type(dtype: str) -> None:
    x = pt.tensor(dtype=dtype, shape=(None, 1))
    node = Shuffle(input_ndim=2, new_order=("x", 0)).make_node(x)
    value = np.array([[1], [0], [1]], dtype=dtype)
    [found] = pytensor.function([x], node.outputs, mode="NUMBA")(value)
    assert found.dtype == dtype
    assert np.array_equal(found, value.T)
