"""How much of a solve one call of compiled code does.

Python hears of no signal while compiled code runs, so a solve is cut into calls that return soon.
Where it is cut leaves no trace in what it finds: the cuts may follow the clock.
"""

import sys
import time
from collections.abc import Callable, Iterator

import numpy as np

CALL_SECONDS = 0.2
"""Time a call should take: short for one who waits, long beside the cost of a call."""

_GROWTH = 16
"""Most by which calls grow from one to the next: the first ones are too short to be timed well."""


class Pace:
    """The work that fits into one call, learnt from the calls before.

    Work is counted in pieces that cannot be cut (a transition, a sweep), each of a weight that is
    known beforehand (its leapfrog steps). A call does at least one piece.

    Parameters
    ----------
    clock
        Seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._begun = 0.0
        self._work = 0.0
        self._speed = 0.0

    def allows(self, weight: float) -> int:
        """How many pieces of that weight the call may do that now begins."""
        self._begun = self._clock()
        return max(1, int(self._work / weight))

    def took(self, pieces: int, weight: float) -> None:
        """Learn from the call that ends: it did so many pieces of that weight."""
        done = pieces * weight
        self._speed = done / max(self._clock() - self._begun, 1e-9)
        self._work = min(CALL_SECONDS * self._speed, _GROWTH * max(done, self._work))

    def seconds(self, pieces: int, weight: float) -> float:
        """Time that so many pieces of that weight take, as fast as the last call was."""
        return pieces * weight / self._speed if self._speed else np.inf

    def calls(self, n: int, weight: float) -> Iterator[tuple[int, int]]:
        """First and last (exclusive) of the pieces of each call, for n pieces in all."""
        first = 0
        while first < n:
            last = min(n, first + self.allows(weight))
            yield first, last
            self.took(last - first, weight)
            first = last


class Unhurried(Pace):
    """All the work in one call, whatever the time: several processes have no clock in common."""

    def allows(self, weight: float) -> int:
        return sys.maxsize

    def took(self, pieces: int, weight: float) -> None:
        pass
