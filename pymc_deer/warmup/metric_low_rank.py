"""Estimating a ``low_rank`` metric: scales, and the directions that scales cannot whiten.

After scaling, the geometric mean A # B^{-1} of the covariance of draws A and of gradients B is
taken in the span of the leading directions of both, and the eigenvectors that are far from whitened
are kept (Seyboldt, Carlson and Carpenter 2026, arXiv:2603.18845; nutpie's low-rank metric).
"""

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

Part = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]
"""Draws (n, D), gradients (n, D), chains (n,) and turns (n,)."""


@dataclass(frozen=True)
class Sample:
    """Evenly spaced draws and gradients of a warm-up window, in x, and the chain of each.

    They are at most so many: when there are more, every other one is dropped, and from then on
    taken. A row's turn is its place in its chain plus the number of the chain, so that chains take
    turns; rows are those whose turn is a multiple of the stride, wherever calls of the solver end.

    Attributes
    ----------
    parts
        Of the window, in the order in which they were solved.
    stride
        Of how many rows one is taken.
    """

    parts: tuple[Part, ...] = ()
    stride: int = 1

    def extended(
        self, draws: np.ndarray, dlogp: np.ndarray, before: int, first_chain: int = 0
    ) -> "Sample":
        """With the rows that follow, both (C, n, D), of chains from the given one on.

        Each of these has `before` rows before in the window.
        """
        n_chains, n, size = draws.shape
        numbers = first_chain + np.arange(n_chains)
        turns = before + np.arange(n) + numbers[:, None]
        taken = turns % self.stride == 0
        chains = np.broadcast_to(numbers[:, None], turns.shape)
        part = _rows((draws, dlogp, chains, turns), taken)
        sample = Sample((*self.parts, part), self.stride)
        while sum(len(chains) for _, _, chains, _ in sample.parts) > _limit(size):
            sample = sample._every_other()
        return sample

    def _every_other(self) -> "Sample":
        stride = 2 * self.stride
        return Sample(tuple(_rows(part, part[-1] % stride == 0) for part in self.parts), stride)

    @property
    def together(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All draws, gradients and chains, as copies."""
        draws, dlogp, chains, _ = (np.concatenate(a) for a in zip(*self.parts, strict=True))
        return draws, dlogp, chains

    def as_one_chain(self) -> "Sample":
        """The same draws, whichever chain made them."""
        parts = ((*of, np.zeros_like(chains), turns) for *of, chains, turns in self.parts)
        return replace(self, parts=tuple(parts))


def _rows(arrays: Part, taken: np.ndarray) -> Part:
    """These rows alone, as copies: a view of them would hold the memory of all."""
    draws, dlogp, chains, turns = arrays
    return draws[taken], dlogp[taken], chains[taken], turns[taken]


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
