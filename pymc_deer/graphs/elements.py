"""What a variable's elements are: one function of others, or all the same number."""

from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Variable
from pytensor.tensor.elemwise import Elemwise


def negated(variable: Any) -> Any | None:
    """What `variable` is element by element the negative of, by either of the Ops that say so; None
    if of nothing.
    """
    if found := inputs_of(variable, ps.Neg):
        return found[0]
    factors = inputs_of(variable, ps.Mul)
    if len(factors) != 2 or underlying_constant(factors[0]) != -1:
        return None
    # A factor of -1 may be an array of more axes.
    is_whole = factors[1].type.broadcastable == variable.type.broadcastable
    return factors[1] if is_whole else None


def inputs_of(variable: Any, kind: type) -> list[Any]:
    """Inputs of the elementwise Op of this kind that `variable` comes from; none if of another."""
    node = variable.owner
    if node is None or not isinstance(node.op, Elemwise):
        return []
    return node.inputs if isinstance(node.op.scalar_op, kind) else []


def underlying_constant(variable: Any) -> Any:
    """The number that all elements are, or None."""
    value = pt.get_underlying_scalar_constant_value(variable, raise_not_constant=False)
    return None if isinstance(value, Variable) else value


def is_zeros(variable: Any) -> bool:
    """Whether all elements are 0."""
    return bool(underlying_constant(variable) == 0)
