"""Sums by group as sums along an axis, where many groups have few rows each.

On a GPU, XLA adds rows up by group with atomic additions: all rows are written to memory first, in
an order of their own, and additions to one number wait for one another. With a table of each
group's rows it computes each row where it is added up, in one kernel, which writes sums alone.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any, NamedTuple

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
"""Places for each row, at most, if groups are given as many as the largest one has."""

_ANOTHER = 2**21
"""Numbers that are added up in the time that the kernel of one more table takes, or more."""


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
        tables = None if known is None else Tables.of(known, start.type.shape)
        if tables is not None:
            yield node.outputs[0], start + tables.added_up(rows)


class Tables(NamedTuple):
    """Rows of each of G groups, in tables of groups of similar sizes.

    Attributes
    ----------
    rows
        For each table the rows of its groups, (G', R), N in the places that are left: integers.
    order
        Where the tables, one below the other, have each group, (G,).
    """

    rows: tuple[np.ndarray, ...]
    order: np.ndarray

    @classmethod
    def of(cls, index: np.ndarray, shape: tuple[int, ...]) -> "Tables | None":
        """For sums of this shape, (G, ...), of rows with these groups; None where none would pay.

        Tables are as many as take the least time, groups of one in the order they have.
        """
        # Of whatever type, in which the number of groups may not be.
        index, n_groups, n = np.asarray(index, np.int64), shape[0], len(index)
        if not n or prod(shape) <= _MANY or not np.all((-n_groups <= index) & (index < n_groups)):
            return None
        group = index % n_groups
        counts = np.bincount(group, minlength=n_groups)
        if counts.max() * n_groups > _PLACES * n:
            return None
        by_group = np.argsort(group, kind="stable")
        place = np.arange(n) - np.repeat(np.cumsum(counts) - counts, counts)
        table = np.full((n_groups, counts.max()), n, np.uint32)
        table[group[by_group], place] = by_group
        sizes = _sizes(counts, prod(shape[1:]))
        which = np.searchsorted(sizes, counts)
        parts = tuple(table[which == i, :size] for i, size in enumerate(sizes))
        return cls(parts, np.argsort(np.argsort(which, kind="stable")))

    def added_up(self, rows: Any) -> Any:
        """Sums of the rows (N, ...) of each group, (G, ...)."""
        sums = [_added_up(rows, table) for table in self.rows]
        joined: Any = pt.join(0, *sums)
        # With a sign: PyTensor takes a constant vector without one that descends for a slice of it.
        return joined if len(sums) == 1 else joined[pt.constant(self.order, dtype="int64")]


def _sizes(counts: np.ndarray, width: int) -> list[int]:
    """Places for each group of each table, ascending; groups have so many rows of `width` numbers.

    Of all ways to have tables of groups of neighbouring sizes, the one that takes the least time.
    """
    sizes, numbers = np.unique(counts, return_counts=True)
    below = np.cumsum(numbers) - numbers
    # The least time for the groups up to each size, with the size that the last table begins with.
    least, begins = np.zeros(len(sizes) + 1), np.zeros(len(sizes), int)
    for i, size in enumerate(sizes):
        in_last = below[i] + numbers[i] - below[: i + 1]
        times = least[: i + 1] + _ANOTHER + size * in_last * float(width)
        begins[i] = np.argmin(times)
        least[i + 1] = times[begins[i]]
    chosen, i = [], len(sizes)
    while i > 0:
        chosen.append(int(sizes[i - 1]))
        i = begins[i - 1]
    return chosen[::-1]


def _added_up(rows: Any, table: np.ndarray) -> Any:
    """Sums of the rows (N, ...) of each group, (G, ...)."""
    n = rows.type.shape[0]
    is_row = pt.shape_padright(pt.constant(table < n), rows.type.ndim - 1)
    # Without a sign, so that nobody looks for places that count from the end.
    each = rows[pt.constant(np.minimum(table, n - 1), dtype="uint32")]
    dtype = rows.type.dtype
    # XLA would make one sum of a sum of these, over all rows of the table.
    return _written(pt.sum(pt.switch(is_row, each, np.zeros((), dtype)), axis=1, acc_dtype=dtype))
