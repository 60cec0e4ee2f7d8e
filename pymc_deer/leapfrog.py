# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Leapfrog paths in whitened coordinates, and the directions they carry along, symbolically.

A path of one step is inlined; longer ones are a loop, whose number of steps is an input. States
are one (D,) or a batch (W, D), whose paths may have different lengths: shorter ones wait.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import pytensor.tensor as pt
from pytensor.graph.traversal import explicit_graph_inputs

from pymc_deer.repeat import Repeat
from pymc_deer.typing import Tensor

LogpDlogp = Callable[[Tensor], "list[Tensor]"]
"""Logp (...) and its gradient (..., D) at z (..., D)."""

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


def leapfrog(
    density: LogpDlogp, start: Phase, path: Path, tangent: Tangent | None = None
) -> tuple[Phase, Tensor | None]:
    """The end of a path, and the directions there: one gradient and P products for every step."""
    values = list(start)
    if tangent is not None:
        # As many as there are states, where all follow the same ones.
        directions = tangent.directions + pt.expand_dims(pt.zeros_like(start.z), -2)
        kick = path.step_size / 2
        values += [directions, pt.zeros_like(directions), kick]

    def step(*values: Tensor) -> list[Tensor]:
        phase = Phase(*values[:4])
        moved = list(_step(density, phase, path.step_size))
        if tangent is None:
            return moved
        return moved + _step_tangent(tangent.hvp, phase.z, *values[4:], path.step_size)

    if path.n_leapfrog is None:
        values = step(*values)
    elif path.n_leapfrog.ndim == 0:
        values = _repeated(path.n_leapfrog, step, values)
    else:
        n_left, longest = path.n_leapfrog, pt.max(path.n_leapfrog)
        _, *values = _repeated(longest, _while_any_left(step), [n_left, *values])
    return Phase(*values[:4]), None if tangent is None else values[4]


def _step(density: LogpDlogp, phase: Phase, step_size: Tensor) -> Phase:
    step_size = pt.expand_dims(step_size, -1)
    half_step = step_size / 2
    momentum = phase.momentum + half_step * phase.dlogp
    z = phase.z + step_size * momentum
    logp, dlogp = density(z)
    return Phase(z, momentum + half_step * dlogp, logp, dlogp)


def _step_tangent(
    hvp: Hvp, z: Tensor, directions: Tensor, momentum: Tensor, kick: Tensor, step_size: Tensor
) -> list[Tensor]:
    """The same for a direction, whose two half kicks between steps are joined to one product."""
    momentum = momentum + pt.expand_dims(kick, (-2, -1)) * hvp(z, directions)
    directions = directions + pt.expand_dims(step_size, (-2, -1)) * momentum
    return [directions, momentum, step_size]


def _while_any_left(step: Callable[..., list[Tensor]]) -> Callable[..., list[Tensor]]:
    """A step of those paths in a batch that have steps left."""

    def advance(n_left: Tensor, *values: Tensor) -> list[Tensor]:
        moves = pt.gt(n_left, 0)
        rows = [
            pt.switch(pt.expand_dims(moves, tuple(range(1, old.ndim))), new, old)
            for old, new in zip(values, step(*values), strict=True)
        ]
        return [n_left - 1, *rows]

    return advance


def _repeated(
    n: Tensor, step: Callable[..., list[Tensor]], values: Sequence[Tensor]
) -> list[Tensor]:
    """The values after n rounds of `step`, whose other inputs are found in its graph."""
    carried = [value.type() for value in values]
    outputs = step(*carried)
    shared = [v for v in explicit_graph_inputs(outputs) if v not in carried]
    return Repeat([*carried, *shared], outputs)(n, *values, *shared, return_list=True)
