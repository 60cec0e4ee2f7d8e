"""What one window of warm-up shows: moments for the metric, batch means for the mixing."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

import numpy as np

from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.duplicate import duplicate
from pymc_deer.metric import Metric
from pymc_deer.metric_estimate import Moments, estimate_metric
from pymc_deer.metric_low_rank import Sample, estimate_low_rank
from pymc_deer.mixing import autocorrelation_time, largest_of_noisy, watched
from pymc_deer.path_statistics import PathStatistics


@dataclass
class WarmupWindow:
    """Draws and gradients of a window, summed up stretch by stretch.

    In whitened coordinates, but for a ``low_rank`` metric, which is estimated in x.
    """

    stretch: Moments | None = None
    moments: Moments | None = None
    means: list[np.ndarray] = field(default_factory=list)
    sample: Sample | None = None
    paths: PathStatistics | None = None

    @classmethod
    def pooled(cls, windows: "Sequence[WarmupWindow]") -> "WarmupWindow":
        """The windows of several chains, run with one metric, as one."""
        if len(windows) == 1:
            return windows[0]
        samples = [window.sample for window in windows if window.sample is not None]
        paths = [window.paths for window in windows if window.paths is not None]
        return cls(
            moments=reduce(_merged, [w.moments for w in windows if w.moments is not None], None),
            means=[mean for window in windows for mean in window.means],
            sample=Sample.pooled(samples) if samples else None,
            paths=PathStatistics.pooled(paths) if paths else None,
        )

    def copy(self) -> "WarmupWindow":
        """One that goes on without this one's knowing; sums once made are shared."""
        return duplicate(self, means=list(self.means), paths=self.paths and self.paths.copy())

    def add(self, trajectory: Trajectory, metric: Metric) -> None:
        """Take in part of a stretch that was run with `metric`."""
        draws, dlogp = trajectory.z, trajectory.dlogp
        if metric.kind == "low_rank":
            draws, dlogp = metric.to_x(draws), metric.dlogp_to_x(dlogp)
            sample = Sample.empty(draws.shape[1]) if self.sample is None else self.sample
            self.sample = sample.extended(draws, dlogp)
        self.stretch = _merged(self.stretch, Moments.of(draws, dlogp, metric.kind))

    def add_paths(self, trajectory: Trajectory) -> None:
        """Look at its path lengths too: those of all parts of a window, or of none."""
        self.paths = self.paths or PathStatistics.empty(trajectory.z.shape[1])
        self.paths.add(trajectory)

    def end_stretch(self) -> None:
        if self.stretch is None:
            return
        self.moments = _merged(self.moments, self.stretch)
        self.means.append(watched(self.stretch.z_mean))
        self.stretch = None

    def estimate(self, old: Metric, white: float) -> Metric:
        """The metric to go on with, after a window that was run with `old`.

        A ``low_rank`` one leaves eigenvalues within [1 / white, white] alone.
        """
        assert self.moments is not None
        if self.sample is None:
            return estimate_metric(self.moments, old)
        return estimate_low_rank(self.moments, self.sample, old, white)

    def autocorrelation_time(self) -> float | None:
        """Integrated autocorrelation time of the slowest coordinate, in transitions.

        A batch for every stretch; None from fewer than two.
        """
        if self.moments is None or len(self.means) < 2:
            return None
        length = self.moments.count / len(self.means)
        variance = watched(self.moments.z_variance)
        return autocorrelation_time(np.array(self.means), length, variance)

    def best_path(self) -> tuple[float, float] | None:
        """The best path length, and transitions for an independent draw; None if not known.

        The slower of what single transitions show and what batch means do.
        """
        found, slow = self.paths and self.paths.best(), self.autocorrelation_time()
        if found is None or slow is None:
            return found
        length, time = found
        return length, max(time, slow / largest_of_noisy(len(self.means), len(self.means[0])))


def _merged(before: Moments | None, batch: Moments) -> Moments:
    return batch if before is None else before.merged(batch)
