"""What one window of warm-up shows: moments for the metric, batch means for the mixing."""

from dataclasses import dataclass, field

import numpy as np

from pymc_deer.backends.base import Trajectory
from pymc_deer.metric import Metric
from pymc_deer.metric_estimate import Moments, estimate_metric
from pymc_deer.metric_low_rank import Sample, estimate_low_rank

_DOUBTLESS = 0.6
"""Correlation of successive batch means that some 20 independent ones show once in 300 windows."""


@dataclass
class WarmupWindow:
    """Draws and gradients of a window, summed up stretch by stretch.

    In whitened coordinates, but for a ``low_rank`` metric, which is estimated in x.
    """

    stretch: Moments | None = None
    moments: Moments | None = None
    means: list[np.ndarray] = field(default_factory=list)
    sample: Sample | None = None

    def add(self, trajectory: Trajectory, metric: Metric) -> None:
        """Take in part of a stretch that was run with `metric`."""
        draws, dlogp = trajectory.z, trajectory.dlogp
        if metric.kind == "low_rank":
            draws, dlogp = metric.to_x(draws), metric.dlogp_to_x(dlogp)
            sample = Sample.empty(draws.shape[1]) if self.sample is None else self.sample
            self.sample = sample.extended(draws, dlogp)
        self.stretch = _merged(self.stretch, Moments.of(draws, dlogp, metric.kind))

    def end_stretch(self) -> None:
        if self.stretch is None:
            return
        self.moments = _merged(self.moments, self.stretch)
        self.means.append(self.stretch.z_mean)
        self.stretch = None

    def estimate(self, old: Metric) -> Metric:
        """The metric to go on with, after a window that was run with `old`."""
        assert self.moments is not None
        if self.sample is None:
            return estimate_metric(self.moments, old)
        return estimate_low_rank(self.moments, self.sample, old)

    def autocorrelation_time(self) -> float | None:
        """Integrated autocorrelation time of the slowest coordinate, in transitions.

        By batch means (Geyer 1992), a batch for every stretch; None from fewer than two. The
        means of too short batches are correlated themselves, and add their own autocorrelation.
        """
        if self.moments is None or len(self.means) < 2:
            return None
        means = np.array(self.means)
        length = self.moments.count / len(means)
        within = np.maximum(self.moments.z_variance, np.finfo(float).tiny)
        times = length * np.var(means, axis=0, ddof=1) / within
        slowest = int(np.argmax(times))
        return float(times[slowest]) * _autocorrelation_of_means(means[:, slowest])


def _autocorrelation_of_means(means: np.ndarray) -> float:
    """Their integrated autocorrelation time as an AR(1), if there is no doubt of it; else 1."""
    centred = means - means.mean()
    total = float(np.sum(centred**2))
    correlation = float(np.sum(centred[1:] * centred[:-1])) / total if total > 0 else 0.0
    if correlation < _DOUBTLESS:
        return 1.0
    return (1.0 + correlation) / (1.0 - correlation)


def _merged(before: Moments | None, batch: Moments) -> Moments:
    return batch if before is None else before.merged(batch)
