"""Estimating a ``low_rank`` metric: scales, and the directions that scales cannot whiten.

After scaling, the geometric mean A # B^{-1} of the covariance of draws A and of gradients B is
taken in the span of the leading directions of both, and the eigenvectors that are far from whitened
are kept (Seyboldt, Carlson and Carpenter 2026, arXiv:2603.18845; nutpie's low-rank metric).
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.memory import affordable_rows
from pymc_deer.metric import Metric
from pymc_deer.metric_estimate import (
    DRAWS_PER_EFFECTIVE,
    Moments,
    geometric_mean_with_inverse,
    relative_scale,
)

MAX_RANK = 32
"""Most directions k: each costs 4 D multiplications a gradient."""

_RANK_STEP = 8
"""Ranks are rounded up to a multiple of it, as compiled code may be specialised by shape."""

_MAX_ROWS = 512
"""Most draws kept for the estimate."""

_PRIOR_DRAWS = 0.5
"""Weight of the identity in the projected covariances, in draws: enough to invert them. For a
Gaussian the noise of A and of B cancels, so that more would only hide strong correlations."""


@dataclass(frozen=True)
class Sample:
    """Evenly spaced draws and gradients of a warm-up window, at most so many; both (n, D) in x.

    Beside them the chain of each, (n,). When it is full every other row is dropped, and from then
    on taken.
    """

    draws: np.ndarray
    dlogp: np.ndarray
    chains: np.ndarray
    stride: int = 1
    seen: int = 0

    @classmethod
    def empty(cls, size: int) -> "Sample":
        return cls(np.empty((0, size)), np.empty((0, size)), np.empty(0, int))

    def extended(self, draws: np.ndarray, dlogp: np.ndarray, first_chain: int = 0) -> "Sample":
        """With the rows that follow, both (C, n, D), of chains from the given one on."""
        n_chains, n, size = draws.shape
        chains = np.repeat(np.arange(first_chain, first_chain + n_chains), n)
        rows = slice(-self.seen % self.stride, None, self.stride)
        kept = [
            np.concatenate([self.draws, draws.reshape(-1, size)[rows]]),
            np.concatenate([self.dlogp, dlogp.reshape(-1, size)[rows]]),
            np.concatenate([self.chains, chains[rows]]),
        ]
        stride, limit = self.stride, _limit(size)
        while len(kept[0]) > limit:
            kept, stride = [array[::2] for array in kept], 2 * stride
        return Sample(kept[0], kept[1], kept[2], stride, self.seen + n_chains * n)

    def as_one_chain(self) -> "Sample":
        """The same draws, whichever chain made them."""
        return replace(self, chains=np.zeros_like(self.chains))


def _limit(size: int) -> int:
    return int(np.clip(affordable_rows(size), 16, _MAX_ROWS))


def estimate_low_rank(moments: Moments, sample: Sample, old: Metric, white: float) -> Metric:
    """The low-rank metric seen in one warm-up window.

    Parameters
    ----------
    moments
        Second moments of draws and gradients in x, as vectors.
    sample
        Some of the same draws, to see correlations in.
    old
        The metric they were run with, whose scales they are shrunk towards.
    white
        Eigenvalues within [1 / white, white] are left alone.
    """
    mu = np.where(np.isfinite(moments.z_mean), moments.z_mean, old.mu)
    scales = old.factor * relative_scale(moments, old.factor)
    finite = np.isfinite(sample.dlogp).all(axis=1) & np.isfinite(sample.draws).all(axis=1)
    chains = sample.chains[finite]
    draws = _centred(sample.draws[finite] / scales, chains)
    dlogp = _centred(sample.dlogp[finite] * scales, chains)
    size = draws.shape[1]
    if not (draws.any() and dlogp.any()):
        return Metric(mu, scales, np.zeros((size, 0)), np.zeros(0))

    basis, _ = np.linalg.qr(np.hstack([_leading(draws), _leading(dlogp)]))
    spread = float(np.sqrt(np.mean(draws**2) * np.mean(dlogp**2)))
    mean = geometric_mean_with_inverse(
        _regularised(draws @ basis, spread), _regularised(dlogp @ basis, spread)
    )
    values, vectors = np.linalg.eigh(mean)
    effective = moments.count / DRAWS_PER_EFFECTIVE
    log_values = np.log(values) * effective / (effective + len(values))
    # The bulk of the directions is brought to 1 by the scales, not one by one.
    level = np.median(log_values)
    scales, log_values = scales * np.exp(level / 2), log_values - level
    order = np.argsort(-np.abs(log_values))[:MAX_RANK]
    keep = order[np.abs(log_values[order]) > np.log(white)]
    rank = -(-len(keep) // _RANK_STEP) * _RANK_STEP
    directions, weights = np.zeros((size, rank)), np.zeros(rank)
    directions[:, : len(keep)] = basis @ vectors[:, keep]
    weights[: len(keep)] = np.expm1(log_values[keep] / 2)
    return Metric(mu, scales, directions, weights)


def _centred(rows: np.ndarray, chains: np.ndarray) -> np.ndarray:
    """Rows, (n, D), less the mean of those of their chain."""
    centred = np.empty_like(rows)
    for chain in np.unique(chains):
        mine = rows[chains == chain]
        # The mean of equal numbers is off by roundings.
        centred[chains == chain] = np.where(np.ptp(mine, axis=0) > 0, mine - mine.mean(axis=0), 0.0)
    return centred


def _leading(rows: np.ndarray) -> np.ndarray:
    """The directions of largest variance, shape (D, at most MAX_RANK)."""
    return np.linalg.svd(rows, full_matrices=False)[2][:MAX_RANK].T


def _regularised(rows: np.ndarray, spread: float) -> np.ndarray:
    """Covariance of the rows with a few draws' worth of an isotropic one."""
    identity = _PRIOR_DRAWS * spread * np.eye(rows.shape[1])
    return (rows.T @ rows + identity) / (len(rows) + _PRIOR_DRAWS)
