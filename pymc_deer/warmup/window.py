"""What one window of warm-up shows: moments for the metric, batch means for the mixing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import NamedTuple

import numpy as np

from pymc_deer.acceptance import count_unstable
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.duplicate import duplicate
from pymc_deer.metric import Metric, MetricKind
from pymc_deer.warmup.angles import Angles
from pymc_deer.warmup.metric_estimate import Moments, centre, estimate_metric, merged
from pymc_deer.warmup.metric_low_rank import Sample, estimate_low_rank
from pymc_deer.warmup.mixing import (
    are_apart,
    autocorrelation_time,
    columns_watched,
    largest_of_noisy,
    watched,
)
from pymc_deer.warmup.path_statistics import PathStatistics

_TOGETHER = 2**19
"""Numbers in the states of all chains up to which they are summed up in one piece, as a copy."""

_LARGE_RISE, _FEW = 4.0, 4
"""Rise of logp from one state to another, in sqrt(D), that independent draws do not have: it varies
by sqrt(D / 2), as that of a Gaussian does. And of how many chains none does by chance."""

_COLUMNS = 2**14
"""Coordinates to sum up at a time, where each is apart from the others: what lies between stays in
a core's cache, and takes no fresh memory, whose pages cost more than the sums."""


@dataclass(frozen=True)
class WarmupWindow:
    """Draws and gradients of a window, of C chains that learn together, stretch by stretch.

    In whitened coordinates, but for a ``low_rank`` metric, which is estimated in x. Nothing of one
    ever changes: what is behind more draws is another, so that chains can go on from either.

    Attributes
    ----------
    halves
        Moments of the draws and gradients of all chains: for a ``dense`` metric of every other
        stretch and of those between them, otherwise of all in one; as many as have been seen.
    n_stretches
        Stretches that have ended, from the first one on that has been seen.
    means
        For each batch that has ended, the chains' means of what is watched of a state, (C, D).
    sums, count
        Of the batch that goes on, the chains' sums of the same, (C, D), and states of each.
    sample
        Of a ``low_rank`` metric, what is kept of the draws themselves.
    paths
        What transitions of different lengths show; None where nobody wants to know.
    n_unstable
        Transitions of all chains with too large an energy error.
    angles
        Coordinates that are angles, and where they were in the window before; None where there are
        none.
    heights
        Log-densities of the chains, (C,), at the end of each stretch.
    """

    halves: tuple[Moments, ...] = ()
    n_stretches: int = 0
    means: tuple[np.ndarray, ...] = ()
    sums: np.ndarray | None = None
    count: int = 0
    sample: Sample | None = None
    paths: PathStatistics | None = None
    n_unstable: int = 0
    angles: Angles | None = None
    heights: tuple[np.ndarray, ...] = ()

    @property
    def n_seen(self) -> int:
        """Transitions of all chains."""
        return sum(moments.count for moments in self.halves)

    def extended(
        self, trajectories: Sequence[Trajectory], metric: Metric, batch: int
    ) -> "WarmupWindow":
        """With part of a stretch, of each chain as long, that was run with `metric`.

        Of every `batch` states of a chain there is a mean.
        """
        sample, n_chains = self.sample, 0
        before = self.n_seen // len(trajectories)
        n_unstable = self.n_unstable + sum(count_unstable(t.log_alpha) for t in trajectories)
        pieces, rows = [_Piece.of(metric, *piece) for piece in _pieces(trajectories)], []
        for piece in pieces:
            if metric.kind == "low_rank":
                sample = (sample or Sample()).extended(*piece[:2], before, n_chains, piece.metric)
            draws, _ = piece.of_columns(columns_watched(piece.draws.shape[-1]))
            rows.append(draws)
            n_chains += len(draws)
        halves, half = list(self.halves), self.n_stretches % 2 if metric.kind == "dense" else 0
        halves[half : half + 1] = [_moments(pieces, metric.kind, halves[half : half + 1])]
        states = rows[0] if len(rows) == 1 else np.concatenate(rows)
        seen = duplicate(self, halves=tuple(halves), sample=sample, n_unstable=n_unstable)
        while states.shape[1]:
            missing = batch - seen.count
            seen = seen._with_states(states[:, :missing])
            seen = seen._at_batch_end() if seen.count == batch else seen
            states = states[:, missing:]
        return seen

    def _with_states(self, states: np.ndarray) -> "WarmupWindow":
        """With what is watched of some states, (C, n, D), in the batch that goes on."""
        sums = np.add.reduce(states, axis=1, dtype=float)
        sums = sums if self.sums is None else self.sums + sums
        return duplicate(self, sums=sums, count=self.count + states.shape[1])

    def with_paths(self, trajectories: Sequence[Trajectory]) -> "WarmupWindow":
        """With what they show of path lengths: all parts of a window, or none."""
        paths = self.paths
        if paths is None:
            paths = PathStatistics.empty(len(trajectories), trajectories[0].z.shape[1])
        return duplicate(self, paths=paths.extended(trajectories))

    def with_angles(
        self, columns: np.ndarray, metric: Metric, trajectories: Sequence[Trajectory]
    ) -> "WarmupWindow":
        """With the directions in which angles are.

        Of a first window they are turned back to where chains begin: nothing here may depend on how
        many states the solver is asked for at a time.
        """
        angles = self.angles
        if angles is None:
            angles = Angles.about_mean(columns, metric, np.array([t.z[0] for t in trajectories]))
        for trajectory in trajectories:
            angles = angles.extended(metric, trajectory.z)
        return duplicate(self, angles=angles)

    def following(self) -> "WarmupWindow":
        """The next one, of which nothing has been seen."""
        return WarmupWindow(angles=self.angles and self.angles.about_own_mean())

    def turned_back(
        self, metric: Metric, trajectories: Sequence[Trajectory]
    ) -> Sequence[Trajectory]:
        """The same, whose angles are all within half a turn of where they were before."""
        assert self.angles is not None
        return [replace(t, z=self.angles.turned_back(metric, t.z)) for t in trajectories]

    def at_stretch_end(self, trajectories: Sequence[Trajectory]) -> "WarmupWindow":
        """Where the next draws belong to another stretch than those, or than the last of them."""
        ended, height = self._at_batch_end(), np.array([t.logp[-1] for t in trajectories])
        n_stretches = ended.n_stretches + bool(ended.halves)
        return duplicate(ended, n_stretches=n_stretches, heights=(*self.heights, height))

    def has_chains_rising(self, size: int) -> bool:
        """Whether logp of a chain, of D = `size` dimensions, goes up by more than chance.

        Where there are no two stretches it may.
        """
        if len(self.heights) < 2:
            return True
        rises = self.heights[-1] - self.heights[0]
        # Of more chains one does by chance: tails are those of a normal, and further out of e^-x.
        rarer = np.log(max(len(rises) / _FEW, 1.0))
        return bool((rises > (_LARGE_RISE + np.sqrt(2 * rarer)) * np.sqrt(size) + rarer).any())

    def _at_batch_end(self) -> "WarmupWindow":
        if self.sums is None:
            return self
        return duplicate(self, means=(*self.means, self.sums / self.count), sums=None, count=0)

    @property
    def has_chains_apart(self) -> bool:
        """Whether chains stay in different places: see :func:`pymc_deer.warmup.mixing.are_apart`.

        What is to be learnt is then what each shows about its own mean: neither a longer path nor
        more transitions take one to another, and their distance is no scale of any.
        """
        return are_apart(self._of_chains)

    def as_one_chain(self) -> "WarmupWindow":
        """As if one chain had made all draws."""
        return duplicate(
            self,
            halves=tuple(moments.as_one_chain() for moments in self.halves),
            means=tuple(mean[None] for of_chains in self.means for mean in of_chains),
            sample=self.sample and self.sample.as_one_chain(),
            paths=self.paths and self.paths.as_one_chain(),
        )

    def estimate(self, old: Metric, white: float) -> Metric:
        """The metric to go on with, after a window that was run with `old`.

        A ``low_rank`` one leaves eigenvalues within [1 / white, white] alone.
        """
        if self.sample is None:
            return estimate_metric(self.halves, old)
        return estimate_low_rank(merged(self.halves), self.sample, old, white)

    def centred(self, fixed: Metric) -> Metric:
        """A metric of the user's, which the window was run with, about the mean of its draws."""
        return replace(fixed, mu=centre(merged(self.halves), fixed))

    @property
    def _of_chains(self) -> np.ndarray:
        """Means of what is watched, of each chain's batches, (n, C, D)."""
        return np.array(self.means)

    def autocorrelation_time(self) -> float | None:
        """Integrated autocorrelation time of the slowest coordinate, in transitions.

        None from fewer than two batches.
        """
        if not self.halves or len(self.means) < 2:
            return None
        means, variance = self._of_chains, watched(merged(self.halves).z_variance)
        return autocorrelation_time(means, self.n_seen / means[..., 0].size, variance)

    def best_path(self, shortest: float = 0.0) -> tuple[float, float, float] | None:
        """The best path length, and transitions for an independent draw; None if not known.

        None is below the shortest, unless no longer one was seen. The first time is what single
        transitions of that length show, the second what batch means do, 0 if there are too few.
        """
        found, slow = self.paths and self.paths.best(shortest), self.autocorrelation_time()
        if found is None or slow is None:
            return found and (*found, 0.0)
        n_batches, n_chains, size = self._of_chains.shape
        return (*found, slow / largest_of_noisy((n_batches - 1) * n_chains, size))


class _Piece(NamedTuple):
    """Draws and gradients of some chains, (C, n, D).

    Attributes
    ----------
    metric
        What takes each coordinate of many to where the window's metric is estimated; None where
        they are there.
    """

    draws: np.ndarray
    dlogp: np.ndarray
    metric: Metric | None

    @classmethod
    def of(cls, metric: Metric, draws: np.ndarray, dlogp: np.ndarray) -> "_Piece":
        """Draws and gradients as they were solved with this metric."""
        if metric.kind != "low_rank":
            return cls(draws, dlogp, None)
        if metric.is_elementwise and draws.shape[-1] > _COLUMNS:
            return cls(draws, dlogp, metric)
        return cls(metric.to_x(draws), metric.dlogp_to_x(dlogp), None)

    def of_columns(self, which: slice | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Those of some coordinates, where the metric is estimated."""
        draws, dlogp = self.draws[..., which], self.dlogp[..., which]
        if self.metric is None:
            return draws, dlogp
        metric = self.metric.of_columns(which)
        return metric.to_x(draws), metric.dlogp_to_x(dlogp)


def _moments(pieces: Sequence[_Piece], kind: MetricKind, before: Sequence[Moments]) -> Moments:
    """Of all chains, together with what was seen before, if anything was."""

    def of_columns(which: slice) -> Moments:
        parts = (Moments.of(*piece.of_columns(which), kind) for piece in pieces)
        moments = [seen.of_columns(which) for seen in before]
        return merged([*moments, reduce(Moments.beside, parts)])

    size = pieces[0].draws.shape[-1]
    if kind == "dense" or size <= _COLUMNS:
        return of_columns(slice(None))
    return Moments.joined([of_columns(slice(i, i + _COLUMNS)) for i in range(0, size, _COLUMNS)])


def _pieces(trajectories: Sequence[Trajectory]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """States and gradients, (C, n, D): of all chains, or where that is much, of one by one."""
    if len(trajectories) > 1 and len(trajectories) * trajectories[0].z.size <= _TOGETHER:
        yield np.array([t.z for t in trajectories]), np.array([t.dlogp for t in trajectories])
    else:
        for trajectory in trajectories:
            yield trajectory.z[None], trajectory.dlogp[None]
