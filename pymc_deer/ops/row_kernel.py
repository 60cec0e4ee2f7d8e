"""The kernel of :class:`~pymc_deer.ops.row_blocks.RowBlocks`, in Pallas, for GPUs.

Each program of the kernel has a block of states and goes along the rows block by block. Where there
are few states, several programs share the rows, and what they find is added up afterwards.

Sums of logistic terms take one logarithm for many rows, that of a product (:mod:`.log_products`),
which for each place of a block has a factor of every row that comes to lie there.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt
from pytensor.link.jax.dispatch import jax_funcify
from pytensor.scalar.basic import Cast
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import Dot, Sum

from pymc_deer.graphs.log_products import signed_softplus
from pymc_deer.ops.matmul import untransposed
from pymc_deer.ops.pallas_kernels import kernel
from pymc_deer.ops.row_arithmetic import (
    HALF,
    N_PIECES,
    Pieces,
    exp2,
    exponential,
    pieces_of,
    product,
    sigmoid,
    softplus,
)
from pymc_deer.ops.row_blocks import ROWS, STATES, is_number

_PROGRAMS = 512
"""About four for each multiprocessor of a large GPU."""

_NARROWEST = 16
"""Rows and columns of the smallest product that Triton has."""

_COMPILER = plt.CompilerParams(num_warps=4, num_stages=2)

_GROUP = 64
"""Blocks of rows whose factors one product has: each is at most 2, and so it is at most 2^64."""

_FUNCTIONS: dict[type, Callable[[jax.Array], jax.Array]] = {
    Cast: lambda x: x,
    Sigmoid: sigmoid,
    Softplus: softplus,
}
"""Functions of our own, whose arguments have the result's type already: a cast does nothing."""


def compile_small_kernel() -> None:
    """For JAX's default device, whatever that raises where there are no such kernels."""

    def square(x_ref: Any, out_ref: Any) -> None:
        pieces = pieces_of(exp2(x_ref[...]))
        out_ref[...] = product(pieces, pieces, 1, 1)

    shape = jax.ShapeDtypeStruct((_NARROWEST, _NARROWEST), "float32")
    small = kernel(square, out_shape=shape, compiler_params=_COMPILER)
    jax.jit(small).lower(shape).compile()


class RowKernel:
    """The kernel of an inner graph, as a function of its inputs, for one of so many batches."""

    def __init__(self, fgraph: Any, n_batches: int = 1) -> None:
        kinds = (Dot, Elemwise, Sum)
        self._nodes = [node for node in fgraph.toposort() if isinstance(node.op, kinds)]
        self._inputs, self._outputs = fgraph.inputs, fgraph.outputs
        products = [node for node in self._nodes if _is_product(node)]
        self._factors = list(dict.fromkeys(node.inputs[0] for node in products))
        self._ends = {v: _end_of(v) for v in self._outputs if _is_end(v)}
        self.n_states, self.n_rows = products[0].outputs[0].type.shape
        self._specs: dict[Any, pl.BlockSpec] = {}
        self._of_rows: dict[Any, pl.BlockSpec] = {}
        for node in self._nodes:
            self._specs |= self._specs_of(node)
        self._read = [v for v in self._inputs if v in self._specs]
        # Programs that share the rows of a block of states; of each the groups, and of these the
        # blocks of rows.
        n_blocks = -(-self.n_rows // ROWS)
        self._shares = max(1, min(n_blocks, _PROGRAMS * STATES // (n_batches * self.n_states)))
        self._n_groups = -(-n_blocks // (self._shares * _GROUP))
        self._n_blocks = -(-n_blocks // (self._shares * self._n_groups))

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        given = dict(zip(self._inputs, arrays, strict=True))
        read = [given[v] for v in self._read]
        read = [array.astype("int8") if array.dtype == bool else array for array in read]
        for v in self._of_rows:
            read += (piece for piece in pieces_of(given[v], HALF))
        found = kernel(
            self._run,
            grid=(self.n_states // STATES, self._shares),
            in_specs=[
                *(self._specs[v] for v in self._read),
                *(spec for spec in self._of_rows.values() for _ in range(N_PIECES)),
            ],
            out_specs=[self._specs[v] for v in self._outputs],
            out_shape=[self._shape(v) for v in self._outputs],
            compiler_params=_COMPILER,
        )(*read)
        pairs = zip(self._outputs, found, strict=True)
        return [part.sum(0) if _is_end(v) else part for v, part in pairs]

    def _specs_of(self, node: Any) -> dict[Any, pl.BlockSpec]:
        """What a program sees of what a node reads and makes: its block of the states, all rows."""
        [output] = node.outputs
        specs = {} if _is_end(output) else {output: _of_states(self.n_rows)}
        if isinstance(node.op, Elemwise):
            for v in node.inputs:
                if v.owner is None:
                    of_states, columns = v.type.shape[0] == self.n_states, v.type.shape[1]
                    specs[v] = _of_states(columns) if of_states else _of_all(v.type.shape)
            return specs
        if isinstance(node.op, Dot):
            rows = _Rows.of(node)
            columns = _columns(rows.n_columns).size
            shape = (columns, self.n_rows) if rows.axis else (self.n_rows, columns)
            self._of_rows[rows.source] = _of_all(shape)
            if _is_product(node):
                specs[node.inputs[0]] = _of_states(columns)
                return specs
            specs[output] = _of_share(columns)
            return specs
        return specs | {output: _of_share()}

    def _shape(self, output: Any) -> jax.ShapeDtypeStruct:
        shares = (self._shares,) if _is_end(output) else ()
        return jax.ShapeDtypeStruct((*shares, *output.type.shape), output.type.dtype)

    def _run(self, *refs: Any) -> None:
        """A program: its block of states with its share of the rows."""
        left = iter(refs)
        read: dict[Any, Any] = {v: next(left) for v in self._read}
        rows = {v: [next(left) for _ in range(N_PIECES)] for v in self._of_rows}
        written = {v: next(left) for v in self._outputs}
        factors = {
            v: pieces_of(_load(read[v], _STATES, _columns(v.type.shape[1]))) for v in self._factors
        }
        # Of the type that other indices have, where some are numbers.
        first = pl.program_id(1).astype(int) * self._n_groups * self._n_blocks

        def add_block(i: Any, carries: Sequence[Any]) -> list[Any]:
            block = _Block(read, rows, factors, _Axis(i * ROWS, ROWS, self.n_rows))
            for output, ref in written.items():
                if output not in self._ends:
                    block.store(output, ref)
            pairs = zip(carries, self._ends.values(), strict=True)
            return [end.with_block(carry, block) for carry, end in pairs]

        def of_group(i: Any) -> list[jax.Array]:
            at = first + i * self._n_blocks
            nothing = [end.nothing() for end in self._ends.values()]
            carries = lax.fori_loop(at, at + self._n_blocks, add_block, nothing)
            pairs = zip(carries, self._ends.values(), strict=True)
            return [end.total(carry) for carry, end in pairs]

        def add_group(i: Any, totals: Sequence[jax.Array]) -> list[jax.Array]:
            return [a + b for a, b in zip(totals, of_group(i), strict=True)]

        totals = of_group(0)
        if self._n_groups > 1:
            totals = lax.fori_loop(1, self._n_groups, add_group, totals)
        for output, total in zip(self._ends, totals, strict=True):
            if output.type.ndim == 1:
                written[output][...] = total
            else:
                _store(written[output], total, _STATES, _columns(output.type.shape[1]))


class _Axis(NamedTuple):
    """A part of an axis: where it begins, how long it is, and where the axis ends if it may."""

    start: Any
    size: int
    end: int | None = None


_STATES = _Axis(0, STATES)
"""All of a program's."""

_ONE = _Axis(0, 1)


class _Rows(NamedTuple):
    """The matrix that a product reads rows of, as it lies in memory: along which axis they are."""

    source: Any
    axis: int
    n_columns: int

    @classmethod
    def of(cls, node: Any) -> "_Rows":
        """The second factor of a product, of states with the rows or back from these."""
        matrix, axis = node.inputs[1], 1 if _is_product(node) else 0
        source, is_transposed = untransposed(matrix)
        return cls(source, 1 - axis if is_transposed else axis, matrix.type.shape[1 - axis])


class _Block:
    """Some rows of the data, for a block of states: arrays (states, rows), when they are asked for.

    Attributes
    ----------
    inside
        Where there are rows; there may be anything where there are none.
    """

    def __init__(
        self, read: dict[Any, Any], rows: dict[Any, Any], factors: dict[Any, Pieces], at: _Axis
    ) -> None:
        self._read, self._of_rows, self._factors, self._rows = read, rows, factors, at
        self.inside = (at.start + jnp.arange(at.size) < at.end)[None]
        self._values: dict[Any, jax.Array] = {}
        self._loaded: dict[_Rows, Pieces] = {}

    def array(self, variable: Any) -> Any:
        """What is made of the states, or read."""
        if variable in self._values:
            return self._values[variable]
        node = variable.owner
        if is_number(variable):
            return variable.data.reshape(())[()]
        if node is None:
            of_states, of_rows = (n != 1 for n in variable.type.shape)
            axes = (_STATES if of_states else _ONE), (self._rows if of_rows else _ONE)
            value = _load(self._read[variable], *axes)
            # Read as int8, of which NOT is -1 and -2.
            value = value != 0 if variable.type.dtype == "bool" else value
        elif isinstance(node.op, Dot):
            rows = _Rows.of(node)
            value = product(self._factors[node.inputs[0]], self.rows(rows), 1, 1 - rows.axis)
        else:
            scalar_op = node.op.scalar_op
            arguments, dtype = map(self.array, node.inputs), variable.type.dtype
            if ours := _FUNCTIONS.get(type(scalar_op)):
                value = ours(*(argument.astype(dtype) for argument in arguments))
            else:
                value = jax_funcify(scalar_op, node=node)(*arguments).astype(dtype)
        self._values[variable] = value
        return value

    def rows(self, rows: _Rows) -> Pieces:
        """These rows of the data, as they lie."""
        if rows not in self._loaded:
            columns = _columns(rows.n_columns)
            axes = (columns, self._rows) if rows.axis else (self._rows, columns)
            self._loaded[rows] = [_load(piece, *axes) for piece in self._of_rows[rows.source]]
        return self._loaded[rows]

    def store(self, output: Any, ref: Any) -> None:
        """Write an array to where it is (states, all rows)."""
        _store(ref, self.array(output), _STATES, self._rows)


@dataclass(frozen=True)
class _Total:
    """What is left of the rows: a sum over those of an array, (states,)."""

    output: Any

    def nothing(self) -> Any:
        """What is carried from block to block, before the first one."""
        return jnp.zeros(STATES, self.output.type.dtype)

    def with_block(self, carry: Any, block: _Block) -> Any:
        """The same behind one more block."""
        [array] = self.output.owner.inputs
        value = _where_inside(block, block.array(array), 0)
        return carry + value.astype(self.output.type.dtype).sum(1)

    def total(self, carry: Any) -> jax.Array:
        """What the blocks behind it leave."""
        return carry


@dataclass(frozen=True)
class _ProductBack(_Total):
    """A product of an array with rows of the data, (states, columns)."""

    def nothing(self) -> Any:
        columns = _columns(self.output.type.shape[1]).size
        return jnp.zeros((STATES, columns), self.output.type.dtype)

    def with_block(self, carry: Any, block: _Block) -> Any:
        node = self.output.owner
        value, rows = _where_inside(block, block.array(node.inputs[0]), 0), _Rows.of(node)
        return carry + product(pieces_of(value), block.rows(rows), 1, rows.axis)


@dataclass(frozen=True)
class _LogisticTotal(_Total):
    """A sum of softplus over the rows, or its opposite: a sum, and factors (states, rows).

    Attributes
    ----------
    sign, argument
        1 or -1, and what the softplus is of.
    """

    sign: int
    argument: Any

    def nothing(self) -> Any:
        return super().nothing(), jnp.ones((STATES, ROWS), self.argument.type.dtype)

    def with_block(self, carry: Any, block: _Block) -> Any:
        (total, factors), argument = carry, block.array(self.argument)
        positive = _where_inside(block, jnp.maximum(argument, 0), 0)
        factor = _where_inside(block, 1 + exponential(argument), 1)
        return total + positive.astype(total.dtype).sum(1), factors * factor

    def total(self, carry: Any) -> jax.Array:
        total, factors = carry
        return self.sign * (total + jnp.log(factors).astype(total.dtype).sum(1))


def _end_of(output: Any) -> _Total:
    if isinstance(output.owner.op, Dot):
        return _ProductBack(output)
    sign, argument = signed_softplus(output.owner.inputs[0])
    if argument is None or "float" not in argument.type.dtype:
        return _Total(output)
    return _LogisticTotal(output, sign, argument)


def _where_inside(block: _Block, value: jax.Array, otherwise: int) -> jax.Array:
    return jnp.where(block.inside, value, jnp.asarray(otherwise, value.dtype))


def _is_product(node: Any) -> bool:
    """Whether it is one of states with rows, that is, of two inputs."""
    return isinstance(node.op, Dot) and node.inputs[0].owner is None


def _is_end(variable: Any) -> bool:
    """Whether it is what is left of the rows, rather than an array with them."""
    return not (isinstance(variable.owner.op, Elemwise) or _is_product(variable.owner))


def _of_states(columns: int) -> pl.BlockSpec:
    return pl.BlockSpec((STATES, columns), lambda i, j: (i, 0))


def _of_all(shape: tuple[int, int]) -> pl.BlockSpec:
    return pl.BlockSpec(shape, lambda i, j: (0, 0))


def _of_share(*columns: int) -> pl.BlockSpec:
    """Where a program writes what its share of the rows leaves."""
    return pl.BlockSpec((None, STATES, *columns), lambda i, j: (j, i, *(0 for _ in columns)))


def _columns(n: int) -> _Axis:
    """Columns are read to the next power of two."""
    size = max(_NARROWEST, 1 << (n - 1).bit_length())
    return _Axis(0, size, n if size > n else None)


def _load(ref: Any, *axes: _Axis) -> jax.Array:
    """Part of an array, 0 beyond its end."""
    index, mask = _place(ref, axes)
    return plt.load(ref.at[index], mask=mask, other=np.zeros((), ref.dtype)[()])


def _store(ref: Any, value: jax.Array, *axes: _Axis) -> None:
    index, mask = _place(ref, axes)
    plt.store(ref.at[index], value, mask=mask)


def _place(ref: Any, axes: Sequence[_Axis]) -> tuple[tuple[Any, ...], jax.Array]:
    """Index of a part of an array, and which of its elements there are."""
    mask = jnp.ones([axis.size for axis in axes], bool)
    for i, (start, size, end) in enumerate(axes):
        if end is not None:
            shape = [size if i == j else 1 for j in range(len(axes))]
            mask &= (start + jnp.arange(size) < end).reshape(shape)
    whole = (axis.size == n for axis, n in zip(axes, ref.shape, strict=True))
    parts = zip(axes, whole, strict=True)
    return tuple(slice(None) if all_ else pl.ds(*axis[:2]) for axis, all_ in parts), mask
