r"""Diagonal linearisations of one transition: the rules of the DEER sweep.

A rejected step does not move, so its Jacobian is 1 under every rule. For an accepted step of L
leapfrog steps in whitened coordinates, with c >= 1 the curvature bound:

``preconditioned``
    :math:`\cos(L \arccos(1 - c\,\varepsilon^2/2))`, the Jacobian of a Gaussian of curvature c,
    and for pairs of steps what they have in its place: a scalar, no Hessian-vector product.
``secant``
    One for each step and coordinate: the change of the proposal over the change of the state since
    the sweep before (a diagonal secant; Dennis and Schnabel 1996, chapter 8), drawn towards that of
    ``preconditioned`` where other coordinates moved more, and within what curvatures of 0.7 to 3
    allow, but at least -0.4. That of ``preconditioned`` where nothing moved yet. No Hessian-vector
    product either.
``stochastic``
    :math:`1 - c\,(1 - \mathrm{mean}_p\, v_p \odot J v_p)` with Rademacher probes v (Hutchinson's
    estimate of the diagonal; Bekas, Kokiopoulou and Saad 2007): L Hessian-vector products a probe,
    which carry v along the path.
``exact``
    The diagonal of J itself: the same, with the D unit vectors for probes.

All others are clipped to [0, 1]. Within [-1, 1] errors never grow along the scan, but beyond a
quarter turn only a rule that looks at the present states is right often enough for more than that
(docs/accelerations.md).
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

_LEAST_SECANT = -0.4
"""Paths that turn back have less. With 0 two of three regressions take a quarter more sweeps, and
with -1 other models twice as many, where curvature varies."""

_OTHERS = 0.1
"""Weight of what other coordinates moved by, beside a coordinate's own move: they change its
proposal too. Between 0.03 and 1 it hardly matters."""


def preconditioned_jacobian(path: Path, curvature: Tensor) -> Tensor:
    """Jacobian of an accepted step on a Gaussian of the given curvature, shaped as the path's.

    Beyond the stability limit, where the path has no such form, that of the limit.
    """
    return pt.clip(_on_gaussian(path, curvature), 0, 1)


def _on_gaussian(path: Path, curvature: Tensor) -> Tensor:
    if path.n_leapfrog is None:
        return 1 - curvature * path.step_size**2 / 2
    return pt.cos(_angle(path, curvature))


def _angle(path: Path, curvature: Tensor) -> Tensor:
    """By which a path turns on a Gaussian of the given curvature, shaped as the path's."""
    squared, n = curvature * path.step_size**2, cast("Tensor", path.n_leapfrog)
    share = first_share(path)
    even, odd = 1 - share * squared, 1 - (1 - share) * squared
    # Half the angle of two steps. A leapfrog step may be more than a quarter turn.
    angle = cast("Any", pt.arccos(pt.clip(2 * even * odd - 1, -1, 1))) / 2
    wide = pt.and_(pt.lt(even, 0), pt.eq(n % 2, 1))
    return n.astype(squared.dtype) * pt.switch(wide, np.pi - angle, angle)


def secant_jacobian(
    previous: Tensor, proposals: Tensor, memory: Tensor, path: Path, curvature: Tensor
) -> Tensor:
    """Jacobians of accepted steps, shape (W, D), from two successive guesses.

    Parameters
    ----------
    previous, proposals
        States that the transitions start from, and where their paths end, (W, D).
    memory
        Both as the sweep before had them, (W, 2 D); NaN where it had none.
    path
        Step sizes and numbers of steps, (W, 1).
    curvature
        What to assume where the guess has hardly changed, and to draw secants to.
    """
    size, dtype = previous.shape[1], previous.dtype
    moved, change = previous - memory[:, :size], proposals - memory[:, size:]
    # Closer states leave too few digits in the difference of the proposals.
    resolution = np.sqrt(np.finfo(dtype).eps) / 100
    of_all = pt.mean(moved**2, axis=1, keepdims=True)
    seen = pt.and_(pt.gt(of_all, resolution**2), pt.lt(pt.abs(change), float("inf")))
    weights = moved**2 + _OTHERS * (of_all - moved**2 / size.astype(dtype))
    assumed = preconditioned_jacobian(path, curvature)
    secant = assumed + (change - assumed * moved) * moved / pt.switch(seen, weights, 1)
    return pt.switch(seen, pt.clip(secant, *_believed(path, dtype)), assumed)


def _believed(path: Path, dtype: str) -> tuple[Tensor, Tensor]:
    """Least and largest Jacobian for curvatures within `_SECANT_RANGE`."""
    range_of = [pt.constant(c, dtype=dtype) for c in _SECANT_RANGE]
    ends = [_on_gaussian(path, curvature) for curvature in range_of]
    least, most = pt.minimum(*ends), pt.maximum(*ends)
    if path.n_leapfrog is not None:
        # The ends, unless a whole turn lies between them, or a half one.
        low, high = (_angle(path, curvature) / (2 * np.pi) for curvature in range_of)
        most = pt.switch(pt.lt(pt.floor(low), pt.floor(high)), 1, most)
        least = pt.switch(pt.lt(pt.floor(low + 0.5), pt.floor(high + 0.5)), -1, least)
    return pt.maximum(least, _LEAST_SECANT), pt.maximum(most, _LEAST_SECANT)


def accepted_jacobian(diagonal: Tensor, curvature: Tensor) -> Tensor:
    """Clip an estimated diagonal, (..., D), after scaling its distance from 1 by the bound c."""
    return pt.clip(1 - curvature * (1 - diagonal), 0, 1)


def unit_probes(size: int, dtype: str) -> np.ndarray:
    """The D unit vectors, shape (1, D, D): the probes of the ``exact`` rule."""
    return np.eye(size, dtype=dtype)[None]
