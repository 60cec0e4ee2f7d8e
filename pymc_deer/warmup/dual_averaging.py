"""A step size that is accepted as often as wanted, from what was accepted so far."""

from dataclasses import dataclass
from math import exp, log, sqrt

_LARGE_ERROR = 0.2
"""Of an acceptance rate of 1, at least."""

_HARDLY_ANY, _MISSING = 0.05, 2.5
"""Share of the rejections aimed at that a stretch hardly has, and how many of them are missing, in
such stretches one after the other, where the step size is not a matter of averages: it doubles."""


@dataclass
class DualAveraging:
    """Nesterov's dual averaging of the log step size (Hoffman and Gelman 2014, section 3.2.1).

    One update sees the mean acceptance of a whole stretch, not the noise of a single transition.
    The constants make its gain at most 1.12 on the log step size: acceptance falls by about 0.9
    per unit of it near the target, so that the usual constants (gamma = 0.05) would overshoot.

    High targets leave little to be missed by: with 0.95 a step size that is far too small would
    grow by half in a window. So :meth:`seek` goes faster, as long as it need not be exact.
    """

    target: float
    log_centre: float
    gamma: float = 0.2
    t0: float = 5.0
    kappa: float = 0.75
    count: int = 0
    error: float = 0.0
    log_average: float = 0.0
    missing: float = 0.0

    @classmethod
    def at(cls, step_size: float, target: float) -> "DualAveraging":
        return cls(target, log(step_size), log_average=log(step_size))

    @property
    def current(self) -> float:
        """Step size to try next."""
        return exp(self._log_current)

    @property
    def _log_current(self) -> float:
        return self.log_centre - sqrt(self.count) / self.gamma * self.error

    @property
    def average(self) -> float:
        """Step size to keep."""
        return exp(self.log_average)

    @property
    def exaggerates(self) -> bool:
        """Whether :meth:`seek` makes errors on one side larger than they are."""
        return 1.0 - self.target < _LARGE_ERROR

    def seek(self, acceptance_rate: float, n: int, used: float) -> None:
        """Behind a stretch of n transitions, with a step size that is not always the current one.

        The fewer are rejected of those that were to be, the more it counts, as much as with a
        target of 0.8 where none is: with a higher one, rates that vary come out below it. Where a
        dozen transitions in a row are accepted (of a target of 0.8; with 0.95 four dozen) the step
        size doubles, and averages begin anew: a chain that is far from the typical set, or was
        given a metric there, has no time for steps that are a thousand times too small. Shorter
        steps than the current one say nothing of it where all are accepted.
        """
        wanted = 1.0 - self.target
        has_hardly_any = 1.0 - acceptance_rate < _HARDLY_ANY * wanted
        self.missing = self.missing + n * wanted if has_hardly_any else 0.0
        if self.missing >= _MISSING and used > 0.99 * self.current:
            self.log_centre = self.log_average = self._log_current + log(2.0)
            self.count, self.error, self.missing = 0, 0.0, 0.0
            return
        error = self.target - acceptance_rate
        if error < 0.0:
            error = min(error, -_LARGE_ERROR * (error / wanted) ** 2)
        self._take_in(error)

    def update(self, acceptance_rate: float) -> None:
        """Behind a stretch, towards the target itself."""
        self._take_in(self.target - acceptance_rate)

    def _take_in(self, error: float) -> None:
        self.count += 1
        weight = 1.0 / (self.count + self.t0)
        self.error += weight * (error - self.error)
        share = self.count**-self.kappa
        self.log_average += share * (self._log_current - self.log_average)
