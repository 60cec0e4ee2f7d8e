"""Sums by group as sums along an axis, where many groups have few rows each.

On a GPU, XLA adds rows up by group with atomic additions: all rows are written to memory first, in
an order of their own, and additions to one number wait for one another. With a table of each
group's rows it computes each row where it is added up, in one kernel, which writes sums alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.tensor.elemwise import Elemwise

from pymc_deer.density import Density
from pymc_deer.graphs.sums_by_group import sums_by_group
from pymc_deer.typing import Tensor

_MANY = 2**12
"""Numbers of all groups, below which sums take a small part of the time of what is around them."""

_PLACES = 4
"""Places in a table for each row, at most: groups are given as many as the largest one has."""


class Written(ps.UnaryScalarOp):
    """The same number, from memory: what it follows from is not computed again where it is read.

    The JAX dispatch lives in ``group_tables_jax``.
    """

    def impl(self, *inputs: Any) -> Any:
        return inputs[0]

    def c_code(self, node: Any, name: str, inputs: Any, outputs: Any, sub: Any) -> str:
        return f"{outputs[0]} = {inputs[0]};"


_written = Elemwise(Written(ps.same_out, name="written"))


def summed_by_tables(density: Density) -> Density:
    """The same density, with sums over many known groups by a table of their rows.

    Sums are rounded in another order. Groups in data that may change, ``pm.Data``, stay as they
    are, and so do products with the Hessian.
    """
    outputs = [density.logp, density.dlogp]
    while found := next(_sums_by_group(outputs, density.constants), None):
        outputs = graph_replace(outputs, dict([found]), strict=False)
    logp, dlogp = outputs
    found_none = logp is density.logp and dlogp is density.dlogp
    return density if found_none else replace(density, logp=logp, dlogp=dlogp)


def _sums_by_group(
    outputs: Sequence[Tensor], constants: Mapping[Tensor, np.ndarray]
) -> Iterator[tuple[Tensor, Tensor]]:
    """Sums by group, each with what is to stand in its place."""
    for node in FunctionGraph(outputs=list(outputs), clone=False).toposort():
        if (sums := sums_by_group(node)) is None:
            continue
        start, rows, index = sums
        known = index.data if isinstance(index, Constant) else constants.get(index)
        table = None if known is None else _table(known, start.type.shape)
        if table is not None:
            yield node.outputs[0], start + _added_up(rows, table)


def _table(index: np.ndarray, shape: tuple[int, ...]) -> np.ndarray | None:
    """Rows of each group, (G, R), N in the places that are left; None where it would not pay."""
    # Of whatever type, in which the number of groups may not be.
    index, n_groups, n = np.asarray(index, np.int64), shape[0], len(index)
    if prod(shape) <= _MANY or not np.all((-n_groups <= index) & (index < n_groups)):
        return None
    group = index % n_groups
    counts = np.bincount(group, minlength=n_groups)
    if counts.max() * n_groups > _PLACES * n:
        return None
    order = np.argsort(group, kind="stable")
    place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
    table = np.full((n_groups, counts.max()), n, np.uint32)
    table[group[order], place] = order
    return table


def _added_up(rows: Any, table: np.ndarray) -> Any:
    """Sums of the rows (N, ...) of each group, (G, ...)."""
    n = rows.type.shape[0]
    is_row = pt.shape_padright(pt.constant(table < n), rows.type.ndim - 1)
    # Without a sign, so that nobody looks for those that count from the end.
    each = rows[pt.constant(np.minimum(table, n - 1), dtype="uint32")]
    dtype = rows.type.dtype
    # XLA would make one sum of a sum of these, over all rows of the table.
    return _written(pt.sum(pt.switch(is_row, each, np.zeros((), dtype)), axis=1, acc_dtype=dtype))
