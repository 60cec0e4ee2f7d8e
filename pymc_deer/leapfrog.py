# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Leapfrog paths in whitened coordinates, and the directions they carry along, symbolically.

A path of one step is inlined; longer ones are a loop, whose number of steps is an input. States
are one (D,) or a batch (W, D), whose paths may have different lengths: shorter ones wait. Kicks at
the end of a step and at the start of the next, by the same gradient, are one.

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


class _Kicks(NamedTuple):
    """What the momentum is kicked by, over the gradient, shape (...).

    Two kicks by one gradient, at the end of a step and at the start of the next, are one.

    Attributes
    ----------
    at_ends
        Where a path begins and where it ends: half of what is between pairs.
    in_pairs
        Between the two steps of a pair.
    more
        By how much more it is between pairs.
    """

    at_ends: Tensor
    in_pairs: Tensor
    more: Tensor

    @classmethod
    def of(cls, path: Path) -> "_Kicks":
        at_ends = path.step_size * first_share(path)
        in_pairs = 2 * (path.step_size - at_ends)
        return cls(at_ends, in_pairs, 2 * at_ends - in_pairs)

    def before(self, i: Tensor) -> Tensor:
        """That before step i, from 0 on."""
        return pt.switch(pt.eq(i, 0), self.at_ends, self.behind(i + 1))

    def behind(self, i: Tensor) -> Tensor:
        """That behind step i, were it not the last one."""
        # Without a comparison, which XLA would make for each coordinate.
        is_second = pt.bitwise_and(i, 1).astype(self.more.dtype)
        return self.in_pairs + is_second * self.more


def leapfrog(
    density: GradientFirst, start: Phase, path: Path, tangent: Tangent | None = None
) -> tuple[Phase, Tensor | None]:
    """The end of a path of one step or more, and the directions there.

    One gradient and P products for every step, and logp at the end.
    """
    step_size, n = path
    kicks = _Kicks.of(path)
    kicked = start.momentum + pt.expand_dims(kicks.at_ends, -1) * start.dlogp
    turning: list[Tensor] = []
    if tangent is not None:
        # As many as there are states, where all follow the same ones.
        first = tangent.directions + pt.expand_dims(pt.zeros_like(start.z), -2)
        turning = [first, pt.zeros_like(first)]
    if n is None:
        density = GradientFirst.of_both(density.both)
        both = kicks.at_ends, kicks.at_ends
        values = _step(density, tangent, step_size, both, None, start.z, kicked, *turning)
    else:
        nothing = _nothing(start.z, density.gradient(start.z)[1:])

        def step(i: Tensor, values: list[Tensor], shared: list[Tensor]) -> list[Tensor]:
            z, momentum, _, *others = values
            own = _Kicks(*shared)
            moves = pt.lt(i, n) if n.ndim else None
            both = own.before(i), own.behind(i)
            turning = others[: len(others) - len(nothing)]
            return _step(density, tangent, step_size, both, moves, z, momentum, *turning)

        values = [start.z, kicked, start.dlogp, *turning, *nothing]
        values = _repeated(n, step, values, kicks)
        values[1] = _ended(kicks, *values[1:3])
    z, momentum, dlogp, *others = values
    parts = others[len(turning) :]
    return Phase(z, momentum, density.logp(parts), dlogp), others[0] if turning else None


def _step(
    density: GradientFirst,
    tangent: Tangent | None,
    step_size: Tensor,
    kicks: tuple[Tensor, Tensor],
    moves: Tensor | None,
    z: Tensor,
    momentum: Tensor,
    *turning: Tensor,
) -> list[Tensor]:
    """Position, momentum, gradient and directions behind a step, and what logp follows from.

    The momentum has had the kick at the start, the first of two, which directions have not.
    States that do not move stay where they are, and all is computed there once more. None is all.
    """
    before, behind = kicks
    moved = _held(moves, z, z + pt.expand_dims(step_size, -1) * momentum)
    dlogp, *parts = density.gradient(moved)
    kicked = _held(moves, momentum, momentum + pt.expand_dims(behind, -1) * dlogp)
    turned = []
    if tangent is not None:
        turned = _step_tangent(tangent.hvp, z, *turning, step_size, before)
    turned = [_held(moves, *pair) for pair in zip(turning, turned, strict=True)]
    return [moved, kicked, dlogp, *turned, *parts]


def _ended(kicks: _Kicks, momentum: Tensor, dlogp: Tensor) -> Tensor:
    """Without the half of the last kick that would begin another step."""
    return momentum - pt.expand_dims(kicks.at_ends, -1) * dlogp


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
    hvp: Hvp, z: Tensor, directions: Tensor, momentum: Tensor, step_size: Tensor, kick: Tensor
) -> list[Tensor]:
    """The same for directions and their momentum."""
    momentum = momentum + pt.expand_dims(kick, (-2, -1)) * hvp(z, directions)
    return [directions + pt.expand_dims(step_size, (-2, -1)) * momentum, momentum]


def _repeated(
    n: Tensor, step: Callable[..., list[Tensor]], values: Sequence[Tensor], shared: Sequence[Tensor]
) -> list[Tensor]:
    """The values after n rounds of `step`.

    It is given the number of the round, the values, and what is computed once for all rounds; its
    other inputs are found in its graph.
    """
    number, carried, once = pt.lscalar(), [v.type() for v in values], [v.type() for v in shared]
    outputs = step(number, carried, once)
    own = [number, *carried, *once]
    others = [v for v in explicit_graph_inputs(outputs) if v not in own]
    return Repeat([*own, *others], outputs)(n, *values, *shared, *others, return_list=True)
