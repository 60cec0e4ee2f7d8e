"""Autocorrelation times by batch means, whatever number of rows comes."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_deer.warmup.mixing import BatchMeans, are_apart, autocorrelation_time
from tests.support import autoregressive


def fed(rows: np.ndarray) -> BatchMeans:
    batches = BatchMeans()
    for piece in np.array_split(rows, -(-len(rows) // 7)):
        batches.add(piece)
    return batches


def test_pieces_of_any_length_make_the_same_batches() -> None:
    rows = np.random.default_rng(1).normal(size=(1000, 2))
    whole, single = BatchMeans(), BatchMeans()
    whole.add(rows)
    for row in rows:
        single.add(row[None])
    for batches in (whole, single):
        assert batches.count == 1000
        assert_allclose(batches.sums, fed(rows).sums)
        assert_allclose(batches.squares, fed(rows).squares)


@pytest.mark.parametrize("n", [1, 2, 39, 40, 41, 1000, 1023])
def test_batches_cover_the_rows(n: int) -> None:
    rows = np.random.default_rng(0).normal(5.0, 2.0, (n, 3))
    batches = fed(rows)
    assert batches.count == n
    assert len(batches.sums) == -(-n // batches.length) <= 40
    assert n < 40 or len(batches.sums) >= 20
    assert_allclose(np.sum(batches.sums, axis=0) + n * batches.origin, rows.sum(axis=0))


@pytest.mark.parametrize("phi", [0.0, 0.6, 0.9])
def test_time_of_the_slowest_coordinate(phi: float) -> None:
    slow, fast = autoregressive(phi, 20_000), np.random.default_rng(1).normal(size=20_000)
    truth = (1 + phi) / (1 - phi)
    time = fed(np.column_stack([fast, slow])).autocorrelation_time()
    assert truth / 2 <= time <= truth * 2


def test_a_chain_that_hardly_moves() -> None:
    assert fed(autoregressive(0.999, 1000)[:, None]).autocorrelation_time() > 10
    assert fed(np.ones((1, 2))).autocorrelation_time() == 0.0


def test_all_rows_of_a_chain_that_stands_still_are_worth_one() -> None:
    assert fed(np.full((200, 3), 1.7)).autocorrelation_time() == 200


def test_a_first_row_far_from_the_others_hides_no_slowness() -> None:
    """From it on all are counted."""
    rows = autoregressive(0.9, 20_000)[:, None]
    time = fed(rows).autocorrelation_time()
    assert fed(np.vstack([rows[:1] + 8.0, rows])).autocorrelation_time() == pytest.approx(time, 0.1)


@pytest.mark.parametrize("size", [1, 30, 1000])
def test_many_coordinates_are_no_slower_than_one(size: int) -> None:
    """The largest of their times is noise, of all that are equal."""
    times = []
    for seed in range(4):
        rows = np.random.default_rng(seed).normal(size=(4000, size))
        rows[1:] *= np.sqrt(1 - 0.75**2)
        for t in range(1, len(rows)):
            rows[t] += 0.75 * rows[t - 1]
        times.append(fed(rows).autocorrelation_time())
    assert np.mean(times) == pytest.approx(7.0, rel=0.3)


@pytest.mark.parametrize("phi", [0.0, 0.999])
def test_rounding_of_a_large_mean_is_no_slowness_and_hides_none(phi: float) -> None:
    """Such as that of a date as a number: the deviations have eight digits left."""
    rows = autoregressive(phi, 1000)[:, None]
    time = fed(rows).autocorrelation_time()
    assert (time > 10) == (phi > 0)
    assert_allclose(fed(2_458_000.1 + 0.01 * rows).autocorrelation_time(), time, rtol=1e-4)


def test_the_rounding_of_a_coordinate_that_stood_still_is_no_overflow() -> None:
    means = np.array([1e-150, 2e-150, 1e-150])[:, None, None]
    assert_allclose(autocorrelation_time(means, 10.0, np.zeros(1)), 20.0)


def batch_means(chains: np.ndarray) -> np.ndarray:
    """Of 20 batches of each chain, (20, C, D), from (C, n, D)."""
    return chains.reshape(len(chains), 20, -1, chains.shape[2]).mean(axis=2).swapaxes(0, 1)


@pytest.mark.parametrize("phi", [0.0, 0.9, 0.99, 0.999])
def test_slow_chains_are_not_apart(phi: float) -> None:
    """Even those that have yet to leave their starts."""
    for seed in range(20):
        rows = [autoregressive(phi, 1000, 12 * seed + i) for i in range(12)]
        chains = np.reshape(rows, (4, 3, 1000)).swapaxes(1, 2)
        assert not are_apart(batch_means(chains))


def test_chains_in_different_modes_are_apart() -> None:
    chains = np.random.default_rng(0).normal(size=(4, 1000, 3))
    assert not are_apart(batch_means(chains))
    chains[0, :, 1] += 20.0
    means = batch_means(chains)
    assert are_apart(means)
    assert not are_apart(np.broadcast_to(means[:1], means.shape)), "none has moved at all"
    assert not are_apart(means[:1])
    assert not are_apart(means[:, :1])
