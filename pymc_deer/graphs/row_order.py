"""Observations in an order in which sums by group are fast.

Data often lie sorted by group. In the gradient of what rows look up by their group's index, each
group's sum is then added to by many rows that follow on one another, and each addition waits until
the one before it has gone through memory: a regression with sorted groups takes up to twice as long
as one with the same rows in random order, on every backend that runs on a CPU. With many groups it
is the random order that takes longer, by up to a third: each row's group has left the cache. Such
rows are sorted by blocks of groups, and in random order within each.

A log-density is the same in whatever order its observations are, but for rounding, if all rows of
data change places together. Whether they may is read from the graph: each operation has to treat
all rows alike, and in the end they have to be added up.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, singledispatch
from math import prod
from typing import Any

import numpy as np
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.fg import FrozenFunctionGraph, FunctionGraph
from pytensor.graph.op import Op
from pytensor.graph.replace import graph_replace
from pytensor.tensor.basic import Alloc, Join, Split, constant
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.math import Dot
from pytensor.tensor.shape import Shape, Shape_i, SpecifyShape
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
)
from pytensor.tensor.type import TensorType

from pymc_deer.graphs.sums_by_group import is_sum
from pymc_deer.typing import Tensor

_CACHED = 2**12
"""Numbers of all groups that stay in a core's first cache, whatever the order of the rows."""

_BLOCK = 64
"""Numbers of the groups in a block: they stay where they are looked up fastest, and are enough for
few additions to wait for one another."""

_MOST = 0.5
"""Share of rows that are of the same group as the row before, or of another block, above which
their order is a slow one."""

Axes = dict[Variable, int]
"""Of variables that have other rows if those of the data change places: the axis of the rows."""


class _NotByRowError(Exception):
    """An operation does not treat all rows alike."""


@dataclass(frozen=True)
class RowOrder:
    """Rows of data in another order.

    Attributes
    ----------
    along
        Axes of rows, each with which row comes where, (N,). Data may have rows along several.
    """

    along: tuple[tuple[int, np.ndarray], ...] = ()

    def __call__(self, data: np.ndarray) -> np.ndarray:
        for axis, order in self.along:
            data = np.take(data, order, axis)
        return data

    def and_along(self, axis: int, order: np.ndarray) -> "RowOrder":
        """The same with another axis."""
        return RowOrder((*self.along, (axis, order)))


def in_fast_order(
    outputs: Sequence[Tensor], values: Mapping[Tensor, np.ndarray]
) -> tuple[list[Tensor], dict[Tensor, RowOrder]]:
    """The same outputs of rows in another order, where theirs makes sums by group slow.

    Parameters
    ----------
    outputs
        What does not depend on the order.
    values
        Inputs that are data, with what they are now.

    Returns
    -------
    list, dict
        The outputs, with constants in the new order, and the orders of those inputs that are to be
        given in one.
    """
    orders: dict[Tensor, RowOrder] = {}
    graph = FunctionGraph(outputs=list(outputs), clone=False)
    for n, sums in sorted(_sums_by_group(graph, values).items()):
        rows = _of_length(graph, values, n)
        if not any(each.is_slow for each in sums) or not _may_change_places(graph, rows):
            continue
        order = max(sums, key=lambda each: each.n_numbers).fast_order()
        found = {v: orders.get(v, RowOrder()).and_along(axis, order) for v, axis in rows.items()}
        orders |= {v: o for v, o in found.items() if not isinstance(v, Constant)}
        ours = {v: o(v.data) for v, o in found.items() if isinstance(v, Constant)}
        constants: dict[Any, Any] = {
            v: v.type.filter_variable(constant(a)) for v, a in ours.items()
        }
        outputs = graph_replace(outputs, constants, strict=False)
        graph = FunctionGraph(outputs=list(outputs), clone=False)
    return list(outputs), orders


@dataclass(frozen=True)
class _Sums:
    """Sums of rows by group.

    Attributes
    ----------
    group
        That of each row, (N,).
    n_groups, group_size
        How many there are, and of how many numbers each is.
    """

    group: np.ndarray
    n_groups: int
    group_size: int

    @property
    def n_numbers(self) -> int:
        """Of all groups."""
        return self.n_groups * self.group_size

    @property
    def is_slow(self) -> bool:
        """Whether there is a faster order than that of these rows."""
        runs = self.group[1:] == self.group[:-1]
        leaps = self._block[1:] != self._block[:-1]
        return bool(np.sum(runs) > _MOST * len(runs) or np.sum(leaps) > _MOST * len(leaps))

    def fast_order(self) -> np.ndarray:
        """Which row should come where, (N,)."""
        order = np.random.default_rng(len(self.group)).permutation(len(self.group))
        return order[np.argsort(self._block[order], kind="stable")]

    @cached_property
    def _block(self) -> np.ndarray:
        """That of each row: all are one where all groups stay in the cache."""
        size = _BLOCK if self.n_numbers > _CACHED else self.n_numbers
        return self.group // max(1, size // self.group_size)


def _sums_by_group(
    graph: FunctionGraph, values: Mapping[Tensor, np.ndarray]
) -> dict[int, list[_Sums]]:
    """All sums by known groups, by the number of rows."""
    found: dict[int, list[_Sums]] = defaultdict(list)
    # Of several orders that are as fast the same one each time.
    for node in graph.toposort():
        if not isinstance(node.op, AdvancedIncSubtensor):
            continue
        sums, _, *indices = node.inputs
        shape = sums.type.shape
        if not _is_by_row(node.op, indices) or None in shape or 0 in shape:
            continue
        vectors = {axis: v for axis, v in enumerate(indices) if v.type.ndim == 1}
        known = [v.data if isinstance(v, Constant) else values.get(v) for v in vectors.values()]
        groups = tuple(np.asarray(of_rows, np.int64) for of_rows in known if of_rows is not None)
        if len(groups) < len(vectors):
            continue
        lengths = [shape[axis] for axis in vectors]
        # What is out of bounds is whatever the backend makes of it, in any order.
        group = np.asarray(np.ravel_multi_index(groups, lengths, mode="wrap"))
        found[len(group)].append(_Sums(group, prod(lengths), prod(shape[len(indices) :])))
    return found


def _of_length(graph: FunctionGraph, values: Mapping[Tensor, np.ndarray], n: int) -> dict[Any, int]:
    """All data of n rows, and the axis that these are."""
    data = (v for v in graph.variables if isinstance(v, Constant) or v in values)
    arrays = (v for v in data if isinstance(v.type, TensorType) and v.type.shape.count(n) == 1)
    return {v: v.type.shape.index(n) for v in arrays}


def _may_change_places(graph: FunctionGraph, rows: Axes) -> bool:
    """Whether the outputs stay the same if the rows of these variables change places."""
    try:
        axes = _axes(graph, rows)
    except _NotByRowError:
        return False
    return axes.keys().isdisjoint(graph.outputs)


def _axes(graph: FunctionGraph | FrozenFunctionGraph, axes: Axes) -> Axes:
    """The axes of all variables of a graph, from those of some of its inputs."""
    axes = dict(axes)
    for node in graph.toposort():
        if any(v in axes for v in node.inputs):
            found = _axes_behind(node.op, node, axes)
            pairs = zip(node.outputs, found, strict=True)
            axes |= {v: axis for v, axis in pairs if axis is not None}
    return axes


@singledispatch
def _axes_behind(op: Op, node: Apply, axes: Axes) -> list[int | None]:
    """The axes of an operation's results, None of one that stays the same."""
    raise _NotByRowError


@_axes_behind.register
def _of_elements(op: Elemwise, node: Apply, axes: Axes) -> list[int | None]:
    return [_shared_axis(node.inputs, axes)] * len(node.outputs)


@_axes_behind.register
def _of_parts(op: Join, node: Apply, axes: Axes) -> list[int | None]:
    axis = _shared_axis(node.inputs, axes)
    _require(axis != op.axis % node.outputs[0].type.ndim)
    return [axis]


@_axes_behind.register
def _of_whole(op: Split, node: Apply, axes: Axes) -> list[int | None]:
    array, lengths = node.inputs
    _require(lengths not in axes and axes[array] != op.axis % array.type.ndim)
    return [axes[array]] * len(node.outputs)


@_axes_behind.register
def _of_order(op: DimShuffle, node: Apply, axes: Axes) -> list[int | None]:
    return [op.new_order.index(axes[node.inputs[0]])]


@_axes_behind.register
def _of_reduction(op: CAReduce, node: Apply, axes: Axes) -> list[int | None]:
    [array] = node.inputs
    axis = axes[array]
    reduced = range(array.type.ndim) if op.axis is None else op.axis
    return [None if axis in reduced else axis - sum(other < axis for other in reduced)]


@_axes_behind.register
def _of_product(op: Dot, node: Apply, axes: Axes) -> list[int | None]:
    x, y = (axes.get(v) for v in node.inputs)
    _require(all(v.type.ndim == 2 for v in node.inputs))
    if (x, y) == (1, 0):
        return [None]
    _require((x, y) in ((0, None), (None, 1)))
    return [0 if y is None else 1]


@_axes_behind.register
def _of_fill(op: Alloc, node: Apply, axes: Axes) -> list[int | None]:
    value, *shape = node.inputs
    _require(axes.keys().isdisjoint(shape))
    return [axes[value] + len(shape) - value.type.ndim]


@_axes_behind.register(SpecifyShape)
def _of_known_shape(op: SpecifyShape, node: Apply, axes: Axes) -> list[int | None]:
    return [axes[node.inputs[0]]]


@_axes_behind.register(Shape)
@_axes_behind.register(Shape_i)
def _of_shape(op: Op, node: Apply, axes: Axes) -> list[int | None]:
    return [None]


@_axes_behind.register
def _of_lookup(op: AdvancedSubtensor, node: Apply, axes: Axes) -> list[int | None]:
    array, *indices = node.inputs
    _require(array not in axes and _is_by_row(op, indices))
    _require(all(_alike(v, 0, axes) for v in indices if v.type.ndim))
    return [0]


@_axes_behind.register
def _of_sums_by_group(op: AdvancedIncSubtensor, node: Apply, axes: Axes) -> list[int | None]:
    sums, rows, *indices = node.inputs
    _require(sums not in axes and _is_by_row(op, indices) and is_sum(op))
    _require(rows.type.ndim == 1 + sums.type.ndim - len(indices))
    _require(all(_alike(v, 0, axes) for v in (rows, *indices) if v.type.ndim))
    return [None]


@_axes_behind.register
def _of_slice(op: Subtensor, node: Apply, axes: Axes) -> list[int | None]:
    array, *bounds = node.inputs
    _require(axes.keys().isdisjoint(bounds))
    kept = _kept_axes(op, array)
    _require(axes[array] in kept)
    return [kept[axes[array]]]


@_axes_behind.register
def _of_changed_slice(op: IncSubtensor, node: Apply, axes: Axes) -> list[int | None]:
    array, part, *bounds = node.inputs
    _require(axes.keys().isdisjoint(bounds))
    kept = _kept_axes(op, array)
    # Of the whole, or else of what is put into it.
    axis = axes[array] if array in axes else {own: i for i, own in kept.items()}.get(axes[part])
    _require(axis in kept and _alike(array, axis, axes) and _alike(part, kept[axis], axes))
    _require(part.type.ndim == array.type.ndim - _n_taken(op))
    return [axis]


@_axes_behind.register
def _of_inner_graph(op: OpFromGraph, node: Apply, axes: Axes) -> list[int | None]:
    pairs = zip(op.fgraph.inputs, node.inputs, strict=True)
    inner = _axes(op.fgraph, {own: axes[v] for own, v in pairs if v in axes})
    return [inner.get(v) for v in op.fgraph.outputs]


def _is_by_row(op: Any, indices: Sequence[Any]) -> bool:
    """Whether the first axes are indexed by vectors of integers, or the same integer for all rows,
    and no others.
    """
    integers = all(v.type.ndim <= 1 and v.type.dtype != "bool" for v in indices)
    vectors = any(v.type.ndim == 1 for v in indices)
    return integers and vectors and tuple(op.idx_list) == tuple(range(len(indices)))


def _require(condition: bool) -> None:
    if not condition:
        raise _NotByRowError


def _shared_axis(variables: Sequence[Any], axes: Axes) -> int:
    """The axis of rows that arrays of as many dimensions have in common."""
    axis, *others = {axes[v] for v in variables if v in axes}
    _require(not others and all(_alike(v, axis, axes) for v in variables))
    return axis


def _alike(array: Any, axis: int, axes: Axes) -> bool:
    """Whether the array's rows along an axis change places, or are all the same."""
    if array in axes:
        return axes[array] == axis
    if array.type.broadcastable[axis]:
        return True
    if array.owner is None or not isinstance(array.owner.op, Alloc):
        return False
    value = array.owner.inputs[0]
    own = axis - array.type.ndim + value.type.ndim
    return own < 0 or value.type.broadcastable[own]


def _kept_axes(op: Any, array: Any) -> dict[int, int]:
    """The axes that a slice takes all of, with what they are in the slice."""
    whole = [slice(None)] * array.type.ndim
    indices = [*op.idx_list, *whole[len(op.idx_list) :]]
    slices = [i for i, index in enumerate(indices) if isinstance(index, slice)]
    return {i: own for own, i in enumerate(slices) if indices[i] == slice(None)}


def _n_taken(op: Any) -> int:
    """How many axes of a slice are those of one element, which it has no more."""
    return sum(not isinstance(index, slice) for index in op.idx_list)
