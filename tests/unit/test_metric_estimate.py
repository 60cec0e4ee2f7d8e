"""Estimating the metric: a Gaussian's covariance is recovered from its draws and gradients."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal, assert_array_less

from pymc_deer.metric import KINDS, Metric, MetricKind, identity_metric
from pymc_deer.start import Start
from pymc_deer.warmup.metric_estimate import (
    Moments,
    estimate_metric,
    first_metric,
    geometric_mean_with_inverse,
    merged,
)

SIZE = 5


def gaussian(seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Mean and a covariance with scales over four orders of magnitude."""
    rng = np.random.default_rng(seed)
    root = rng.normal(size=(SIZE, SIZE)) + 2 * np.eye(SIZE)
    scales = np.geomspace(0.01, 100.0, SIZE)
    return rng.normal(size=SIZE), scales[:, None] * (root @ root.T) * scales


def halves(z: np.ndarray, dlogp: np.ndarray, kind: MetricKind) -> list[Moments]:
    """Moments of every other draw of (C, n, D), and of those between."""
    return [Moments.of(z[:, i::2], dlogp[:, i::2], kind) for i in range(2)]


def seen(metric: Metric, n: int, seed: int = 1) -> list[Moments]:
    """Two halves of n independent draws of :func:`gaussian`, in the metric's coordinates."""
    mean, covariance = gaussian()
    x = np.random.default_rng(seed).multivariate_normal(mean, covariance, n)
    factor = np.diag(metric.factor) if metric.kind == "diag" else metric.factor
    z = metric.unscale(x - metric.mu)
    dlogp = -np.linalg.solve(covariance, (x - mean).T).T
    return halves(z[None], (dlogp @ factor)[None], metric.kind)


def scales_off(kind: MetricKind) -> Metric:
    """A start that is wrong by different factors for each coordinate."""
    scales = np.geomspace(3.0, 0.1, SIZE)
    return Metric(np.ones(SIZE), scales if kind == "diag" else np.diag(scales))


@pytest.mark.parametrize("kind", KINDS)
def test_first_metric_has_the_scales_of_coordinates_a_distance_of_one_from_their_means(
    kind: MetricKind,
) -> None:
    variances = np.geomspace(1e-4, 1.0, SIZE)
    starts = [Start(np.full(SIZE, x), -x / variances) for x in (1.0, -1.0)]
    metric = first_metric(kind, starts)
    assert metric.kind == kind
    assert_array_equal(metric.mu, 0.0)
    basis = np.eye(SIZE)
    scales = np.diag(metric.scale(basis))
    assert_array_equal(metric.scale(basis), np.diag(scales))
    # Steeper than the median coordinate, they are met; flatter ones are taken for the median.
    assert_allclose(scales[:2] ** 2, variances[:2], rtol=0.01)
    assert_allclose(scales[-1] ** 2, variances[SIZE // 2], rtol=0.01)
    assert scales[2] ** 2 == pytest.approx(variances[2] / np.sqrt(2))


@pytest.mark.parametrize("size", [0.0, 1e-300, 1e300])
def test_first_metric_is_usable_whatever_the_gradients(size: float) -> None:
    dlogp = np.array([0.0, size, -size])
    for rows in (dlogp, dlogp[:2], dlogp[1:]):
        factor = first_metric("diag", [Start(np.zeros(len(rows)), rows)]).factor
        assert (factor >= 1e-3 * 0.99).all()
        assert (factor <= 1e3 * 1.01).all()
    assert_array_equal(first_metric("diag", [Start(np.ones(3), np.zeros(3))]).factor, 1.0)


@pytest.mark.parametrize("start", [identity_metric("dense", SIZE), scales_off("dense")])
def test_dense_metric_whitens_a_gaussian(start: Metric) -> None:
    metric = start
    for seed in range(3):
        metric = estimate_metric(seen(metric, 4000, seed), metric)
    mean, covariance = gaussian()
    inverse = np.linalg.inv(metric.factor)
    # The geometric mean of A and B^-1 is exact for a Gaussian; what is left is shrinkage.
    whitened = inverse @ covariance @ inverse.T
    assert_allclose(np.linalg.eigvalsh(whitened), 1.0, atol=0.05)
    assert_array_equal(metric.factor, np.tril(metric.factor))
    assert_allclose(metric.to_z(mean), 0.0, atol=0.1)


@pytest.mark.parametrize("start", [identity_metric("diag", SIZE), scales_off("diag")])
def test_diagonal_metric_minimises_the_fisher_divergence(start: Metric) -> None:
    metric = start
    for seed in range(3):
        metric = estimate_metric(seen(metric, 4000, seed), metric)
    _, covariance = gaussian()
    variance, precision = np.diag(covariance), np.diag(np.linalg.inv(covariance))
    assert metric.kind == "diag"
    assert_allclose(metric.factor**2, np.sqrt(variance / precision), rtol=0.1)


def test_a_gaussian_of_many_dimensions_is_whitened_by_few_draws() -> None:
    """Two in each half to a dimension: the noise of draws and that of gradients cancel."""
    size = 30
    rng = np.random.default_rng(7)
    root = np.linalg.qr(rng.normal(size=(size, size)))[0] * np.geomspace(0.1, 10.0, size)
    x = rng.normal(size=(1, 4 * size, size)) @ root.T
    dlogp = -x @ np.linalg.inv(root @ root.T)
    metric = identity_metric("dense", size)
    for _ in range(3):
        z = metric.unscale(x[0] - metric.mu)[None]
        metric = estimate_metric(halves(z, dlogp @ metric.factor, "dense"), metric)
    whitened = np.linalg.svd(np.linalg.solve(metric.factor, root), compute_uv=False)
    assert_allclose(whitened, 1.0, atol=0.1)


def test_noise_is_not_taken_for_correlation() -> None:
    """Gradients that have nothing to do with positions: only the other half can tell."""
    size = 30
    z, dlogp = np.random.default_rng(7).normal(size=(2, 1, 2 * size, size))
    start, (first, second) = identity_metric("dense", size), halves(z, dlogp, "dense")
    variances = np.linalg.svd(estimate_metric([first, second], start).factor)[1] ** 2
    assert_allclose(variances, 1.0, atol=0.5)
    # Which they could not if eigenvalues were those that the eigenvectors were learnt with.
    fooled = np.linalg.svd(estimate_metric([first, first], start).factor)[1] ** 2
    assert fooled.max() > 3
    assert fooled.min() < 1 / 3


@pytest.mark.parametrize(
    ("tail", "weak", "strong"), [(2.0, 1.8, 2.5), (4.0, 3.5, 4.6), (1.0, 1.1, 1.3)]
)
def test_correlations_weaker_than_the_excess_are_left_out(
    tail: float, weak: float, strong: float
) -> None:
    """Pairs of coordinates, of which draws are `tail` times as far or as near, as often.

    The excess is the mean of tail^2 and its inverse, 2.1 and 8, of which 4 count; for a normal 1.
    Correlations stretch one pair by less and the other by more, but of the normal.
    """
    covariance = np.eye(SIZE)
    stretches = np.array([weak, strong])
    covariance[[0, 2], [1, 3]] = covariance[[1, 3], [0, 2]] = _correlation(stretches)
    scales = np.geomspace(0.01, 100.0, SIZE)
    covariance *= np.outer(scales, scales)
    rng = np.random.default_rng(5)
    far = rng.choice([tail, 1 / tail], size=(8000, 3))[:, [0, 0, 1, 1, 2]]
    x = far * rng.multivariate_normal(np.zeros(SIZE), covariance, len(far))
    dlogp = -(x / far) @ np.linalg.inv(covariance) / far
    metric = identity_metric("dense", SIZE)
    for _ in range(4):
        z = metric.unscale(x - metric.mu)[None]
        metric = estimate_metric(halves(z, (dlogp @ metric.factor)[None], "dense"), metric)
    found = metric.factor @ metric.factor.T
    kept = _correlation(stretches) * (1 if tail == 1 else np.array([0, 1]))
    correlations = found / np.sqrt(np.outer(np.diag(found), np.diag(found)))
    assert_allclose(correlations[[0, 2], [1, 3]], kept, atol=0.02)
    # Scales are those of a diagonal metric where correlations are none.
    dropped = np.sqrt(1 - _correlation(stretches) ** 2)
    variances = np.array([*np.repeat(np.where(kept == 0, dropped, 1.0), 2), 1.0])
    assert_allclose(np.diag(found) / scales**2, variances, rtol=0.1)
    assert_array_equal(metric.factor, np.tril(metric.factor))
    assert_array_less(0.0, np.diag(metric.factor))


def _correlation(stretch: np.ndarray) -> np.ndarray:
    """Of two coordinates whose eigenvalues, with scales, are the stretch and its inverse."""
    return (stretch**2 - 1) / (stretch**2 + 1)


@pytest.mark.parametrize("away", [0.0, 30.0])
def test_windows_of_a_stretched_gaussian_learn_it_from_the_first_on(away: float) -> None:
    """Few draws, or draws on their way to the rest, are no sign of tails."""
    size, n_chains = 30, 4
    rng = np.random.default_rng(9)
    rotation = np.linalg.qr(rng.normal(size=(size, size)))[0]
    root = rotation * np.geomspace(0.01, 100.0, size)
    metric, conditions = identity_metric("dense", size), []
    for window in range(4):
        n = 12 * 2**window
        drift = away * np.linspace(1, 0, n)[:, None] * (window < 2)
        x = (rng.normal(size=(n_chains, n, size)) + drift) @ root.T
        dlogp = -x @ np.linalg.inv(root @ root.T)
        z = np.array([[metric.to_z(row) for row in chain] for chain in x])
        moments = [m.as_one_chain() for m in halves(z, dlogp @ metric.factor, "dense")]
        metric = estimate_metric(moments, metric)
        conditions.append(np.linalg.cond(np.linalg.solve(metric.factor, root)))
    assert conditions[-1] < 3, conditions


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_a_window_that_is_not_in_halves_tells_scales_alone(kind: MetricKind) -> None:
    start = scales_off(kind)
    whole = merged(seen(start, 4000))
    metric = estimate_metric([whole], start)
    scales = start.factor if kind == "diag" else np.diag(start.factor)
    scales = scales * np.minimum((whole.z_variance / whole.g_variance) ** 0.25, 1000.0)
    assert_allclose(metric.factor, scales if kind == "diag" else np.diag(scales), rtol=0.02)


def test_few_draws_that_are_noise_change_little() -> None:
    for seed in range(20):
        z, dlogp = np.random.default_rng(seed).normal(size=(2, 1, 6, SIZE))
        metric = estimate_metric(halves(z, dlogp, "dense"), identity_metric("dense", SIZE))
        scales = np.linalg.svd(metric.factor, compute_uv=False)
        assert_array_less(np.abs(np.log(scales)), np.log(2))


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_merged_moments_are_those_of_both_samples(kind: MetricKind) -> None:
    rng = np.random.default_rng(3)
    z, g = rng.normal(3.0, 2.0, (4, 30, SIZE)), rng.normal(-50.0, 7.0, (4, 30, SIZE))
    z += 10 * rng.normal(size=(4, 1, SIZE))
    parts = [Moments.of(z[:, a:b], g[:, a:b], kind) for a, b in ((0, 1), (1, 12), (12, 30))]
    together = merged(parts)
    whole = Moments.of(z, g, kind)
    assert together.count == whole.count == 120
    for name in ("z_means", "z_scatter", "g_means", "g_scatter", "z_variance", "g_variance"):
        assert_allclose(getattr(together, name), getattr(whole, name), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_variances_are_those_of_the_sample(kind: MetricKind) -> None:
    rng = np.random.default_rng(3)
    z, g = rng.normal(size=(3, 20, SIZE)), rng.normal(size=(3, 20, SIZE))
    moments = Moments.of(z, g, kind)
    assert_allclose(moments.z_mean, z.mean(axis=(0, 1)), rtol=1e-12)
    assert_allclose(moments.z_variance, z.var(axis=1).mean(axis=0), rtol=1e-12)
    assert_allclose(moments.g_variance, g.var(axis=1).mean(axis=0), rtol=1e-12)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_chains_beside_each_other_are_those_seen_at_once(kind: MetricKind) -> None:
    rng = np.random.default_rng(5)
    z, g = rng.normal(size=(3, 20, SIZE)), rng.normal(size=(3, 20, SIZE))
    whole, first = Moments.of(z, g, kind), Moments.of(z[:1], g[:1], kind)
    beside = first.beside(Moments.of(z[1:], g[1:], kind))
    for name, value in vars(whole).items():
        assert_allclose(getattr(beside, name), value, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_chains_taken_as_one_have_the_moments_of_all_draws(kind: MetricKind) -> None:
    rng = np.random.default_rng(9)
    z, g = (rng.normal(size=(3, 20, SIZE)) + rng.normal(size=(3, 1, SIZE)) for _ in range(2))
    one = Moments.of(z.reshape(1, -1, SIZE), g.reshape(1, -1, SIZE), kind)
    for name, value in vars(Moments.of(z, g, kind).as_one_chain()).items():
        assert_allclose(value, getattr(one, name), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_the_distance_between_modes_is_no_scale(kind: MetricKind) -> None:
    """Chains that have gone to different modes, of one shape, learn that shape."""
    rng = np.random.default_rng(8)
    apart = 1000.0 * rng.normal(size=(4, 1, SIZE))
    z = rng.normal(size=(4, 500, SIZE))
    start = scales_off(kind)
    there, here = (estimate_metric(halves(z + d, -z, kind), start) for d in (apart, 0 * apart))
    assert_allclose(there.factor, here.factor, rtol=1e-8, atol=1e-8)
    assert_allclose(there.mu, start.to_x((z + apart).mean(axis=(0, 1))), rtol=1e-10)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_coordinate_that_never_moved_keeps_its_scale(kind: MetricKind) -> None:
    rng = np.random.default_rng(4)
    z = rng.normal(0.0, 3.0, (500, SIZE))
    z[:, 2] = 1.25
    start = scales_off(kind)
    metric = estimate_metric(halves(z[None], -z[None] / 9, kind), start)
    before, after = (m.factor if kind == "diag" else np.diag(m.factor) for m in (start, metric))
    assert after[2] == pytest.approx(before[2])
    moved = np.arange(SIZE) != 2
    assert_allclose(after[moved] / before[moved], 3.0, rtol=0.1)
    assert np.isfinite(metric.mu).all()


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_flat_direction_keeps_its_scale(kind: MetricKind) -> None:
    """Whitening mixes roundings of the other gradients into one that is 0."""
    rng = np.random.default_rng(6)
    root = np.tril(rng.normal(size=(SIZE, SIZE)), -1) + np.eye(SIZE)
    root[2, :], root[:, 2] = 0.0, 0.0
    precision = np.linalg.pinv(root @ root.T)
    precision[2, :], precision[:, 2] = 0.0, 0.0
    metric = identity_metric(kind, SIZE)
    for _ in range(4):
        x = rng.normal(size=(80, SIZE)) @ root.T
        x[:, 2] = rng.uniform(size=80)
        factor = np.diag(metric.factor) if kind == "diag" else metric.factor
        z = metric.unscale(x - metric.mu)
        metric = estimate_metric(halves(z[None], -(x @ precision @ factor)[None], kind), metric)
    scales = metric.factor if kind == "diag" else np.diag(metric.factor)
    assert scales[2] == pytest.approx(1.0)


@pytest.mark.parametrize("weak", [1e-3, 1e-8, 1e-12])
def test_a_nearly_flat_direction_leaves_the_metric_positive_definite(weak: float) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        z = rng.normal(size=(80, SIZE)) @ np.linalg.cholesky(0.5 + 0.5 * np.eye(SIZE)).T
        g = -z + rng.normal(size=z.shape)
        g[:, 1] *= weak
        metric = estimate_metric(halves(z[None], g[None], "dense"), identity_metric("dense", SIZE))
        assert (np.diag(metric.factor) > 0).all()


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_nothing_moved_changes_nothing(kind: MetricKind) -> None:
    start = identity_metric(kind, SIZE)
    still = np.zeros((10, SIZE))
    metric = estimate_metric(halves(still[None], still[None], kind), start)
    assert_allclose(metric.factor, start.factor)


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_non_finite_gradients_leave_a_usable_metric(kind: MetricKind) -> None:
    """Of the coordinates that have others it is as good as any."""
    z = np.random.default_rng(4).normal(0.0, 3.0, size=(50, SIZE))
    g = -z / 9
    g[3, 1] = np.nan
    metric = estimate_metric(halves(z[None], g[None], kind), identity_metric(kind, SIZE))
    assert np.isfinite(metric.factor).all()
    assert np.isfinite(metric.mu).all()
    scales = metric.factor if kind == "diag" else np.linalg.norm(metric.factor, axis=1)
    assert scales[1] == pytest.approx(1.0)
    assert_allclose(np.delete(scales, 1), 3.0, rtol=0.25)


def test_geometric_mean_solves_its_equation() -> None:
    rng = np.random.default_rng(5)
    a, b = (root @ root.T + 0.1 * np.eye(SIZE) for root in rng.normal(size=(2, SIZE, SIZE)))
    mean = geometric_mean_with_inverse(a, b)
    assert_array_equal(mean, mean.T)
    assert (np.linalg.eigvalsh(mean) > 0).all()
    assert_allclose(mean @ b @ mean, a, rtol=1e-9, atol=1e-9)


def test_geometric_mean_of_a_matrix_and_its_inverse_is_the_matrix() -> None:
    _, covariance = gaussian()
    mean = geometric_mean_with_inverse(covariance, np.linalg.inv(covariance))
    assert_allclose(mean, covariance, rtol=1e-6)
