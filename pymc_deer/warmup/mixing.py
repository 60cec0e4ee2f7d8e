"""How slowly a chain forgets: autocorrelation times by batch means (Geyer 1992)."""

from dataclasses import dataclass, field

import numpy as np

from pymc_deer.duplicate import duplicate

_MOST_BATCHES = 40
_MOST_WATCHED = 4000

_APART = 1000.0
"""Variance of chains' means, in those of their batches, of chains that are not seen to meet: of
chains in different modes thousands to millions; of slow ones in a single mode hundreds in the first
windows, rarely more, and at most tens in the last ones."""

ROUNDING = 100 * np.finfo(float).eps
"""Relative deviation below which numbers are the same."""


def watched(rows: np.ndarray) -> np.ndarray:
    """The coordinates by which chains are judged, of rows (..., D).

    Examples
    --------
    >>> import numpy as np
    >>> watched(np.arange(2_000_000))[[0, 1, 1999, 2000, -1]].tolist()
    [0, 1, 1999, 2000, 1999999]
    """
    return rows[..., columns_watched(rows.shape[-1])]


def columns_watched(size: int) -> slice | np.ndarray:
    """Which these are of D: all, or as many as are affordable.

    Half of these are the first ones, as a model has its parents before their children; the others
    are evenly spaced.
    """
    if size <= _MOST_WATCHED:
        return slice(None)
    half = _MOST_WATCHED // 2
    spaced = np.linspace(half, size - 1, half).round().astype(int)
    return np.concatenate([np.arange(half), spaced])


def are_apart(means: np.ndarray) -> bool:
    """Whether chains stay in different places, such as modes, and move about in each.

    What they have in common is then the shape of such a place. Chains that have merely seen little
    are not apart: the batches of each differ as well.

    Parameters
    ----------
    means
        As in :func:`autocorrelation_time`.
    """
    if len(means) < 2 or means.shape[1] < 2:
        return False
    within = np.median(np.var(means, axis=0, ddof=1), axis=0)
    between = np.var(means.mean(axis=0), axis=0, ddof=1)
    # Where they stand still but for rounding they are not in a mode, but stuck.
    moving = np.sqrt(within) > ROUNDING * np.abs(means).max(axis=(0, 1))
    return bool((moving & (between > _APART * within)).any())


def autocorrelation_time(means: np.ndarray, length: float, variance: np.ndarray) -> float:
    """Integrated autocorrelation time of the slowest coordinate; at most about `length`.

    Parameters
    ----------
    means
        Means of each chain's successive batches, (n, C, D); at least two.
    length
        Rows of a batch.
    variance
        Variance of the rows about the mean of their chain, (D,).
    """
    between = np.var(means, axis=0, ddof=1).mean(axis=0)
    # Rows vary by half as much as their batches, at least: less is the rounding of a coordinate
    # that stood still.
    floor = np.maximum(between / 2, np.finfo(float).tiny)
    return float(np.max(length * between / np.maximum(variance, floor)))


def largest_of_noisy(free: int, size: int) -> float:
    """How many times too large the largest of `size` equal times comes out, about.

    The relative error of a variance of so many degrees of freedom n is sqrt(2 / n), and the
    largest of D normal numbers lies near sqrt(2 log D).
    """
    return 1 + 2 * float(np.sqrt(np.log(size) / free))


@dataclass
class BatchMeans:
    """Sums of 20 to 40 successive batches of rows, however many rows come.

    When there are 40 batches, neighbours are joined. Of each row the coordinates that are watched,
    less those of the first one: sums of squares about 0 would be all rounding where a mean is 1e8
    standard deviations.
    """

    origin: np.ndarray | None = None
    length: int = 1
    count: int = 0
    sums: list[np.ndarray] = field(default_factory=list)
    squares: np.ndarray | float = 0.0

    def copy(self) -> "BatchMeans":
        """One to which rows can be added without this one's knowing."""
        return duplicate(self, sums=list(self.sums))

    def add(self, rows: np.ndarray) -> None:
        """Take in the next rows, shape (n, D)."""
        rows = watched(rows).astype(float)
        if self.origin is None:
            self.origin = rows[0].copy()
        rows -= self.origin
        self.squares = self.squares + (rows**2).sum(axis=0)
        while len(rows):
            # As many as there is room for in batches of this length.
            some, rows = np.split(rows, [_MOST_BATCHES * self.length - self.count])
            begun = self.count % self.length
            firsts = np.maximum(np.arange(-begun, len(some), self.length), 0)
            sums = list(np.add.reduceat(some, firsts, axis=0))
            if begun:
                self.sums[-1] = self.sums[-1] + sums.pop(0)
            self.sums += sums
            self.count += len(some)
            if self.count == _MOST_BATCHES * self.length:
                self.sums = [a + b for a, b in zip(self.sums[::2], self.sums[1::2], strict=True)]
                self.length *= 2

    def autocorrelation_time(self) -> float:
        """Of the slowest coordinate, in rows; 0 from fewer than two batches.

        Rows that are all the same are worth one. The largest of many noisy times is too large,
        which is made up for.
        """
        n = self.count // self.length
        if n < 2:
            return 0.0
        if not np.any(self.squares):
            return float(self.count)
        mean = np.sum(self.sums, axis=0) / self.count
        variance = self.squares / self.count - mean**2
        means = np.array(self.sums[:n])[:, None] / self.length
        time = autocorrelation_time(means, self.length, variance)
        return time / largest_of_noisy(n - 1, means.shape[2])
