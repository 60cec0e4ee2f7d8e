"""Short axes first, so that the innermost of the loops over an array's elements is a long one.

The log-probabilities of N observations under the K components of a mixture are an array [N, K]. The
innermost loop, over two or three components, takes one element at a time. Over [K, N] it takes
several, and the sum over components adds long arrays.

Rewrites of graphs that backends compile, for :mod:`~pymc_deer.backends.numba_mode`. XLA lays out
arrays by itself.
"""

from collections.abc import Sequence
from math import prod
from typing import Any, Literal

from pytensor.compile.builders import OpFromGraph
from pytensor.compile.rewriting import inline_ofg_node
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.special import LogSumExp

_SHORT = 16
"""Elements up to which an axis is short: a few steps of a loop that takes four or eight at once."""

_LONG = 32
"""Elements of the other axes together from which a loop over them is worth it."""


_GRADIENTS = (OpFromGraph, getattr(LogSumExp, "derivative_op_type", OpFromGraph))
"""What gradients of functions are in PyTensor's graphs: from 3.3.8 on, some have their own type."""


@node_rewriter([OpFromGraph])
def inlined_gradient(fgraph: Any, node: Any) -> list[Any] | None:
    """What a gradient is made of, in place of a function that other rewrites do not look into.

    PyTensor has such a function for the gradient of ``logsumexp``, which repeats its exponentials.
    """
    return inline_ofg_node(node) if type(node.op) in _GRADIENTS else None


@node_rewriter([Elemwise, Join])
def short_axis_first(fgraph: Any, node: Any) -> list[Any] | None:
    """A loop over elements [..., K] as one over [K, ...], where what it reads can lie that way."""
    shape, op = node.outputs[0].type.shape, node.op
    if not _ends_short(shape) or any(_lies_otherwise(v) for v in node.inputs):
        return None
    if isinstance(op, Join):
        op = Join((op.axis + 1) % len(shape))
    outputs: list[Any] = op.make_node(*map(_last_axis_first, node.inputs)).outputs
    return [output.dimshuffle([*range(1, len(shape)), 0]) for output in outputs]


@node_rewriter([CAReduce])
def reduced_as_it_lies(fgraph: Any, node: Any) -> list[Any] | None:
    """A reduction of an array whose axes were put in another order, of the array before that."""
    [array], op = node.inputs, node.op
    if array.owner is None or not getattr(array.owner.op, "is_transpose", False):
        return None
    order, axes = array.owner.op.new_order, range(array.type.ndim) if op.axis is None else op.axis
    reduced = {order[axis] for axis in axes}
    left = [axis for axis in order if axis not in reduced]
    [output] = op.clone(axis=tuple(sorted(reduced))).make_node(*array.owner.inputs).outputs
    return [_shuffled(output, [sorted(left).index(axis) for axis in left])]


@node_rewriter([DimShuffle])
def shuffled_once(fgraph: Any, node: Any) -> list[Any] | None:
    """One order of the axes in place of two, one behind the other."""
    [source] = node.inputs
    nested = source.owner is not None and isinstance(source.owner.op, DimShuffle)
    return [_shuffled(source, node.op.new_order)] if nested else None


def _ends_short(shape: Sequence[int | None]) -> bool:
    """Whether the last axis is short, and the others are long together."""
    *rows, length = shape or (None,)
    long = None in rows or prod(n for n in rows if n is not None) >= _LONG
    return bool(rows) and long and length is not None and 1 < length <= _SHORT


def _lies_otherwise(variable: Any) -> bool:
    """Whether ``variable``, [..., K] in full, would be read with gaps if K came first."""
    *rows, last = variable.type.broadcastable
    node = _last_axis_first(variable).owner
    return not (last or all(rows)) and node is not None and isinstance(node.op, DimShuffle)


def _last_axis_first(variable: Any) -> Any:
    last = variable.type.ndim - 1
    return _shuffled(variable, [last, *range(last)])


def _shuffled(variable: Any, order: Sequence[int | Literal["x"]]) -> Any:
    """``variable.dimshuffle(order)``, of what ``variable`` is shuffled from."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        order = ["x" if axis == "x" else node.op.new_order[axis] for axis in order]
        [variable] = node.inputs
    return variable if [*order] == [*range(variable.type.ndim)] else variable.dimshuffle(order)
