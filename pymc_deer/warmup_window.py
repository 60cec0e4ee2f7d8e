"""What one window of warm-up shows: moments for the metric, batch means for the mixing."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.duplicate import duplicate
from pymc_deer.metric import Metric
from pymc_deer.metric_estimate import Moments, estimate_metric
from pymc_deer.metric_low_rank import Sample, estimate_low_rank
from pymc_deer.mixing import autocorrelation_time, largest_of_noisy, watched
from pymc_deer.path_statistics import PathStatistics

_TOGETHER = 2**19
"""Numbers in the states of all chains up to which they are summed up in one piece, as a copy."""


@dataclass(frozen=True)
class WarmupWindow:
    """Draws and gradients of a window, of C chains that learn together, stretch by stretch.

    In whitened coordinates, but for a ``low_rank`` metric, which is estimated in x. Nothing of one
    ever changes: what is behind more draws is another, so that chains can go on from either.

    Attributes
    ----------
    moments
        Of the draws and gradients of all chains; None before the first.
    means
        For each batch that has ended, the chains' means of what is watched of a state, (C, D).
    sums, count
        Of the batch that goes on, the chains' sums of the same, (C, D), and states of each.
    sample
        Of a ``low_rank`` metric, what is kept of the draws themselves.
    paths
        What transitions of different lengths show; None where nobody wants to know.
    """

    moments: Moments | None = None
    means: tuple[np.ndarray, ...] = ()
    sums: np.ndarray | None = None
    count: int = 0
    sample: Sample | None = None
    paths: PathStatistics | None = None

    def extended(
        self, trajectories: Sequence[Trajectory], metric: Metric, batch: int
    ) -> "WarmupWindow":
        """With part of a stretch, of each chain as long, that was run with `metric`.

        Of every `batch` states of a chain there is a mean.
        """
        moments, sample, rows = self.moments, self.sample, []
        for draws, dlogp in _pieces(trajectories):
            of_chains, size = draws.shape[:2], draws.shape[2]
            draws, dlogp = draws.reshape(-1, size), dlogp.reshape(-1, size)
            if metric.kind == "low_rank":
                draws, dlogp = metric.to_x(draws), metric.dlogp_to_x(dlogp)
                sample = Sample.empty(size) if sample is None else sample
                sample = sample.extended(draws, dlogp)
            piece = Moments.of(draws, dlogp, metric.kind)
            moments = piece if moments is None else moments.merged(piece)
            rows.append(watched(draws).reshape(*of_chains, -1))
        states = rows[0] if len(rows) == 1 else np.concatenate(rows)
        seen = duplicate(self, moments=moments, sample=sample)
        while states.shape[1]:
            missing = batch - seen.count
            seen = seen._with_states(states[:, :missing])
            seen = seen.at_batch_end() if seen.count == batch else seen
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

    def at_batch_end(self) -> "WarmupWindow":
        """Where the next draws belong to another batch, at the end of a stretch too."""
        if self.sums is None:
            return self
        return duplicate(self, means=(*self.means, self.sums / self.count), sums=None, count=0)

    def estimate(self, old: Metric, white: float) -> Metric:
        """The metric to go on with, after a window that was run with `old`.

        A ``low_rank`` one leaves eigenvalues within [1 / white, white] alone.
        """
        assert self.moments is not None
        if self.sample is None:
            return estimate_metric(self.moments, old)
        return estimate_low_rank(self.moments, self.sample, old, white)

    @property
    def _batches(self) -> np.ndarray:
        """Means of what is watched, one for every batch of every chain, (n, D)."""
        return np.concatenate(self.means)

    def autocorrelation_time(self) -> float | None:
        """Integrated autocorrelation time of the slowest coordinate, in transitions.

        None from fewer than two batches.
        """
        if self.moments is None or sum(map(len, self.means)) < 2:
            return None
        means = self._batches
        variance = watched(self.moments.z_variance)
        return autocorrelation_time(means, self.moments.count / len(means), variance)

    def best_path(self) -> tuple[float, float] | None:
        """The best path length, and transitions for an independent draw; None if not known.

        The slower of what single transitions show and what batch means do.
        """
        found, slow = self.paths and self.paths.best(), self.autocorrelation_time()
        if found is None or slow is None:
            return found
        length, time = found
        return length, max(time, slow / largest_of_noisy(*self._batches.shape))


def _pieces(trajectories: Sequence[Trajectory]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """States and gradients, (C, n, D): of all chains, or where that is much, of one by one."""
    if len(trajectories) > 1 and len(trajectories) * trajectories[0].z.size <= _TOGETHER:
        yield np.array([t.z for t in trajectories]), np.array([t.dlogp for t in trajectories])
    else:
        for trajectory in trajectories:
            yield trajectory.z[None], trajectory.dlogp[None]
