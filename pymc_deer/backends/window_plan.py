"""How a stretch is cut into windows, and when their sweeps are given up."""

from dataclasses import dataclass, replace

_NARROWEST = 8
"""Windows below it cost more than the steps they save."""

LEAST_SWEEPS = 6
"""Wide windows take no fewer sweeps than this, even in perfect whitening; narrow ones may."""


@dataclass(frozen=True)
class WindowPlan:
    """How a stretch is solved; nothing here changes the states by more than the tolerance.

    Attributes
    ----------
    window
        W, transitions solved at once; 1 runs the chain step by step.
    max_sweeps
        Sweeps allowed for every W transitions before the rest is run step by step; None for
        W / 2 + 8, of narrow windows 3/4 W or 6, and always less than W: with few more transitions
        than sweeps, these no longer pay on any device.
    tol
        Bound on the summed residuals of the states from which the next one is committed, in
        whitened units.
    capacity
        Most transitions a call will be asked for.
    """

    window: int
    max_sweeps: int | None
    tol: float
    capacity: int

    def sweep_budget(self, n: int) -> int:
        """Most sweeps for n transitions."""
        return -(-n // self.window) * self._most_sweeps

    @property
    def _most_sweeps(self) -> int:
        """Of a window."""
        if self.max_sweeps is not None:
            return self.max_sweeps
        of_narrow = max(3 * self.window // 4, min(LEAST_SWEEPS, self.window - 1))
        return max(1, min(self.window // 2 + 8, of_narrow))

    def narrowed(self, times: int) -> "WindowPlan":
        """The plan with a quarter of the window, so many times over; below 8 it is sequential.

        A sweep has to pay for itself as before: as many are allowed for as many transitions, but no
        fewer than a window may need.
        """
        window = self.window >> (2 * times)
        most = self._most_sweeps
        most = min(most, max(LEAST_SWEEPS, -(-most * window // self.window)))
        return replace(self, window=window if window >= _NARROWEST else 1, max_sweeps=most)
