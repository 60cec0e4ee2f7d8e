"""What is computed of a draw does not depend on how many others are computed with it."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_deer.batches import as_many, in_batches


@pytest.mark.parametrize("size", [3, 10, 40])
def test_a_row_is_the_same_among_any_number(size: int) -> None:
    rng = np.random.default_rng(size)
    rows, matrix = rng.normal(size=(300, size)), rng.normal(size=(size, size))
    [whole] = in_batches(lambda x: [x @ matrix], rows, 64)
    np.testing.assert_allclose(whole, rows @ matrix, rtol=1e-12, atol=1e-12)
    for first, last in ((0, 1), (0, 2), (5, 12), (37, 101), (100, 299), (299, 300)):
        [some] = in_batches(lambda x: [x @ matrix], rows[first:last], 64)
        assert_array_equal(some, whole[first:last])


@pytest.mark.parametrize("length", [1, 4, 7, 100])
def test_the_place_of_a_row_in_its_batch_follows_from_its_number(length: int) -> None:
    """Products round by it: here places are what is computed."""
    rows = np.arange(30.0)[:, None]
    [places] = in_batches(lambda _: [np.arange(length)], rows, length)
    assert_array_equal(places, np.arange(30) % length)
    for first, last in ((0, 3), (2, 9), (7, 8), (13, 30)):
        [own, same] = in_batches(
            lambda some: [np.arange(length), some[:, 0]], rows[first:last], length, first
        )
        assert_array_equal(own, places[first:last])
        assert_array_equal(same, rows[first:last, 0])


def test_several_results_of_any_shape() -> None:
    rows = np.arange(10.0).reshape(5, 2)
    sums, outer = in_batches(lambda x: [x.sum(axis=1), x[:, :, None] * x[:, None]], rows, 3)
    assert sums.shape == (5,)
    assert_array_equal(outer[4], np.outer(rows[4], rows[4]))


def test_a_batch_is_filled_up_with_its_first() -> None:
    assert as_many([5, 6], 4) == [5, 6, 5, 5]
    assert as_many([5, 6], 2) == [5, 6]
