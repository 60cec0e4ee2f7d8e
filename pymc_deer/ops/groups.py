"""Values of groups, looked up for each row by its group's indices, and sums of rows by group.

PyTensor does either within the loop that computes with the values, or what is to be added up. An
index may be wrong, and a loop that may end at any element takes them one by one, exponentials as
well. Outside of it, these Ops leave a loop to LLVM that it vectorises. They read and write all rows
once more, which is less than functions of several numbers at once save, and more than sums and
products do.

Their Numba dispatch lives in ``groups_numba``; ``backends.numba_mode`` puts them into graphs.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_deer.graphs.elements import is_zeros
from pymc_deer.graphs.sums_by_group import is_sum
from pymc_deer.ops.vector_math import VECTOR_OPS
from pymc_deer.typing import Tensor


class GroupValues(Op):
    """For each of N rows the value of its group.

    Inputs
    ------
    values
        Array (G, H, ...).
    *indices
        For each of its axes where each row's group is, int64 (N,); below 0 they count from the end.

    Raises
    ------
    IndexError
        When it runs, if there is no such group.
    """

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        values, *indices = map(pt.as_tensor_variable, inputs)
        _require(self, values.type.ndim, indices)
        output = pt.tensor(dtype=values.type.dtype, shape=indices[0].type.shape)
        return Apply(self, [values, *indices], [output])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        values, *indices = inputs
        output_storage[0][0] = values[tuple(indices)]

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]


class GroupSums(Op):
    """For each group the sum of its rows.

    Parameters
    ----------
    shape
        (G, H, ...), how many groups there are along each axis.

    Inputs
    ------
    rows
        Vector (N,).
    *indices
        As of :class:`GroupValues`.

    Raises
    ------
    IndexError
        When it runs, if there is no such group.
    """

    __props__ = ("shape",)

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.shape = shape

    def make_node(self, *inputs: Tensor) -> Apply:
        rows, *indices = map(pt.as_tensor_variable, inputs)
        _require(self, len(self.shape), indices)
        if rows.type.ndim != 1:
            raise TypeError(f"GroupSums takes a vector of rows, got {rows.type}.")
        return Apply(self, [rows, *indices], [pt.tensor(dtype=rows.type.dtype, shape=self.shape)])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        rows, *indices = inputs
        sums = np.zeros(self.shape, rows.dtype)
        np.add.at(sums, tuple(indices), rows)
        output_storage[0][0] = sums

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self.shape]


def _require(op: Op, ndim: int, indices: Sequence[Any]) -> None:
    """That there is an index for each axis."""
    types = [(index.type.ndim, index.type.dtype) for index in indices]
    if types != [(1, "int64")] * ndim:
        kinds = ", ".join(str(index.type) for index in indices)
        raise TypeError(
            f"{type(op).__name__} takes a vector of int64 for each of {ndim} axes, got {kinds}."
        )


@node_rewriter([AdvancedSubtensor])
def looked_up(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`GroupValues` before functions of what is looked up by indices."""
    values, *indices = node.inputs
    if not _is_by_group(node.op, values, indices):
        return None
    if not any(_is_function(n) for n in _loops_behind(fgraph, node.outputs[0])):
        return None
    return [GroupValues()(values, *(index.astype("int64") for index in indices))]


@node_rewriter([AdvancedIncSubtensor])
def summed_by_group(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`GroupSums` behind functions of which values are added up by indices."""
    op, (start, rows, *indices) = node.op, node.inputs
    if not is_sum(op) or not _is_by_group(op, start, indices):
        return None
    alike = rows.type.shape == indices[0].type.shape and rows.type.dtype == start.type.dtype
    if None in start.type.shape or not alike or not any(map(_is_function, _loops_before(rows))):
        return None
    sums = GroupSums(start.type.shape)(rows, *(index.astype("int64") for index in indices))
    return [sums if is_zeros(start) else start + sums]


def _is_by_group(op: Any, array: Any, indices: Sequence[Any]) -> bool:
    """Whether each axis of an array is indexed by a vector of integers, of one known length."""
    shape = indices[0].type.shape
    return (
        tuple(op.idx_list) == tuple(range(array.type.ndim))
        and all(v.type.dtype != "bool" and v.type.shape == shape for v in indices)
        and len(shape) == 1
        and None not in shape
    )


def _is_function(node: Any) -> bool:
    return type(node.op.scalar_op) in VECTOR_OPS


def _loops_behind(fgraph: Any, variable: Any) -> Iterator[Any]:
    """The functions of elements that a variable's values go through."""
    seen, todo = set(), [variable]
    while todo:
        for node, _ in fgraph.clients[todo.pop()]:
            if isinstance(node.op, Elemwise) and node not in seen:
                seen.add(node)
                todo += node.outputs
                yield node


def _loops_before(variable: Any) -> Iterator[Any]:
    """The functions of elements that a variable's values come from."""
    seen, todo = set(), [variable]
    while todo:
        node = todo.pop().owner
        if node is not None and isinstance(node.op, Elemwise) and node not in seen:
            seen.add(node)
            todo += [v for v in node.inputs if v.type.shape == variable.type.shape]
            yield node
