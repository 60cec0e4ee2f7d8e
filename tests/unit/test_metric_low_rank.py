"""The low-rank metric: correlations that scales cannot whiten are found, and no others."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_deer.warmup.metric_low_rank
from pymc_deer.metric import Metric, identity_metric
from pymc_deer.warmup.metric_estimate import Moments
from pymc_deer.warmup.metric_low_rank import (
    MAX_RANK,
    Sample,
    _Expected,
    _orthonormal,
    estimate_low_rank,
)

SIZE = 150


def estimated(covariance: np.ndarray, n: int = 5000, rounds: int = 2) -> Metric:
    """The metric from independent draws of N(1, covariance)."""
    size = len(covariance)
    x = np.random.default_rng(0).multivariate_normal(np.ones(size), covariance, n)
    dlogp = -np.linalg.solve(covariance, (x - 1.0).T).T
    metric = identity_metric("low_rank", size)
    sample = Sample().extended(x[None], dlogp[None], 0)
    for _ in range(rounds):
        metric = estimate_low_rank(
            Moments.of(x[None], dlogp[None], "low_rank"), sample, metric, 1.5
        )
    return metric


def whitened_eigenvalues(covariance: np.ndarray, metric: Metric) -> np.ndarray:
    inverse = np.array([metric.to_z(row + metric.mu) for row in np.linalg.cholesky(covariance).T])
    return np.linalg.eigvalsh(inverse.T @ inverse)


def with_directions(values: np.ndarray) -> np.ndarray:
    """Covariance with the given eigenvalues in random directions, and 1 in all others."""
    rotation, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(SIZE, SIZE)))
    spectrum = np.concatenate([values, np.ones(SIZE - len(values))])
    return (rotation * spectrum) @ rotation.T


def test_few_bad_directions_are_whitened() -> None:
    covariance = with_directions(np.geomspace(0.01, 100.0, 12))
    metric = estimated(covariance)
    scales_only = Metric(metric.mu, metric.factor)
    before = whitened_eigenvalues(covariance, scales_only)
    after = whitened_eigenvalues(covariance, metric)
    assert before[-1] / before[0] > 1000
    assert after[-1] / after[0] < 6
    assert_allclose(metric.mu, 1.0, atol=0.5)
    assert_allclose(metric.vectors.T @ metric.vectors, np.diag(metric.weights != 0), atol=1e-10)


def test_scales_alone_need_no_directions() -> None:
    metric = estimated(np.diag(np.geomspace(1e-4, 1e4, SIZE)))
    assert metric.vectors.shape == (SIZE, 0)
    assert_allclose(metric.factor**2 / np.geomspace(1e-4, 1e4, SIZE), 1.0, rtol=0.1)


def test_one_common_direction_takes_one_step_of_rank() -> None:
    covariance = 0.9 + 0.1 * np.eye(SIZE)
    metric = estimated(covariance)
    assert metric.vectors.shape == (SIZE, 8)
    eigenvalues = whitened_eigenvalues(covariance, metric)
    assert eigenvalues[-1] / eigenvalues[0] < 6


@pytest.mark.parametrize(("correlation", "rounds"), [(0.99, 2), (0.9999, 3)])
def test_scales_bring_the_bulk_to_one(correlation: float, rounds: int) -> None:
    """Next to one large direction, which all coordinates share, their own variance is small."""
    covariance = correlation + (1 - correlation) * np.eye(SIZE)
    eigenvalues = whitened_eigenvalues(covariance, estimated(covariance, rounds=rounds))
    assert np.median(eigenvalues) == pytest.approx(1.0, rel=0.2)
    # By the scales of coordinates alone it would not be.
    scales = np.sqrt(np.diag(covariance) / np.diag(np.linalg.inv(covariance))) ** 0.5
    by_scales = whitened_eigenvalues(covariance, Metric(np.ones(SIZE), scales))
    assert abs(np.log(np.median(by_scales))) > 0.5


def test_a_metric_expects_the_covariances_of_what_it_whitens() -> None:
    vectors, _ = np.linalg.qr(np.random.default_rng(1).normal(size=(7, 2)))
    metric = Metric(np.zeros(7), np.ones(7), vectors, np.array([4.0, -0.7]))
    draws, gradients = _Expected.by(metric).along(np.eye(7))
    assert_allclose(draws @ gradients, np.eye(7), atol=1e-12)
    root = metric.scale(np.eye(7))
    assert_allclose(draws / draws[0, 0], root @ root / (root @ root)[0, 0])
    # In units of scales by which both have the same variance, coordinate by coordinate.
    assert np.median(np.diag(draws) / np.diag(gradients)) == pytest.approx(1.0)


def test_rank_is_bounded() -> None:
    metric = estimated(with_directions(np.geomspace(1e-3, 1e3, 100)))
    assert metric.vectors.shape == (SIZE, MAX_RANK)


def test_few_draws_change_little() -> None:
    covariance = with_directions(np.geomspace(0.01, 100.0, 12))
    few, many = estimated(covariance, 8, 1), estimated(covariance, 5000, 1)
    largest = [np.abs(np.log1p(m.weights)).max(initial=0.0) for m in (few, many)]
    assert largest[0] < largest[1] / 2


def test_still_and_non_finite_draws_leave_a_usable_metric() -> None:
    x = np.random.default_rng(0).normal(size=(50, 5))
    x[:, 2], dlogp = 1.25, -x
    dlogp[3, 1] = np.nan
    old = Metric(np.zeros(5), np.full(5, 2.0), np.zeros((5, 0)), np.zeros(0))
    moments = Moments.of(x[None], dlogp[None], "low_rank")
    metric = estimate_low_rank(moments, Sample().extended(x[None], dlogp[None], 0), old, 1.5)
    assert all(np.isfinite(array).all() for array in metric.arrays)
    assert metric.factor[2] == pytest.approx(2.0, rel=0.5)


def test_noise_is_no_direction() -> None:
    """Gradients that have nothing to do with positions: only the other half can tell."""
    rng = np.random.default_rng(3)
    size, old = 200, identity_metric("low_rank", 200)
    x, dlogp = rng.normal(size=(2, 1, 400, size))
    moments = Moments.of(x, dlogp, "low_rank")
    assert not estimate_low_rank(moments, Sample().extended(x, dlogp, 0), old, 1.5).weights.any()
    # Which they would be if both halves had the same noise.
    x, dlogp = (np.concatenate([of[:, :100], of[:, :100]] * 2, axis=1) for of in (x, dlogp))
    fooled = estimate_low_rank(moments, Sample().extended(x, dlogp, 0), old, 1.5)
    assert np.count_nonzero(fooled.weights) > 8


def test_the_distance_between_modes_is_no_direction() -> None:
    """Chains that have gone to different modes, of one shape, learn that shape."""
    rng = np.random.default_rng(3)
    z = rng.normal(size=(4, 500, SIZE))
    z[..., 0] *= 10.0
    dlogp = -z / np.where(np.arange(SIZE) == 0, 100.0, 1.0)
    old = identity_metric("low_rank", SIZE)
    found = []
    for apart in (0.0, 1000.0):
        x = z + apart * np.random.default_rng(4).normal(size=(4, 1, SIZE))
        sample = Sample()
        for first in range(4):
            sample = sample.extended(x[[first]], dlogp[[first]], 0, first_chain=first)
        moments = Moments.of(x, dlogp, "low_rank")
        found.append(estimate_low_rank(moments, sample, old, 1.5))
    together, apart = found
    assert apart.vectors.shape == together.vectors.shape
    assert_allclose(apart.factor, together.factor, rtol=1e-6)


@pytest.mark.parametrize("kept_by_themselves", [False, True])
def test_sample_holds_no_more_memory_than_its_rows(
    kept_by_themselves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row that is a view of the stretch it is from would hold all of that."""
    monkeypatch.setattr(pymc_deer.warmup.metric_low_rank, "_LONG", 1 if kept_by_themselves else 999)
    sample, stretch = Sample(), np.ones((2, 4, SIZE))
    for i in range(1200):
        sample = sample.extended(stretch, stretch, 4 * i)
    # Of most stretches one row or none.
    assert sample.stride == 16
    assert all(array.base is None for part in sample.parts for array in part)


def test_basis_is_orthonormal_and_spans_what_is_not_nearly_the_same() -> None:
    rng = np.random.default_rng(5)
    scales = np.geomspace(1e-8, 1e8, 12)
    apart = rng.normal(size=(1000, 12))
    for near, n_found in ((1e-3, 24), (1e-7, 12)):
        beside = apart @ rng.normal(size=(12, 12)) + near * rng.normal(size=(1000, 12))
        columns = np.hstack([apart * scales, beside])
        basis = _orthonormal(columns)
        assert basis.shape == (1000, n_found)
        assert_allclose(basis.T @ basis, np.eye(n_found), atol=1e-13)
        expected, _ = np.linalg.qr(apart)
        assert_allclose(basis @ (basis.T @ expected), expected, atol=1e-6)


@pytest.mark.parametrize("kept_by_themselves", [False, True])
@pytest.mark.parametrize("n_chains", [1, 3, 4, 700])
def test_sample_is_evenly_spaced_however_it_is_fed(
    n_chains: int, kept_by_themselves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pymc_deer.warmup.metric_low_rank, "_LONG", 1 if kept_by_themselves else 999)
    n = 5000 if n_chains < 10 else 100
    rows = np.arange(n) + 1e5 * np.arange(n_chains)[:, None]
    found = []
    for cuts in ([], [1, 2, n // 14, n // 14 + 5, n - 10]):
        for together in (True, False):
            sample, before = Sample(), 0
            for piece in np.split(rows[..., None], cuts, axis=1):
                groups = [piece] if together else [chain[None] for chain in piece]
                for first, group in enumerate(groups):
                    sample = sample.extended(group, -group, before, first_chain=first)
                before += piece.shape[1]
            draws, dlogp, chains, _ = sample.together
            assert_array_equal(dlogp, -draws)
            assert_array_equal(chains, draws[:, 0] // 1e5)
            # Where chains are short, few of them have rows of the first and the last turns.
            assert (512 if n_chains < 10 else 400) <= len(draws) <= 1024
            assert not ((draws[:, 0] % 1e5 + chains) % sample.stride).any()
            found.append(np.sort(draws[:, 0]))
            of_chains = [found[-1][found[-1] // 1e5 == chain] for chain in range(n_chains)]
            if n_chains < 10:
                assert set(np.diff(of_chains[0])) == {sample.stride}
            counts = [len(of_chain) for of_chain in of_chains]
            assert max(counts) - min(counts) <= 1
    for other in found[1:]:
        assert_array_equal(other, found[0])
