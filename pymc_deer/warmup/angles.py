"""Angles as warm-up sees them: turned back to within half a turn of where they are.

A density of angles is the same a turn on, so a chain may go around any number of times, and on the
line that is a walk that never comes back: of no finite variance, and worth no draw at any length.
Turned back, an angle is a function on the circle like any other. The states themselves stay as they
are.
"""

from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.metric import Metric

_TURN = 2 * np.pi


@dataclass(frozen=True)
class Angles:
    """Coordinates that are angles, and for each the angle that others are turned back to.

    Attributes
    ----------
    columns
        Which coordinates, shape (A,).
    centre
        Shape (A,).
    directions
        Of the angles that were seen, as points on the unit circle, the sum: complex, shape (A,).
    """

    columns: np.ndarray
    centre: np.ndarray
    directions: np.ndarray

    @classmethod
    def about(cls, columns: np.ndarray, centre: np.ndarray) -> "Angles":
        """That have not been seen yet."""
        return cls(columns, centre, np.zeros(len(columns), complex))

    @classmethod
    def about_mean(cls, columns: np.ndarray, metric: Metric, z: np.ndarray) -> "Angles":
        """With the mean direction of whitened states, (n, D), as the centre."""
        unseen = cls.about(columns, np.zeros(len(columns)))
        return unseen.extended(metric, z).about_own_mean()

    def extended(self, metric: Metric, z: np.ndarray) -> "Angles":
        """That have been seen in whitened states, (n, D), too."""
        seen = np.exp(1j * _in_x(metric, z, self.columns)).sum(axis=0)
        return replace(self, directions=self.directions + seen)

    def about_own_mean(self) -> "Angles":
        """With the mean direction of all that were seen as the centre of what comes."""
        return Angles.about(self.columns, np.angle(self.directions))

    def turned_back(self, metric: Metric, z: np.ndarray) -> np.ndarray:
        """Whitened states, (n, D), each angle within half a turn of the centre."""
        turns = self._turns(_in_x(metric, z, self.columns))
        if not turns.any():
            return z
        too_far = np.zeros(z.shape)
        too_far[:, self.columns] = _TURN * turns
        return (z - metric.unscale(too_far)).astype(z.dtype, copy=False)

    def turned_back_in_x(self, x: np.ndarray) -> np.ndarray:
        """The same of states (n, D) that are not whitened."""
        x = x.copy()
        x[:, self.columns] -= _TURN * self._turns(x[:, self.columns])
        return x

    def _turns(self, angles: np.ndarray) -> np.ndarray:
        return np.round((angles - self.centre) / _TURN)


def _in_x(metric: Metric, z: np.ndarray, columns: np.ndarray) -> np.ndarray:
    """Some coordinates of whitened states, (n, D), in x."""
    if metric.is_elementwise:
        return metric.of_columns(columns).to_x(z[:, columns])
    return metric.to_x(z)[:, columns]
