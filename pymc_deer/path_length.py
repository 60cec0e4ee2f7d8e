"""How many leapfrog steps a transition takes."""

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

    def lengths(self, step_size: float, *, learning: bool) -> tuple[int, int]:
        """Fewest and most steps to take, each number as often, at the given step size.

        Learning, up to twice the best length known, so that a better one is seen.
        """
        if self.steps is not None:
            return self.steps, self.steps
        learning = learning and self.adapts
        length = 2 * self.length if learning else self.length
        # The smallest step sizes would make it infinite.
        most = max(round(min(length / step_size, MAX_STEPS)), 1)
        return 1 if learning else most, most
