"""What a chain would do were the posterior the one that its metric believes in.

Where the metric has been learnt from draws, whitened coordinates have mean 0 and variance 1 as far
as is known. On the standard normal target a path is linear: with the noise of the tape the chain is
known but for its decisions, at no gradient of the model. Its states are the first guess of those
that windows solve, and its energies say how decisions change between sweeps
(:mod:`pymc_deer.ops.scan`). Both change the number of sweeps, never what is solved
(docs/accelerations.md).
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from pymc_deer.backends.request import Tuning
from pymc_deer.leapfrog import paired_share
from pymc_deer.ops.scan import chain_states


class LinearTransitions(NamedTuple):
    """Transitions on the standard normal target, (n,) each.

    An accepted one makes ``decay * z + kick * xi`` of z. The energy changes by `bend` times what
    the squared length of the state changes by.
    """

    decay: Any
    kick: Any
    bend: Any


def on_standard_normal(xp: Any, step_sizes: Any, n_leapfrog: Any) -> LinearTransitions:
    """What transitions of the tape are on that target; of step size 0, none moves.

    A leapfrog step, or a pair of steps, is a matrix of position and momentum whose determinant is
    1, with ``turn`` twice on its diagonal and ``move`` beside it: so its powers are turns as well,
    and a quadratic form that is not quite the energy stays what it is.

    Parameters
    ----------
    xp
        ``numpy`` or ``jax.numpy``.
    step_sizes, n_leapfrog
        Shape (n,), as of :class:`~pymc_deer.leapfrog.Path`.
    """
    squared, is_pair = step_sizes**2, n_leapfrog % 2 == 0
    share = xp.where(is_pair, xp.minimum(paired_share(squared), 0.5), 0.5)
    even, odd = 1 - share * squared, 1 - (1 - share) * squared
    # Beyond the stability limit, what is nearest within it.
    turn = xp.clip(xp.where(is_pair, 2 * even * odd - 1, even), -1, 1)
    move = step_sizes * xp.where(is_pair, 2 * odd, 1)
    angle, n = xp.arccos(turn), xp.where(is_pair, n_leapfrog // 2, n_leapfrog)
    sine, moves = xp.sin(angle), move != 0
    turned = xp.sin(n * angle) / xp.where(sine > 0, sine, 1)
    share_kept = (1 - turn**2) / xp.where(moves, move, 1) ** 2
    bend = xp.where(moves, (1 - share_kept) / 2, 0)
    found = xp.cos(n * angle), move * xp.where(sine > 0, turned, n), bend
    return LinearTransitions(*(array.astype(step_sizes.dtype) for array in found))


def from_rest(
    xp: Any, start: Any, xi: Any, log_u: Any, decay: Any, kick: Any, bend: Any
) -> tuple[Any, ...]:
    """That chain as :class:`~pymc_deer.ops.scan.ChainScan` has it: known is what becomes of 0.

    Parameters
    ----------
    xp
        ``numpy`` or ``jax.numpy``.
    start
        State before the first of n transitions, shape (D,).
    xi, log_u
        Their noise, (n, D) and (n,).
    decay, kick, bend
        As of :class:`LinearTransitions`.
    """
    pushes = kick[:, None] * xi
    log_alpha = -bend * (pushes**2).sum(axis=1)
    rest = xp.zeros(pushes.shape, pushes.dtype)
    return decay[:, None], pushes, rest, start, log_alpha, log_u, bend


def known_ahead(
    start: np.ndarray,
    noise: Sequence[np.ndarray],
    tuning: Tuning,
    loop: Callable[..., np.ndarray] = chain_states,
) -> tuple[np.ndarray, np.ndarray]:
    """What the chain is expected to do, shape (n, D), and the bends of its transitions, (n,).

    Where the tuning does not say, (0, D), and zeros.

    Parameters
    ----------
    start
        Shape (D,).
    noise
        As of :class:`~pymc_deer.backends.trajectory.Noise`.
    loop
        :func:`~pymc_deer.ops.scan.chain_states`, or what Numba makes of it.
    """
    xi, log_u, *paths = noise
    if not tuning.standardized:
        return xi[:0], np.zeros_like(paths[0])
    transitions = on_standard_normal(np, *paths)
    return loop(*from_rest(np, start, xi, log_u, *transitions)), transitions.bend
