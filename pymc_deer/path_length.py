"""How many leapfrog steps a transition takes: an even number, unless another one is asked for."""

from dataclasses import dataclass

import numpy as np

MAX_STEPS = 256
"""Most leapfrog steps of a transition: a quarter of the longest paths that NUTS takes."""

FIRST_LENGTH = float(np.pi / 2)
"""Path length to begin with: it takes a whitened normal to an independent point."""


@dataclass(frozen=True)
class PathLength:
    """What is known of the paths to take.

    Attributes
    ----------
    steps
        Leapfrog steps of a transition, if that is what stays the same; else None.
    length
        Otherwise steps times step size, in whitened units.
    adapts
        Whether warm-up looks for the best length.
    """

    steps: int | None = 1
    length: float = FIRST_LENGTH
    adapts: bool = False

    def step_size(self, tuned: float) -> float:
        """The step size to take where one is tuned: no two steps go further than the length.

        On a posterior close to a Gaussian, twice the step size of the acceptance rate aimed at can
        be more than half a period. A length that warm-up has found to be shorter than the first one
        is no reason to go less far by two steps, which take as many gradients however short.
        """
        if self.steps is not None:
            return tuned
        return min(tuned, (max(self.length, FIRST_LENGTH) if self.adapts else self.length) / 2)

    def lengths(self, step_size: float, *, learning: bool) -> tuple[int, int]:
        """Fewest and most steps to take, at the given step size: every second number as often.

        Those of a length are even. Learning, up to twice the best length known, so that a better
        one is seen.
        """
        if self.steps is not None:
            return self.steps, self.steps
        learning = learning and self.adapts
        length = 2 * self.length if learning else self.length
        # The smallest step sizes would make it infinite.
        most = 2 * max(round(min(length / step_size, MAX_STEPS) / 2), 1)
        return 2 if learning else most, most
