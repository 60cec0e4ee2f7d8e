"""Angles as warm-up sees them: turned back to within half a turn of where they are.

A density of angles is the same a turn on, so a chain may go around any number of times, and on the
line that is a walk that never comes back: of no finite variance, and worth no draw at any length.
Turned back, an angle is a function on the circle like any other. The states themselves stay as they
are.
"""

from dataclasses import dataclass

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
    """

    columns: np.ndarray
    centre: np.ndarray

    @classmethod
    def about_mean(cls, columns: np.ndarray, metric: Metric, z: np.ndarray) -> "Angles":
        """With the mean direction of whitened states, (n, D), as the centre."""
        directions = np.exp(1j * _in_x(metric, z, columns))
        return cls(columns, np.angle(directions.mean(axis=0)))

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
