"""Of every n-th draw of a store, memory holds a few chunks at a time."""

from types import EllipsisType
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from xarray import Variable
from xarray.core import indexing

from pymc_deer import store

CHUNK = 10
VALUES = np.arange(4 * 205 * 3).reshape(4, 205, 3)


class Stored:
    """An array that keeps count of the rows between the first and the last that are read."""

    shape, dtype, chunks = VALUES.shape, VALUES.dtype, (4, CHUNK, 3)

    def __init__(self) -> None:
        self.spans: list[int] = []

    def __getitem__(self, key: tuple[Any, ...]) -> np.ndarray:
        rows = np.atleast_1d(np.arange(self.shape[1])[key[1]])
        self.spans.append(int(np.ptp(rows)) + 1 if len(rows) else 0)
        return VALUES[key]


@pytest.mark.parametrize("step", [2, 7, 10, 49, 204, 1000])
@pytest.mark.parametrize("first", [0, 3, 204, 205])
@pytest.mark.parametrize("chain", [..., 1, [0, 2], slice(None, None, 2)])
def test_some_rows_are_read_by_a_few_chunks(
    step: int, first: int, chain: int | list[int] | slice | EllipsisType
) -> None:
    array = Stored()
    lazy = Variable(("chain", "draw", "i"), indexing.LazilyIndexedArray(store._Rows(array)))
    chosen = {} if chain is ... else {"chain": chain}
    found = lazy.isel(draw=slice(first, None, step), **chosen).values
    assert_array_equal(found, VALUES[:, first::step][slice(None) if chain is ... else chain])
    if not isinstance(chain, slice):
        assert max(array.spans) <= max(store._CHUNKS * CHUNK, step + 1)


def test_a_number_is_read() -> None:
    number = store._Rows(np.array(3.0))
    assert Variable((), indexing.LazilyIndexedArray(number)).values == 3.0


def test_all_rows_are_read_at_once() -> None:
    array = Stored()
    lazy = Variable(("chain", "draw", "i"), indexing.LazilyIndexedArray(store._Rows(array)))
    assert_array_equal(lazy.values, VALUES)
    assert array.spans == [205]
