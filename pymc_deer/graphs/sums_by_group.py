# pyright: reportAttributeAccessIssue=false
# (PyTensor's annotations do not know what owners and types of variables have.)
"""Sums of rows by group: what they are in PyTensor's graphs, and sums of all rows made of them.

The gradient of a regression with varying slopes has both: for each group the sum of its rows, and
for what all groups have in common the sum of all of them. The latter is the sum of the former,
which are fewer.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.basic import in2out, node_rewriter
from pytensor.tensor.math import Sum
from pytensor.tensor.subtensor import AdvancedIncSubtensor

from pymc_deer.graphs.elements import is_zeros
from pymc_deer.typing import Tensor

_FEWER = 2
"""Rows for each group, from which it is worth it."""


class SumsByGroup(NamedTuple):
    """What is added to what: start (G, ...), rows (N, ...), and each row's group, integers (N,)."""

    start: Tensor
    rows: Tensor
    index: Tensor


def is_sum(op: AdvancedIncSubtensor) -> bool:
    """Whether all rows of a group count, and not the last one alone."""
    return not (op.set_instead_of_inc or op.ignore_duplicates)


def sums_by_group(node: Apply) -> SumsByGroup | None:
    """What an operation adds up by group; None where it does something else."""
    op = node.op
    if not isinstance(op, AdvancedIncSubtensor) or not is_sum(op):
        return None
    start, rows, *indices = node.inputs
    if tuple(op.idx_list) != (0,):
        return None
    [index] = indices
    is_list = index.type.ndim == 1 and index.type.dtype != "bool"
    shapes = rows.type.shape, (*index.type.shape, *start.type.shape[1:])
    if not is_list or shapes[0] != shapes[1] or None in start.type.shape:
        return None
    return SumsByGroup(start, rows, index)


def summed_by_group_first(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same outputs, with sums of all rows as sums of their groups' sums.

    Where those are needed besides, and are fewer. Sums are rounded in another order.
    """
    graph = FunctionGraph(outputs=list(outputs), clone=False)
    in2out(_sum_of_sums).rewrite(graph)
    return list(graph.outputs)


@node_rewriter([Sum])
def _sum_of_sums(fgraph: Any, node: Any) -> list[Any] | None:
    [rows], axes = node.inputs, node.op.axis
    if rows.type.ndim == 0 or not (axes is None or 0 in axes):
        return None
    for client, _ in fgraph.clients[rows]:
        found = sums_by_group(client)
        if found is not None and found.rows is rows and is_zeros(found.start):
            n, n_groups = rows.type.shape[0], found.start.type.shape[0]
            if n is not None and n >= _FEWER * n_groups:
                return [node.op(client.outputs[0])]
    return None
