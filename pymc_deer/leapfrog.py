# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Leapfrog paths in whitened coordinates, and the directions they carry along, symbolically.

A path of one step is inlined; longer ones are a loop, whose number of steps is an input. States
are one (D,) or a batch (W, D), whose paths may have different lengths: shorter ones wait.

An even number of steps is taken in pairs, two-stage steps (Blanes, Casas and Sanz-Serna 2014,
"Numerical integrators for the hybrid Monte Carlo method"). A leapfrog step of size eps kicks the
momentum by eps times the gradient, half at its start and half at its end. The first step of a pair
gives a share s at its start and 1 - s at its end, the second one 1 - s and s. That is a palindrome
of kicks and drifts, reversible and without change of volume like any, at one gradient a step; but
where leapfrog has an energy error of order eps^2, on a Gaussian hardly any is left.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.traversal import explicit_graph_inputs

from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.ops.repeat import Repeat
from pymc_deer.typing import Tensor

Hvp = Callable[[Tensor, Tensor], Tensor]
"""Hessian at z (..., D) times each of the probes (..., P, D), in whitened coordinates."""


class Path(NamedTuple):
    """Step sizes, shape (...), and numbers of leapfrog steps, integers (...); None is 1 each."""

    step_size: Tensor
    n_leapfrog: Tensor | None = None


class Phase(NamedTuple):
    """Position and momentum with logp and its gradient: (..., D), (..., D), (...), (..., D)."""

    z: Tensor
    momentum: Tensor
    logp: Tensor
    dlogp: Tensor


class Tangent(NamedTuple):
    """Directions (..., P, D) to carry along a path, and the Hessian that bends them."""

    hvp: Hvp
    directions: Tensor


def first_share(path: Path) -> Tensor:
    """The share s of a step's kick that the first step of a path gives at its start, shape (...).

    Half for an odd number of steps, which are leapfrog steps alone. For an even one, what makes the
    energy error least on Gaussians that turn by up to eps in a step: for eps near 0 that is
    (3 - sqrt(5)) / 2, and for 1 twice the 0.21178 of Blanes et al.; where long steps are no longer
    stable it is half again. Between, the polynomial is close to what minimises their bound.
    """
    if path.n_leapfrog is None:
        return pt.full_like(path.step_size, 0.5)
    is_even = pt.eq(path.n_leapfrog % 2, 0)
    share = pt.switch(is_even, pt.minimum(paired_share(path.step_size**2), 0.5), 0.5)
    return share.astype(path.step_size.dtype)


def paired_share(squared: Any) -> Any:
    """The share for an even number of steps, by the step size squared; at most half is taken."""
    return (3 - np.sqrt(5)) / 2 + squared * (0.0336 + 0.008 * squared)


def leapfrog(
    density: GradientFirst, start: Phase, path: Path, tangent: Tangent | None = None
) -> tuple[Phase, Tensor | None]:
    """The end of a path of one step or more, and the directions there.

    One gradient and P products for every step, and logp at the end.
    """
    step_size, n_left = path
    share = first_share(path)
    directions: list[Tensor] = []
    if tangent is not None:
        # As many as there are states, where all follow the same ones.
        first = tangent.directions + pt.expand_dims(pt.zeros_like(start.z), -2)
        directions = [first, pt.zeros_like(first), step_size * share]
    values = [start.z, start.momentum, start.dlogp, share, *directions]
    if n_left is None:
        density = GradientFirst.of_both(density.both)
        values = _step(density, tangent, step_size, None, *values)
    else:
        nothing = _nothing(start.z, density.gradient(start.z)[1:])

        def step(n_left: Tensor, *values: Tensor) -> list[Tensor]:
            moves = pt.gt(n_left, 0) if n_left.ndim else None
            carried = values[: len(values) - len(nothing)]
            return [n_left - 1, *_step(density, tangent, step_size, moves, *carried)]

        _, *values = _repeated(n_left, step, [n_left, *values, *nothing])
    z, momentum, dlogp, _, *others = values
    parts = others[len(directions) :]
    return Phase(z, momentum, density.logp(parts), dlogp), others[0] if directions else None


def _step(
    density: GradientFirst,
    tangent: Tangent | None,
    step_size: Tensor,
    moves: Tensor | None,
    z: Tensor,
    momentum: Tensor,
    dlogp: Tensor,
    share: Tensor,
    *directions: Tensor,
) -> list[Tensor]:
    """Position, momentum, gradient, share and directions behind a step, and what logp follows from.

    States that do not move stay where they are, and all is computed there once more. None is all.
    """
    size, rest = pt.expand_dims(step_size, -1), 1 - share
    kicked = momentum + pt.expand_dims(step_size * share, -1) * dlogp
    moved = _held(moves, z, z + size * kicked)
    moved_dlogp, *parts = density.gradient(moved)
    kicked = _held(moves, momentum, kicked + pt.expand_dims(step_size * rest, -1) * moved_dlogp)
    turned = []
    if tangent is not None:
        turned = _step_tangent(tangent.hvp, z, *directions, step_size, 2 * step_size * rest)
    turned = [_held(moves, *pair) for pair in zip(directions, turned, strict=True)]
    # What a step gives at its end, the next one gives at its start.
    return [moved, kicked, moved_dlogp, rest, *turned, *parts]


def _held(moves: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    if moves is None:
        return new
    return pt.switch(pt.expand_dims(moves, tuple(range(1, old.ndim))), new, old)


def _nothing(z: Tensor, parts: Sequence[Tensor]) -> list[Tensor]:
    """Room for these parts of each state: what is there before the first step is not looked at."""
    lead = z.ndim - 1
    of_all = [z.shape[i] if n is None else n for i, n in enumerate(z.type.shape[:lead])]
    return [pt.zeros((*of_all, *part.type.shape[lead:]), part.type.dtype) for part in parts]


def _step_tangent(
    hvp: Hvp,
    z: Tensor,
    directions: Tensor,
    momentum: Tensor,
    kick: Tensor,
    step_size: Tensor,
    next_kick: Tensor,
) -> list[Tensor]:
    """The same for a direction, whose two kicks between steps are joined to one product."""
    momentum = momentum + pt.expand_dims(kick, (-2, -1)) * hvp(z, directions)
    directions = directions + pt.expand_dims(step_size, (-2, -1)) * momentum
    return [directions, momentum, next_kick]


def _repeated(
    n: Tensor, step: Callable[..., list[Tensor]], values: Sequence[Tensor]
) -> list[Tensor]:
    """The values after n rounds of `step`, whose other inputs are found in its graph."""
    carried = [value.type() for value in values]
    outputs = step(*carried)
    shared = [v for v in explicit_graph_inputs(outputs) if v not in carried]
    return Repeat([*carried, *shared], outputs)(n, *values, *shared, return_list=True)
