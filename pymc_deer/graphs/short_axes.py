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
from pytensor.tensor import symbolic
from pytensor.tensor.basic import Join
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise

_SHORT = 16
"""Elements up to which an axis is short: a few steps of a loop that takes four or eight at once."""

_LONG = 32
"""Elements of the other axes together from which a loop over them is worth it."""


_OWN_FUNCTIONS = tuple(
    kind
    for name in ("FusibleSymbolicOp", "FusibleSymbolicOpDerivative")
    if (kind := getattr(symbolic, name, None)) is not None
)
"""Functions that PyTensor looks into when it fuses loops, behind the rewrites here: from 3.3.8."""


@node_rewriter([OpFromGraph])
def inlined_function(fgraph: Any, node: Any) -> list[Any] | None:
    """What a function is made of, in its place: other rewrites do not look into it.

    PyTensor has such functions for ``softmax``, and for the gradient of ``logsumexp``, which
    repeats its exponentials.
    """
    inlined = type(node.op) is OpFromGraph or isinstance(node.op, _OWN_FUNCTIONS)
    return inline_ofg_node(node) if inlined else None


@node_rewriter([Elemwise, Join])
def short_axis_first(fgraph: Any, node: Any) -> list[Any] | None:
    """A loop over elements [N, K] as one over [K, N], where what it reads can lie that way.

    Of several axes the longest comes last, and those behind it first.
    """
    shape, op = node.outputs[0].type.shape, node.op
    if not _ends_short(shape):
        return None
    end = _longest(shape) + 1
    if any(_lies_otherwise(v, end) for v in node.inputs):
        return None
    if isinstance(op, Join):
        op = Join((op.axis - end) % len(shape))
    outputs: list[Any] = op.make_node(*(_rotated(v, end) for v in node.inputs)).outputs
    return [_rotated(output, len(shape) - end) for output in outputs]


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
    """Whether the last axis is short, shorter than another, and the others are long together.

    With the longest one last none is left that could come there.
    """
    *rows, length = shape or (None,)
    if length is None or not 1 < length <= _SHORT:
        return False
    if None in rows:
        return True
    known = [n for n in rows if n is not None]
    return prod(known) >= _LONG and max(known) > length


def _longest(shape: Sequence[int | None]) -> int:
    """The longest axis; one of unknown length, if there is any."""
    return max(range(len(shape)), key=lambda axis: (shape[axis] is None, shape[axis] or 0))


def _lies_otherwise(variable: Any, end: int) -> bool:
    """Whether ``variable``, with axes on both sides of `end`, would be read with gaps if those
    behind it came first.
    """
    pattern, node = variable.type.broadcastable, _rotated(variable, end).owner
    one_side = all(pattern[:end]) or all(pattern[end:])
    return not one_side and node is not None and isinstance(node.op, DimShuffle)


def _rotated(variable: Any, end: int) -> Any:
    """With the axes from `end` on first."""
    axes = range(variable.type.ndim)
    return _shuffled(variable, [*axes[end:], *axes[:end]])


def _shuffled(variable: Any, order: Sequence[int | Literal["x"]]) -> Any:
    """``variable.dimshuffle(order)``, of what ``variable`` is shuffled from."""
    node = variable.owner
    if node is not None and isinstance(node.op, DimShuffle):
        order = ["x" if axis == "x" else node.op.new_order[axis] for axis in order]
        [variable] = node.inputs
    return variable if [*order] == [*range(variable.type.ndim)] else variable.dimshuffle(order)
