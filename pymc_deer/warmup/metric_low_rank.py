"""Estimating a ``low_rank`` metric: scales, and the directions that scales cannot whiten.

After scaling, the geometric mean A # B^{-1} of the covariance of draws A and of gradients B is
taken in the span of the leading directions of both, and the eigenvectors that are far from whitened
are kept (Seyboldt, Carlson and Carpenter 2026, arXiv:2603.18845; nutpie's low-rank metric). As in
``metric_estimate.py``, one half of a window has the eigenvectors and the other the eigenvalues.

Of both covariances a few draws' worth is what the metric before this one expects. An isotropic one
would hide eigenvalues below a hundredth of the average, in each window anew.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from scipy.linalg import eigh

from pymc_deer.memory import affordable_rows
from pymc_deer.metric import Metric, scaled_metric
from pymc_deer.warmup.metric_estimate import (
    PRIOR_DRAWS,
    Moments,
    geometric_mean_with_inverse,
    relative_scale,
)

MAX_RANK = 32
"""Most directions k: each costs 4 D multiplications a gradient."""

_RANK_STEP = 8
"""Ranks are rounded up to a multiple of it, as compiled code may be specialised by shape."""

_MAX_ROWS = 1024
"""Most draws kept for the estimate: half of them for directions, and for their eigenvalues."""

_BLOCKS = 4
"""Of a window, that belong to one half and the other by turns."""

_LONG = 2**14
"""Numbers of a draw from which each is kept by itself, so that none is copied if others go."""

_SAME = 1e-10
"""Squared length of what a direction has that others have not, from which it is another one."""

_Rows = tuple[np.ndarray, np.ndarray]
"""Draws and gradients (n, D)."""

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
        self,
        draws: np.ndarray,
        dlogp: np.ndarray,
        before: int,
        first_chain: int = 0,
        metric: Metric | None = None,
    ) -> "Sample":
        """With the rows that follow, both (C, n, D), of chains from the given one on.

        Each of these has `before` rows before in the window. With a metric, an elementwise one,
        they are whitened by it: those that are taken are brought to x.
        """
        n_chains, n, size = draws.shape
        numbers = first_chain + np.arange(n_chains)
        turns = before + np.arange(n) + numbers[:, None]
        taken = turns % self.stride == 0
        chains = np.broadcast_to(numbers[:, None], turns.shape)
        arrays, places = (draws, dlogp, chains, turns), [taken]
        if size >= _LONG:
            rows = np.argwhere(taken).tolist()
            places = [(chain, slice(row, row + 1)) for chain, row in rows]
        parts = [_rows(arrays, place, metric) for place in places]
        sample = Sample((*self.parts, *parts), self.stride)
        while sum(len(chains) for _, _, chains, _ in sample.parts) > _limit(size):
            sample = sample._every_other()
        return sample

    def _every_other(self) -> "Sample":
        stride = 2 * self.stride
        parts = []
        for part in self.parts:
            taken = part[-1] % stride == 0
            if taken.any():
                parts.append(part if taken.all() else _rows(part, taken))
        return Sample(tuple(parts), stride)

    @property
    def together(self) -> Part:
        """All draws, gradients, chains and turns, as copies."""
        draws, dlogp, chains, turns = (np.concatenate(a) for a in zip(*self.parts, strict=True))
        return draws, dlogp, chains, turns

    def as_one_chain(self) -> "Sample":
        """The same draws, whichever chain made them."""
        parts = ((*of, np.zeros_like(chains), turns) for *of, chains, turns in self.parts)
        return replace(self, parts=tuple(parts))


def _rows(arrays: Part, taken: Any, metric: Metric | None = None) -> Part:
    """These rows alone, in x, as copies: a view of them would hold the memory of all."""
    draws, dlogp, chains, turns = (array[taken] for array in arrays)
    if metric is None:
        return draws.copy(), dlogp.copy(), chains.copy(), turns.copy()
    return metric.to_x(draws), metric.dlogp_to_x(dlogp), chains.copy(), turns.copy()


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
        The metric they were run with, which the estimate is shrunk towards.
    white
        Eigenvalues within [1 / white, white] are left alone.
    """
    mu = np.where(np.isfinite(moments.z_mean), moments.z_mean, old.mu)
    scales = old.factor * relative_scale(moments, old.factor)
    draws, dlogp, chains, turns = sample.together
    finite = np.isfinite(dlogp).all(axis=1) & np.isfinite(draws).all(axis=1)
    if not finite.all():
        draws, dlogp, chains, turns = (of[finite] for of in (draws, dlogp, chains, turns))
    half = turns * _BLOCKS // (turns.max(initial=0) + 1) % 2
    # Each half about its own means: about those of both it would know of the other's.
    _centre(draws, 2 * chains + half)
    _centre(dlogp, 2 * chains + half)
    draws /= scales
    dlogp *= scales
    first, second = ((draws[half == i], dlogp[half == i]) for i in range(2))
    del draws, dlogp
    if not all(of.any() for of in (*first, *second)):
        return scaled_metric("low_rank", mu, scales)

    # What each half finds of S, less the identity, both on one basis.
    expected = _Expected.by(old)
    found = [_crossed(*halves, expected, white) for halves in ((first, second), (second, first))]
    scales = scales * np.exp(np.mean([level for _, _, level in found]) / 2)
    basis = _orthonormal(np.hstack([vectors for vectors, _, _ in found]))
    inner = np.zeros((basis.shape[1], basis.shape[1]))
    for vectors, log_values, _ in found:
        along = basis.T @ vectors
        inner += (along * np.expm1(log_values)) @ along.T / len(found)
    values, vectors = np.linalg.eigh(inner)
    log_values = np.log1p(values)
    order = np.argsort(-np.abs(log_values))[:MAX_RANK]
    keep = order[np.abs(log_values[order]) > np.log(white)]
    rank = -(-len(keep) // _RANK_STEP) * _RANK_STEP
    directions, weights = np.zeros((len(mu), rank)), np.zeros(rank)
    directions[:, : len(keep)] = basis @ vectors[:, keep]
    weights[: len(keep)] = np.expm1(log_values[keep] / 2)
    return Metric(mu, scales, directions, weights)


@dataclass(frozen=True)
class _Expected:
    """Covariances that draws and gradients would have if a low-rank metric were right.

    In units of the scales by which both have the same variance, coordinate by coordinate.

    Attributes
    ----------
    vectors, growth
        Orthonormal directions (D, k), and by how much variances along them are larger, (k,).
    level
        Variance of draws in all other directions; that of gradients is one over it.
    """

    vectors: np.ndarray
    growth: np.ndarray
    level: float

    @classmethod
    def by(cls, metric: Metric) -> "_Expected":
        vectors, growth = metric.vectors, (1.0 + metric.weights) ** 2
        # By coordinate, in units of the metric's own scales.
        of_draws, of_gradients = (
            1.0 + np.einsum("ij,ij,j->i", vectors, vectors, more)
            for more in (growth - 1.0, 1.0 / growth - 1.0)
        )
        return cls(vectors, growth, float(np.sqrt(np.median(of_gradients / of_draws))))

    def along(self, columns: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of draws and of gradients along orthonormal columns (D, m), each (m, m)."""
        inner, identity = self.vectors.T @ columns, np.eye(columns.shape[1])
        of_draws = identity + (inner.T * (self.growth - 1.0)) @ inner
        of_gradients = identity + (inner.T * (1.0 / self.growth - 1.0)) @ inner
        return of_draws * self.level, of_gradients / self.level

    def spread(self, rows: _Rows) -> float:
        """By how much the rows vary more than that, draws and gradients alike."""
        draws, dlogp = rows
        of_draws = _sum_of_squares(draws, self.vectors, 1.0 / self.growth - 1.0)
        of_gradients = _sum_of_squares(dlogp, self.vectors, self.growth - 1.0)
        return float(np.sqrt(of_draws * of_gradients)) / draws.size


def _sum_of_squares(rows: np.ndarray, vectors: np.ndarray, more: np.ndarray) -> float:
    """Of all numbers, those along some directions counted so many times more."""
    return np.vdot(rows, rows) + (np.square(rows @ vectors) @ more).sum()


def _crossed(
    learnt: _Rows, held: _Rows, expected: _Expected, white: float
) -> tuple[np.ndarray, np.ndarray, float]:
    """Eigenvectors of one half's S, (D, k), and the logarithms of the other's eigenvalues.

    These are relative to the level of the bulk, the third number, to which scales bring it rather
    than each of its directions; those that could not be kept are left out.
    """
    basis = _orthonormal(np.hstack([_leading(of) for of in learnt]))
    along = [of @ basis for of in learnt]
    mean = geometric_mean_with_inverse(*_regularised(along, learnt, expected, basis))
    vectors = basis @ np.linalg.eigh(mean)[1]
    along = [of @ vectors for of in held]
    draws, gradients = map(np.diag, _regularised(along, held, expected, vectors))
    log_values = np.log(draws / gradients) / 2
    level = float(np.median(log_values))
    log_values = log_values - level
    # The other half may find more: it is their mean that is kept or not.
    keep = np.abs(log_values) > np.log(white) / 2
    return vectors[:, keep], log_values[keep], level


def _centre(rows: np.ndarray, groups: np.ndarray) -> None:
    """Take from rows, (n, D), the mean of those of their group, in place: they are large."""
    for group in np.unique(groups):
        mine = groups == group
        shifted = rows[mine]
        # Numbers that are equal become 0, which their mean would miss by roundings.
        shifted -= shifted[0].copy()
        shifted -= shifted.mean(axis=0)
        rows[mine] = shifted


def _leading(rows: np.ndarray) -> np.ndarray:
    """The directions of largest variance, at most MAX_RANK as columns, of any length each.

    By the eigenvectors of the smaller of the two matrices of inner products, which takes a tenth of
    the time of a singular value decomposition of hundreds of long rows. What it loses, the
    directions whose deviations are below 1e-7 of the largest, would not be among those kept.
    """
    wide = len(rows) < rows.shape[1]
    inner = rows @ rows.T if wide else rows.T @ rows
    size = len(inner)
    values, vectors = eigh(inner, subset_by_index=(max(0, size - MAX_RANK), size - 1))
    leading = vectors[:, values > size * np.finfo(float).eps * values[-1]]
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


def _regularised(
    along: Sequence[np.ndarray], rows: _Rows, expected: _Expected, columns: np.ndarray
) -> list[np.ndarray]:
    """Covariances of rows along some columns, with a few draws' worth of those expected."""
    n, weight = len(rows[0]), PRIOR_DRAWS * expected.spread(rows)
    pairs = zip(along, expected.along(columns), strict=True)
    return [(of.T @ of + weight * known) / (n + PRIOR_DRAWS) for of, known in pairs]
