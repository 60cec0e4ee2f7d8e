"""How many transitions a recorded draw takes."""

import numpy as np

from pymc_deer.memory import affordable_rows

_MAX_STEPS_PER_DRAW = 64
"""Most transitions for a recorded draw: beyond it, longer transitions are the better cure."""

_MOST_GRADIENTS_PER_DRAW = 4096
"""Leapfrog steps for a recorded draw, four times what a tree of NUTS may take: a posterior on which
more are needed is not one to wait for."""


def steps_per_draw(transitions: float, size: int) -> int:
    """A number of transitions, as whole and within bounds: all of a draw are held at once.

    Parameters
    ----------
    transitions
        As many as are wanted.
    size
        Dimension D of a state.
    """
    most = min(_MAX_STEPS_PER_DRAW, affordable_rows(size))
    return int(np.clip(round(transitions), 1, most))


def affordable_steps(n_leapfrog: int) -> int:
    """Transitions that a draw may take, each of so many leapfrog steps."""
    return max(1, _MOST_GRADIENTS_PER_DRAW // n_leapfrog)
