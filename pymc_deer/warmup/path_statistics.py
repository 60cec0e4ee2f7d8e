"""How long a path should be: what warm-up's own transitions show.

Each transition of a learning window takes a random number of leapfrog steps, up to twice the best
known. How far it moved a function f of the state, squared and in units of twice the variance of f,
is an estimate of 1 - rho(t), rho being the autocorrelation that paths of length t leave. Effective
draws per gradient are then proportional to (1 - rho) / (1 + rho) / t, of the slowest functions, and
the t with most of them is taken.

The functions are all coordinates z_i and their absolute values. The latter are there because a path
of half a period takes every z_i to -z_i: that leaves the mean without error and the spread
unexplored, the reason for which the ChEES criterion (Hoffman, Radul and Sountsov 2021) looks at the
square of |z|. They count half: tail quantiles, for which they stand, forget about twice as fast.
Squares themselves are too noisy, one far state outweighing all others.

A coordinate that also has fast parts, as those of a random walk have, makes short paths look better
than they are: its first step is a large one, and all others are small. Lengths that leave more than
a few transitions to an independent draw are therefore taken only if none does better.

Averages over the slowest functions, in place of the slowest one, keep the noise down. Which ones
they are is seen in one half of the transitions and how slow they are in the other, since the
smallest of many noisy numbers is too small.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.warmup.mixing import watched

_SLOWEST_SHARE, _MOST_SLOW = 0.05, 8
"""Functions that are the slowest ones, of all: with thousands of latent variables the handful of
parameters above them is what a path is for."""

TOO_MANY_TRANSITIONS = 8.0
"""For an independent draw, where a longer path may be in order: of models that paths suit, those of
the best length take 1 to 6 once the metric is known."""

_FEWEST = 8
"""Transitions of either half that a length must have been seen in."""

_SMOOTHING = 5
"""Neighbouring lengths whose rates are averaged. Fewer would leave noise that scatters the choice;
as many cost some of a sharp peak, which few posteriors have."""

_LENGTHS = np.geomspace(1e-3, 1e3, 118)
"""Path lengths told apart: one in every eighth, wherever whitened paths may lie."""

_NEIGHBOURS = 0.2
"""Lengths that differ by less than this share are taken together, as jitter of step sizes does."""


@dataclass(frozen=True)
class PathStatistics:
    """Squared moves by path length, of coordinates and of their absolute values, of C chains.

    Attributes
    ----------
    counts, moves
        Transitions, (2, B), and sums of squared moves, (2, B, F), by half and bin of path lengths;
        F functions.
    sums
        Sums of the functions over each chain's states, (C, F).
    squares
        Sums of their squares over all states, (F,).
    n
        States of each chain.
    last
        The functions at the chains' last states, (C, F); before the first, NaN.
    """

    counts: np.ndarray
    moves: np.ndarray
    sums: np.ndarray
    squares: np.ndarray
    last: np.ndarray
    n: int = 0

    @classmethod
    def empty(cls, n_chains: int, size: int) -> "PathStatistics":
        """For states of D = `size` coordinates, of which those that are watched are looked at."""
        n_bins, n_functions = len(_LENGTHS), 2 * len(watched(np.empty(size)))
        counts, moves = np.zeros((2, n_bins)), np.zeros((2, n_bins, n_functions))
        sums, last = np.zeros((n_chains, n_functions)), np.full((n_chains, n_functions), np.nan)
        return cls(counts, moves, sums, np.zeros(n_functions), last)

    def extended(self, trajectories: Sequence[Trajectory]) -> "PathStatistics":
        """With transitions, of each chain as many, that follow on those before."""
        z = np.array([watched(t.z) for t in trajectories], dtype=float)
        functions = np.concatenate([z, np.abs(z)], axis=2)
        first = 0 if self.n else 1
        before = np.concatenate([self.last[:, None], functions[:, :-1]], axis=1)[:, first:]
        moves = (functions[:, first:] - before) ** 2
        lengths = np.array([t.n_leapfrog * t.step_sizes for t in trajectories])[:, first:]
        half = np.arange(self.n + first, self.n + z.shape[1]) % 2
        cells = half * len(_LENGTHS) + np.searchsorted(_BOUNDS, lengths)
        counts, sums_of_moves = self.counts.copy(), self.moves.copy()
        _add_by_cell(cells.ravel(), moves.reshape(-1, moves.shape[2]), counts, sums_of_moves)
        return PathStatistics(
            counts,
            sums_of_moves,
            self.sums + np.add.reduce(functions, axis=1),
            self.squares + np.add.reduce(functions**2, axis=(0, 1)),
            # A copy: a view would keep the whole stretch.
            functions[:, -1].copy(),
            self.n + z.shape[1],
        )

    def as_one_chain(self) -> "PathStatistics":
        """The same moves, of functions that vary about the mean of all chains."""
        return replace(self, sums=np.broadcast_to(self.sums.mean(axis=0), self.sums.shape))

    @property
    def variance(self) -> np.ndarray:
        """Variances of the functions within a chain, (F,): those of the coordinates come first."""
        squares = self.squares / (self.n * len(self.last))
        variance = squares - np.mean((self.sums / self.n) ** 2, axis=0)
        return np.maximum(variance, np.finfo(float).tiny)

    @property
    def time(self) -> float | None:
        """Transitions for an independent draw, whatever their lengths; None of too few."""
        counts = self.counts.sum(axis=1)
        if counts.min() < _FEWEST:
            return None
        moves = self.moves.sum(axis=1) / counts[:, None]
        return float(_times(moves[None], self.variance)[0])

    def best(self, shortest: float = 0.0) -> tuple[float, float] | None:
        """The path length with the most effective draws per gradient.

        Parameters
        ----------
        shortest
            Length below which paths take no fewer gradients, so that none is taken.

        Returns
        -------
        That length, and how many of its transitions are worth one independent draw; None where too
        little has been seen.
        """
        counts = (self.counts @ _NEAR.T).T
        enough = counts.min(axis=1) >= _FEWEST
        if not enough.any():
            return None
        seen, variance = _LENGTHS[enough], self.variance
        moves = np.array([self.moves[:, near].sum(axis=1) for near in _NEAR[enough]])
        times = _times(moves / counts[enough, :, None], variance)
        rates = _smoothed(1 / (times * np.maximum(seen, shortest)))
        allowed = seen >= shortest
        # The longest one that was seen, where none was long enough.
        allowed[-1] = True
        fast = allowed & (times <= TOO_MANY_TRANSITIONS)
        chosen = np.argmax(rates * (fast if fast.any() else allowed))
        return float(seen[chosen]), float(times[chosen])


def _add_by_cell(
    cells: np.ndarray, moves: np.ndarray, counts: np.ndarray, sums: np.ndarray
) -> None:
    """Add n rows of moves, (n, F), to the cells they belong to, (n,), of all in order.

    What ``np.add.at`` does, in a tenth of the time.
    """
    if not len(cells):
        return
    order = np.argsort(cells, kind="stable")
    cells = cells[order]
    ends = np.append(np.flatnonzero(cells[1:] != cells[:-1]) + 1, len(cells))
    firsts = np.append(0, ends[:-1])
    cells = cells[firsts]
    counts.reshape(-1)[cells] += ends - firsts
    sums.reshape(-1, sums.shape[2])[cells] += np.add.reduceat(moves[order], firsts, axis=0)


def _smoothed(rates: np.ndarray) -> np.ndarray:
    """Averages of neighbouring rates: at the long end of fewer, since none counts for those beyond.

    The longest paths are the rarest, and the noisiest.
    """
    ends, weights = _SMOOTHING // 2, np.ones(_SMOOTHING)
    padded = np.pad(rates, (ends, 0), mode="edge")
    sums, counts = (np.convolve(of, weights) for of in (padded, np.ones_like(padded)))
    return (sums / counts)[2 * ends :][: len(rates)]


def _times(moves: np.ndarray, variance: np.ndarray) -> np.ndarray:
    """Transitions for an independent draw of the slowest functions, (n,).

    Parameters
    ----------
    moves
        Mean squared moves by length, half and function, (n, 2, F).
    variance
        Of the functions, (F,).
    """
    forgotten = np.clip(moves / (2 * variance), 1e-6, 1.9)
    signed, absolute = np.split((2 - forgotten) / forgotten, 2, axis=2)
    return np.maximum(_slowest(signed), _slowest(absolute) / 2)


def _slowest(times: np.ndarray) -> np.ndarray:
    """Average autocorrelation times of the slowest functions, (n,), from those by half, (n, 2, F).

    Which they are is seen in the other half.
    """
    n_slow = min(max(1, round(_SLOWEST_SHARE * times.shape[2])), _MOST_SLOW)
    slowest = np.argsort(times, axis=2)[..., -n_slow:]
    return np.take_along_axis(times[:, ::-1], slowest, axis=2).mean(axis=2).mean(axis=1)


_BOUNDS = np.sqrt(_LENGTHS[:-1] * _LENGTHS[1:])

_NEAR = np.abs(_LENGTHS - _LENGTHS[:, None]) <= _NEIGHBOURS * _LENGTHS[:, None]
"""Which lengths, (B, B), are about that of the row."""
