"""Estimating a ``low_rank`` metric: scales, and the directions that scales cannot whiten.

After scaling, the geometric mean A # B^{-1} of the covariance of draws A and of gradients B is
taken in the span of the leading directions of both, and the eigenvectors that are far from whitened
are kept (Seyboldt, Carlson and Carpenter 2026, arXiv:2603.18845; nutpie's low-rank metric).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.memory import affordable_rows
from pymc_deer.metric import Metric
from pymc_deer.warmup.metric_estimate import (
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

_SAME = 1e-10
"""Squared length of what a direction has that others have not, from which it is another one."""

Part = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Draws (n, D), gradients (n, D) and chains (n,)."""


@dataclass(frozen=True)
class Sample:
    """Evenly spaced draws and gradients of a warm-up window, in x, and the chain of each.

    They are at most so many: when it is full every other row is dropped, and from then on taken.

    Attributes
    ----------
    parts
        Of the window, in their order.
    stride
        Of how many rows one is taken.
    seen
        Rows of the window.
    """

    parts: tuple[Part, ...] = ()
    stride: int = 1
    seen: int = 0

    def extended(self, draws: np.ndarray, dlogp: np.ndarray, first_chain: int = 0) -> "Sample":
        """With the rows that follow, both (C, n, D), of chains from the given one on."""
        n_chains, n, size = draws.shape
        chains = np.repeat(np.arange(first_chain, first_chain + n_chains), n)
        rows = slice(-self.seen % self.stride, None, self.stride)
        part = _rows((draws.reshape(-1, size), dlogp.reshape(-1, size), chains), rows)
        sample = Sample((*self.parts, part), self.stride, self.seen + n_chains * n)
        while sum(len(chains) for *_, chains in sample.parts) > _limit(size):
            sample = Sample(tuple(sample._every_other()), 2 * sample.stride, sample.seen)
        return sample

    def _every_other(self) -> Iterator[Part]:
        """The parts with every other of all rows, of which no copy is made."""
        before = 0
        for part in self.parts:
            yield _rows(part, slice(before % 2, None, 2))
            before += len(part[-1])

    @property
    def together(self) -> Part:
        """All draws, gradients and chains, as copies."""
        draws, dlogp, chains = (np.concatenate(arrays) for arrays in zip(*self.parts, strict=True))
        return draws, dlogp, chains

    def as_one_chain(self) -> "Sample":
        """The same draws, whichever chain made them."""
        parts = ((draws, dlogp, np.zeros_like(chains)) for draws, dlogp, chains in self.parts)
        return replace(self, parts=tuple(parts))


def _rows(arrays: Part, rows: slice) -> Part:
    """These rows alone, which hold no memory of others: a view of one would hold that of all."""
    draws, dlogp, chains = (array[rows].copy() for array in arrays)
    return draws, dlogp, chains


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
    draws, dlogp, chains = sample.together
    finite = np.isfinite(dlogp).all(axis=1) & np.isfinite(draws).all(axis=1)
    if not finite.all():
        draws, dlogp, chains = draws[finite], dlogp[finite], chains[finite]
    _centre(draws, chains)
    _centre(dlogp, chains)
    draws /= scales
    dlogp *= scales
    size = draws.shape[1]
    if not (draws.any() and dlogp.any()):
        return Metric(mu, scales, np.zeros((size, 0)), np.zeros(0))

    basis = _orthonormal(np.hstack([_leading(draws), _leading(dlogp)]))
    spread = float(np.sqrt(np.vdot(draws, draws) * np.vdot(dlogp, dlogp)) / draws.size)
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


def _centre(rows: np.ndarray, chains: np.ndarray) -> None:
    """Take from rows, (n, D), the mean of those of their chain, in place: they are large."""
    for chain in np.unique(chains):
        mine = chains == chain
        shifted = rows[mine]
        # Numbers that are equal become 0, which their mean would miss by roundings.
        shifted -= shifted[0].copy()
        shifted -= shifted.mean(axis=0)
        rows[mine] = shifted


def _leading(rows: np.ndarray) -> np.ndarray:
    """The directions of largest variance, at most MAX_RANK as columns, of any length each.

    By the eigenvectors of the smaller of the two matrices of inner products. That takes a tenth of
    the time of a singular value decomposition of 512 rows of 10,000 numbers. What it loses, the
    directions whose deviations are below 1e-7 of the largest, would not be among those kept.
    """
    wide = len(rows) < rows.shape[1]
    values, vectors = np.linalg.eigh(rows @ rows.T if wide else rows.T @ rows)
    found = values > len(values) * np.finfo(float).eps * values[-1]
    leading = vectors[:, found][:, -MAX_RANK:]
    return rows.T @ leading if wide else leading


def _orthonormal(columns: np.ndarray) -> np.ndarray:
    """An orthonormal basis of what columns span, but for directions that are nearly in the others.

    By their inner products, which takes a tenth of the time of Householder's method where they are
    long; and twice, since once loses the square of their condition (Yamamoto, Nakatsukasa,
    Yanagisawa and Fukaya 2015, Electronic Transactions on Numerical Analysis 44).
    """
    for _ in range(2):
        columns = columns / np.linalg.norm(columns, axis=0)
        values, vectors = np.linalg.eigh(columns.T @ columns)
        found = values > _SAME
        columns = columns @ (vectors[:, found] / np.sqrt(values[found]))
    return columns


def _regularised(rows: np.ndarray, spread: float) -> np.ndarray:
    """Covariance of the rows with a few draws' worth of an isotropic one."""
    identity = _PRIOR_DRAWS * spread * np.eye(rows.shape[1])
    return (rows.T @ rows + identity) / (len(rows) + _PRIOR_DRAWS)
