"""How slowly a chain forgets: autocorrelation times by batch means (Geyer 1992)."""

from dataclasses import dataclass, field

import numpy as np

_MOST_BATCHES = 40


def autocorrelation_time(means: np.ndarray, length: float, variance: np.ndarray) -> float:
    """Integrated autocorrelation time of the slowest coordinate; at most about `length`.

    Parameters
    ----------
    means
        Means of successive batches, (n, D); at least two.
    length
        Rows of a batch.
    variance
        Variance of the rows, (D,).
    """
    between = np.var(means, axis=0, ddof=1)
    return float(np.max(length * between / np.maximum(variance, np.finfo(float).tiny)))


@dataclass
class BatchMeans:
    """Sums of 20 to 40 successive batches of rows, however many rows come.

    When there are 40 batches, neighbours are joined.
    """

    length: int = 1
    count: int = 0
    sums: list[np.ndarray] = field(default_factory=list)
    squares: np.ndarray | float = 0.0

    def add(self, row: np.ndarray) -> None:
        """Take in the next row, shape (D,)."""
        row = row.astype(float)
        if self.count % self.length:
            self.sums[-1] = self.sums[-1] + row
        else:
            self.sums.append(row)
        self.squares = self.squares + row**2
        self.count += 1
        if self.count == _MOST_BATCHES * self.length:
            self.sums = [a + b for a, b in zip(self.sums[::2], self.sums[1::2], strict=True)]
            self.length *= 2

    def autocorrelation_time(self) -> float:
        """Of the slowest coordinate, in rows; 0 from fewer than two batches."""
        n = self.count // self.length
        if n < 2:
            return 0.0
        mean = np.sum(self.sums, axis=0) / self.count
        variance = self.squares / self.count - mean**2
        return autocorrelation_time(np.array(self.sums[:n]) / self.length, self.length, variance)
