"""Estimating the metric from draws and gradients.

If the draws have covariance A and the gradients covariance B, the metric that minimises the Fisher
divergence between the whitened posterior and a standard normal is the geometric mean
S = A # B^{-1} (Seyboldt, Carlson and Carpenter 2026, "Preconditioning Hamiltonian Monte Carlo by
minimizing Fisher divergence", arXiv:2603.18845; nutpie); its diagonal form is sqrt(var x / var g).
For a Gaussian both A and B^{-1} are the covariance.

How far to trust what few draws show of correlations is not to be guessed: the eigenvectors of S
are learnt from one half of a window and the eigenvalues from the other, and what the two ways round
find is averaged, as Lam does for a covariance (2016, "Nonparametric eigenvalue-regularized
precision or covariance matrix estimator", Annals of Statistics 44). Noise points nowhere in the
other half, where its eigenvalues are near 1. Of a Gaussian the noise of A and that of B cancel, and
both halves agree as soon as each has as many draws as dimensions.

Nor is all that there is worth a rotation. E[z g'] = -I makes the eigenvalues of A B at least 1, by
Cauchy and Schwarz, and those of a Gaussian are 1, whatever its covariance. The mean of their square
roots is the excess here: in the best metric, variances of draws and of gradients are that much
larger than those of a normal, which no linear map cures. Where that is because coordinates have
tails of their own, as in a horseshoe, to rotate them by correlations that stretch less than that
spreads the tails over all.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

import numpy as np
from scipy.linalg import solve_triangular

from pymc_deer.metric import Metric, MetricKind, scaled_metric
from pymc_deer.start import Start
from pymc_deer.warmup.mixing import ROUNDING

_DRAWS_PER_EFFECTIVE = 5.0
"""Transitions counted as one independent draw when deciding how far to trust a variance."""

PRIOR_DRAWS = 2.0
"""Weight of the identity in the covariances, in transitions: enough to invert them. For a Gaussian
the noise of A and of B cancels, so that more would only hide strong correlations; with less, few
draws of a posterior that is far from one decide too much."""

_LARGEST_CHANGE = np.log(1e6)
"""Bound on the change of a log variance in one update."""

_SMALLEST_COMMON = 1e-3
"""Smallest of the scales below, relative to the largest, with which a geometric mean, of matrices
that hold their squares, is computed in double precision."""

_LARGEST_EXCESS = 4.0
"""Of tails that all coordinates share, as those of Student's t distribution, correlations are no
worse a guide than those of a Gaussian: no more is lost than what stretches by less."""

_Covariances = tuple[np.ndarray, np.ndarray]
"""Of draws and of gradients."""


@dataclass(frozen=True)
class Moments:
    """Count, means and second moments of draws and gradients of C chains, in whitened coordinates.

    Second moments are about the mean of each chain: matrices for a dense metric, vectors for the
    others.

    Attributes
    ----------
    count
        Draws of all chains; each has as many.
    z_means, g_means
        Each chain's means, (C, D).
    z_scatter, g_scatter
        Centred second moments, summed over all draws.
    """

    count: int
    z_means: np.ndarray
    z_scatter: np.ndarray
    g_means: np.ndarray
    g_scatter: np.ndarray

    @classmethod
    def joined(cls, parts: Sequence["Moments"]) -> "Moments":
        """Those of all columns, from those of some and the next ones; not for a dense metric."""
        names = ("z_means", "z_scatter", "g_means", "g_scatter")
        arrays = ([getattr(part, name) for part in parts] for name in names)
        return cls(parts[0].count, *(np.concatenate(of_parts, axis=-1) for of_parts in arrays))

    def of_columns(self, which: slice) -> "Moments":
        """Those of some columns; of all of them for a dense metric."""
        return Moments(
            self.count,
            *(self.z_means[..., which], self.z_scatter[..., which]),
            *(self.g_means[..., which], self.g_scatter[..., which]),
        )

    @classmethod
    def of(cls, z: np.ndarray, dlogp: np.ndarray, kind: MetricKind) -> "Moments":
        """Moments of n draws and gradients of each chain, both (C, n, D)."""
        n_chains, n, _ = z.shape
        (z_means, z_scatter), (g_means, g_scatter) = (
            _means_and_scatter(rows, kind) for rows in (z, dlogp)
        )
        return cls(n_chains * n, z_means, z_scatter, g_means, g_scatter)

    def merged(self, other: "Moments") -> "Moments":
        """With later draws of the same chains (Chan, Golub and LeVeque 1983)."""
        count = self.count + other.count
        weight = self.count * other.count / count / len(self.z_means)
        share = other.count / count
        z_shifts, g_shifts = other.z_means - self.z_means, other.g_means - self.g_means
        kind = self._kind
        return Moments(
            count,
            self.z_means + share * z_shifts,
            self.z_scatter + other.z_scatter + weight * _scatter(z_shifts, kind),
            self.g_means + share * g_shifts,
            self.g_scatter + other.g_scatter + weight * _scatter(g_shifts, kind),
        )

    def beside(self, other: "Moments") -> "Moments":
        """Moments of these chains and of others that have made as many draws each."""
        return Moments(
            self.count + other.count,
            np.concatenate([self.z_means, other.z_means]),
            self.z_scatter + other.z_scatter,
            np.concatenate([self.g_means, other.g_means]),
            self.g_scatter + other.g_scatter,
        )

    def as_one_chain(self) -> "Moments":
        """Moments about the mean of all draws."""
        n, kind = self.count / len(self.z_means), self._kind
        means = [np.mean(means, axis=0) for means in (self.z_means, self.g_means)]
        z_between, g_between = (
            n * _scatter(of_chains - mean, kind)
            for of_chains, mean in zip((self.z_means, self.g_means), means, strict=True)
        )
        z_scatter, g_scatter = self.z_scatter + z_between, self.g_scatter + g_between
        return Moments(self.count, means[0][None], z_scatter, means[1][None], g_scatter)

    @property
    def z_mean(self) -> np.ndarray:
        """Mean of all draws, shape (D,)."""
        return np.mean(self.z_means, axis=0)

    @property
    def z_variance(self) -> np.ndarray:
        """Variances of the draws, shape (D,); 0 where they did not move."""
        return _variance(self.z_scatter, _largest(self.z_means), self.count)

    @property
    def g_variance(self) -> np.ndarray:
        """Variances of the gradients, shape (D,); 0 where they did not change."""
        largest = _largest(self.g_means)
        if self.g_scatter.ndim == 2:
            # Whitening spreads the roundings of each coordinate over those that follow.
            spread = np.sqrt(_diagonal(self.g_scatter) / self.count)
            largest = np.full_like(largest, np.fmax.reduce(largest + spread))
        return _variance(self.g_scatter, largest, self.count)

    @property
    def _kind(self) -> MetricKind:
        return "dense" if self.z_scatter.ndim == 2 else "diag"


def first_metric(kind: MetricKind, starts: Sequence[Start]) -> Metric:
    """A metric to begin with, from where chains start and the gradients there.

    A coordinate as far from its mean as it would be had one started at a distance of 1 has the
    variance 1 / |g| (nutpie). Gradients smaller than the median one are taken for as large: a
    scale too small costs the first window some steps, one too large halves all coordinates' step
    size again and again.
    """
    mu = np.mean([start.x for start in starts], axis=0, dtype=float)
    size = np.mean([np.abs(start.dlogp) for start in starts], axis=0, dtype=float)
    size = np.hypot(size, np.median(size))
    log_variance = -np.log(np.where(size > 0, size, 1.0))
    bounded = np.clip(log_variance, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    return scaled_metric(kind, mu, np.exp(bounded / 2))


def estimate_metric(halves: Sequence[Moments], old: Metric) -> Metric:
    """The metric seen in one warm-up window, relative to the one it was run with.

    Everything is estimated in the old metric's whitened coordinates, and scales are shrunk towards
    it; a coordinate that never moved keeps its own.

    Parameters
    ----------
    halves
        Moments of two parts of the window, or of all of it, which tells scales alone.
    old
        The metric they were run with.
    """
    moments = merged(halves)
    scale = relative_scale(moments)
    mu = centre(moments, old)
    if old.kind == "diag" or len(halves) == 1:
        return Metric(mu, old.factor * scale)
    factor = old.factor @ (scale[:, None] * np.linalg.cholesky(_correlated(halves)))
    excess = np.mean([_excess(half) for half in halves])
    return Metric(mu, _without_weak(factor, min(float(excess), _LARGEST_EXCESS)))


def centre(moments: Moments, old: Metric) -> np.ndarray:
    """The mean in x, shape (D,), of draws whose moments were seen with the metric `old`."""
    return old.to_x(np.where(np.isfinite(moments.z_mean), moments.z_mean, 0.0))


def merged(parts: Sequence[Moments]) -> Moments:
    """Moments of all parts of a window together."""
    return reduce(Moments.merged, parts)


def _correlated(halves: Sequence[Moments]) -> np.ndarray:
    """S of coordinates that are scaled alike, by two halves crosswise."""
    first, second = (_covariances(half) for half in halves)
    return (_crossed(first, second) + _crossed(second, first)) / 2


def _crossed(learnt: _Covariances, held: _Covariances) -> np.ndarray:
    """A # B^{-1} with the eigenvectors of one half and the eigenvalues of the other."""
    _, vectors = np.linalg.eigh(geometric_mean_with_inverse(*learnt))
    draws, gradients = (np.sum(vectors * (of @ vectors), axis=0) for of in held)
    return (vectors * np.sqrt(draws / gradients)) @ vectors.T


def _excess(moments: Moments) -> float:
    """How much more draws and gradients vary than those of a normal, in the best metric.

    The mean over directions, which is near 1 for few draws of a Gaussian too: of these the
    eigenvalues of A B are the squares of those of A relative to the covariance.
    """
    g_var = moments.g_variance
    moved = _moved(moments.z_variance, g_var)
    if not moved.any():
        return 1.0
    scales, among = np.sqrt(g_var[moved]), np.ix_(moved, moved)
    draws = moments.z_scatter[among] * np.outer(scales, scales) / moments.count
    gradients = moments.g_scatter[among] / np.outer(scales, scales) / moments.count
    root, _ = _roots(draws)
    middle, _ = _roots(root @ gradients @ root)
    return float(np.trace(middle)) / len(middle)


def _without_weak(factor: np.ndarray, excess: float) -> np.ndarray:
    """The factor of a metric S without the correlations that are weaker than the excess.

    In scales in which S and its inverse have the same diagonal, eigenvalues within
    [1 / excess, excess] become 1.
    """
    if not excess > 1:
        return factor
    inverse = solve_triangular(factor, np.eye(len(factor)), lower=True)
    scales = (np.sum(factor**2, axis=1) / np.sum(inverse**2, axis=0)) ** 0.25
    scaled = factor / scales[:, None]
    vectors, deviations, _ = np.linalg.svd(scaled)
    weak = np.abs(np.log(deviations)) < np.log(excess) / 2
    # The strong ones keep their digits, which to put all together again would cost.
    vectors, deviations = vectors[:, weak], deviations[weak]
    scaled = scaled + (vectors * (1 / deviations - 1)) @ (vectors.T @ scaled)
    triangular = np.linalg.qr(scaled.T, mode="r").T
    return scales[:, None] * triangular * np.sign(np.diag(triangular))


def _covariances(moments: Moments) -> _Covariances:
    """Of draws and gradients that are scaled alike, correlations shrunk towards none.

    They have equal standard deviations then: the covariances are the two correlation matrices up
    to one common factor per coordinate, which is 1 where nothing moved.
    """
    z_var, g_var = moments.z_variance, moments.g_variance
    moved = _moved(z_var, g_var)
    trust = moments.count / (moments.count + PRIOR_DRAWS)
    z_corr = _shrunk_correlation(moments.z_scatter, moved, trust)
    g_corr = _shrunk_correlation(moments.g_scatter, moved, trust)
    common = np.where(moved, np.sqrt(np.sqrt(z_var * g_var)), 1.0)
    common = np.maximum(common, _SMALLEST_COMMON * common.max())
    return common[:, None] * z_corr * common, common[:, None] * g_corr * common


def relative_scale(moments: Moments, scales: np.ndarray | float = 1.0) -> np.ndarray:
    """What to multiply the scales by: (var z / var g)^(1/4), shrunk towards 1; shape (D,).

    Parameters
    ----------
    scales
        Scales in force, for moments that are not in whitened coordinates.
    """
    z_var, g_var = moments.z_variance / np.square(scales), moments.g_variance * np.square(scales)
    moved = _moved(z_var, g_var)
    ratio = np.where(moved, z_var, 1.0) / np.where(moved, g_var, 1.0)
    effective = moments.count / _DRAWS_PER_EFFECTIVE
    trust = effective / (effective + 1.0)
    log_variance = np.clip(trust * np.log(ratio) / 2, -_LARGEST_CHANGE, _LARGEST_CHANGE)
    return np.exp(log_variance / 2)


def _moved(z_var: np.ndarray, g_var: np.ndarray) -> np.ndarray:
    return (z_var > 0) & (g_var > 0) & np.isfinite(z_var) & np.isfinite(g_var)


def geometric_mean_with_inverse(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """A # B^{-1}, the positive definite S with S B S = A (Bhatia 2007, chapter 4)."""
    root, inverse_root = _roots(b)
    middle, _ = _roots(root @ a @ root)
    mean = inverse_root @ middle @ inverse_root
    return (mean + mean.T) / 2


def _roots(matrix: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Square root of a positive definite matrix, and its inverse."""
    values, vectors = np.linalg.eigh(matrix)
    values = np.sqrt(np.maximum(values, np.finfo(float).tiny))
    return (vectors * values) @ vectors.T, (vectors / values) @ vectors.T


def _shrunk_correlation(scatter: np.ndarray, moved: np.ndarray, trust: float) -> np.ndarray:
    deviation = np.sqrt(np.where(moved, np.diag(scatter), 1.0))
    correlation = np.where(np.outer(moved, moved), scatter, 0.0) / np.outer(deviation, deviation)
    np.fill_diagonal(correlation, 1.0)
    return trust * correlation + (1.0 - trust) * np.eye(len(scatter))


def _means_and_scatter(rows: np.ndarray, kind: MetricKind) -> tuple[np.ndarray, np.ndarray]:
    """Means of rows (C, n, D), (C, D), and second moments about them, summed over all rows."""
    _, n, size = rows.shape
    rows = rows.astype(float, copy=False)
    # What mean and sum do, less what they ask first: for few rows that takes longer.
    means = np.add.reduce(rows, axis=1) / n
    return means, _scatter((rows - means[:, None]).reshape(-1, size), kind)


def _scatter(centred: np.ndarray, kind: MetricKind) -> np.ndarray:
    return centred.T @ centred if kind == "dense" else np.add.reduce(centred**2, axis=0)


def _variance(scatter: np.ndarray, largest: np.ndarray, count: int) -> np.ndarray:
    """Variances, 0 where they are within roundings of numbers as large as `largest`."""
    variance = _diagonal(scatter) / count
    return np.where(variance > (ROUNDING * largest) ** 2, variance, 0.0)


def _largest(means: np.ndarray) -> np.ndarray:
    return np.maximum.reduce(np.abs(means), axis=0)


def _diagonal(scatter: np.ndarray) -> np.ndarray:
    return scatter if scatter.ndim == 1 else np.diag(scatter)
