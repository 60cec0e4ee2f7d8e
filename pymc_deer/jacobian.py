r"""Diagonal linearisations of one transition: the rules of the DEER sweep.

A rejected step does not move, so its Jacobian is 1 under every rule. For an accepted step of L
leapfrog steps in whitened coordinates, with c >= 1 the curvature bound:

``preconditioned``
    :math:`\cos(L \arccos(1 - c\,\varepsilon^2/2))`, the Jacobian of a Gaussian of curvature c,
    and for pairs of steps what they have in its place: a scalar, no Hessian-vector product.
``secant``
    The same with a curvature for each step and coordinate: minus the change of the gradient over
    the change of the state since the sweep before (a diagonal secant; Dennis and Schnabel 1996,
    chapter 8), within [0.7, 3]. c where nothing moved yet. No Hessian-vector product either.
``stochastic``
    :math:`1 - c\,(1 - \mathrm{mean}_p\, v_p \odot J v_p)` with Rademacher probes v (Hutchinson's
    estimate of the diagonal; Bekas, Kokiopoulou and Saad 2007): L Hessian-vector products a probe,
    which carry v along the path.
``exact``
    The diagonal of J itself: the same, with the D unit vectors for probes.

All are clipped to [0, 1], which keeps the affine scan contracting (design: clipping to [-1, 1]
needs up to twice the sweeps).
"""

from typing import Any, Literal, cast, get_args

import numpy as np
import pytensor.tensor as pt

from pymc_deer.leapfrog import Path, first_share
from pymc_deer.typing import Tensor

Rule = Literal["preconditioned", "secant", "stochastic", "exact"]
RULES: tuple[Rule, ...] = get_args(Rule)

_SECANT_RANGE = (0.7, 3.0)
"""Whitened curvatures that a secant is believed to show: outside lie steps that crossed a bend."""


def preconditioned_jacobian(path: Path, curvature: Tensor) -> Tensor:
    """Jacobian of an accepted step on a Gaussian of the given curvature, shaped as the path's.

    Beyond the stability limit, where the path has no such form, that of the limit.
    """
    squared, n = curvature * path.step_size**2, path.n_leapfrog
    if n is None:
        return pt.clip(1 - squared / 2, 0, 1)
    share = first_share(path)
    even, odd = 1 - share * squared, 1 - (1 - share) * squared
    # Half the angle of two steps. A leapfrog step may be more than a quarter turn.
    angle = cast("Any", pt.arccos(pt.clip(2 * even * odd - 1, -1, 1))) / 2
    wide = pt.and_(pt.lt(even, 0), pt.eq(n % 2, 1))
    angle = pt.switch(wide, np.pi - angle, angle)
    return pt.clip(pt.cos(n.astype(squared.dtype) * angle), 0, 1)


def secant_curvature(previous: Tensor, dlogp: Tensor, memory: Tensor, curvature: Tensor) -> Tensor:
    """Curvature along each coordinate, shape (W, D), from two successive guesses.

    Parameters
    ----------
    previous, dlogp
        States that the transitions start from, and gradients there, (W, D).
    memory
        Both as the sweep before had them, (W, 2 D); NaN where it had none.
    curvature
        What to assume where the guess has hardly changed.
    """
    size = previous.shape[1]
    moved, change = previous - memory[:, :size], dlogp - memory[:, size:]
    # Closer states leave too few digits in the difference of the gradients.
    resolution = np.sqrt(np.finfo(previous.dtype).eps) / 100
    seen = pt.and_(pt.gt(pt.abs(moved), resolution), pt.lt(pt.abs(change), float("inf")))
    secant = pt.clip(-change / pt.switch(seen, moved, 1), *_SECANT_RANGE)
    return pt.switch(seen, secant, curvature)


def accepted_jacobian(diagonal: Tensor, curvature: Tensor) -> Tensor:
    """Clip an estimated diagonal, (..., D), after scaling its distance from 1 by the bound c."""
    return pt.clip(1 - curvature * (1 - diagonal), 0, 1)


def n_probes(rule: Rule, probes: int, size: int) -> int:
    """Number of probes P a rule needs for a D-dimensional state."""
    return {"stochastic": probes, "exact": size}.get(rule, 0)


def unit_probes(size: int, dtype: str) -> np.ndarray:
    """The D unit vectors, shape (1, D, D): the probes of the ``exact`` rule."""
    return np.eye(size, dtype=dtype)[None]
