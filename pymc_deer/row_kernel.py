"""The kernel of :class:`~pymc_deer.row_blocks.RowBlocks`, in Pallas, for GPUs.

Imported where there is one: Pallas takes longer to import than all of JAX.

Each program of the kernel has a block of states and goes along the rows block by block. Where there
are few states, several programs share the rows, and what they find is added up afterwards.
"""

from collections.abc import Callable, Sequence
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

from pymc_deer.row_blocks import ROWS, STATES, is_number, untransposed

_PROGRAMS = 256
"""About two for each multiprocessor of a large GPU."""

_NARROWEST = 16
"""Rows and columns of the smallest product that Triton has."""

_PRECISION = lax.DotAlgorithmPreset.TF32_TF32_F32_X3
"""Three products with 11 bits of each number, which together are as precise as float32."""

_COMPILER = plt.CompilerParams(num_warps=4, num_stages=2)


def _sigmoid(x: jax.Array) -> jax.Array:
    small = jnp.exp(-jnp.abs(x))
    return jnp.where(x >= 0, jnp.ones_like(x), small) / (1 + small)


def _softplus(x: jax.Array) -> jax.Array:
    return jnp.maximum(x, 0) + jnp.log(1 + jnp.exp(-jnp.abs(x)))


_FUNCTIONS: dict[type, Callable[[jax.Array], jax.Array]] = {
    Cast: lambda x: x,
    Sigmoid: _sigmoid,
    Softplus: _softplus,
}
"""A kernel makes no copies; and one exponential is for both others, where there are both."""


def compile_small_kernel() -> None:
    """For JAX's default device, whatever that raises where there are no such kernels."""

    def square(x_ref: Any, out_ref: Any) -> None:
        out_ref[...] = _product(x_ref[...], x_ref[...], 1, 1)

    shape = jax.ShapeDtypeStruct((_NARROWEST, _NARROWEST), "float32")
    kernel = pl.pallas_call(square, out_shape=shape, compiler_params=_COMPILER)
    jax.jit(kernel).lower(shape).compile()


class RowKernel:
    """The kernel of an inner graph, as a function of its inputs.

    Arrays of states and rows lie in it as (rows, states), as products of the rows come.
    """

    def __init__(self, fgraph: Any) -> None:
        kinds = (Dot, Elemwise, Sum)
        self._nodes = [node for node in fgraph.toposort() if isinstance(node.op, kinds)]
        self._inputs, self._outputs = fgraph.inputs, fgraph.outputs
        products = [node for node in self._nodes if _is_product(node)]
        self._factors = list(dict.fromkeys(node.inputs[0] for node in products))
        self._ends = [v for v in self._outputs if _is_end(v)]
        self.n_states, self.n_rows = products[0].outputs[0].type.shape
        self._specs: dict[Any, pl.BlockSpec] = {}
        for node in self._nodes:
            self._specs |= self._specs_of(node)
        # Programs that share the rows of a block of states, and the blocks of rows of each.
        n_blocks = -(-self.n_rows // ROWS)
        self._shares = max(1, min(n_blocks, _PROGRAMS // (self.n_states // STATES)))
        self._n_blocks = -(-n_blocks // self._shares)

    def __call__(self, *arrays: jax.Array) -> list[jax.Array]:
        found = pl.pallas_call(
            self._run,
            grid=(self.n_states // STATES, self._shares),
            in_specs=[self._specs[v] for v in self._inputs],
            out_specs=[self._specs[v] for v in self._outputs],
            out_shape=[self._shape(v) for v in self._outputs],
            compiler_params=_COMPILER,
        )(*(array.astype("int8") if array.dtype == bool else array for array in arrays))
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
            specs[rows.source] = _of_all(shape)
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
        n_inputs = len(self._inputs)
        read = dict(zip(self._inputs, refs[:n_inputs], strict=True))
        written = dict(zip(self._outputs, refs[n_inputs:], strict=True))
        factors = {v: _load(read[v], _STATES, _columns(v.type.shape[1])) for v in self._factors}
        # Of the type that other indices have, where some are numbers.
        first = pl.program_id(1).astype(int) * self._n_blocks

        def add_block(i: Any, totals: Sequence[jax.Array]) -> list[jax.Array]:
            at = (first + i) * ROWS
            block = _Block(read, factors, _Axis(at, ROWS, self.n_rows))
            for node in self._nodes:
                [output] = node.outputs
                if not _is_end(output):
                    block.compute(node)
                    if output in written:
                        block.store(output, written[output])
            pairs = zip(totals, self._ends, strict=True)
            return [total + block.left(end.owner) for total, end in pairs]

        nothing = [_zeros(end) for end in self._ends]
        totals = lax.fori_loop(0, self._n_blocks, add_block, nothing)
        for end, total in zip(self._ends, totals, strict=True):
            if end.type.ndim == 1:
                written[end][...] = total
            else:
                _store(written[end], total.T, _STATES, _columns(end.type.shape[1]))


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
    """Some rows of the data, for a block of states."""

    def __init__(self, read: dict[Any, Any], factors: dict[Any, jax.Array], rows: _Axis) -> None:
        self._read, self._factors, self._rows = read, factors, rows
        self._inside = (rows.start + jnp.arange(rows.size) < rows.end)[:, None]
        self._values: dict[Any, jax.Array] = {}
        self._loaded: dict[_Rows, jax.Array] = {}

    def compute(self, node: Any) -> None:
        """An array of the rows and the states."""
        [output] = node.outputs
        if isinstance(node.op, Dot):
            rows = _Rows.of(node)
            factor = self._factors[node.inputs[0]]
            self._values[output] = _product(self._load_rows(rows), factor, 1 - rows.axis, 1)
            return
        scalar_op = node.op.scalar_op
        function = _FUNCTIONS.get(type(scalar_op)) or jax_funcify(scalar_op, node=node)
        found = function(*map(self._element, node.inputs))
        self._values[output] = found.astype(output.type.dtype)

    def left(self, node: Any) -> jax.Array:
        """What is left of the rows: their sum (states,), or a product (columns, states)."""
        array = node.inputs[0]
        # There may be anything where there are no rows.
        value = jnp.where(self._inside, self._values[array], jnp.zeros((), array.type.dtype))
        if isinstance(node.op, Sum):
            return value.astype(node.outputs[0].type.dtype).sum(0)
        rows = _Rows.of(node)
        return _product(self._load_rows(rows), value, rows.axis, 0)

    def store(self, output: Any, ref: Any) -> None:
        """Write an array to where it is (states, all rows)."""
        _store(ref, self._values[output].T, _STATES, self._rows)

    def _load_rows(self, rows: "_Rows") -> jax.Array:
        if rows not in self._loaded:
            columns = _columns(rows.n_columns)
            axes = (columns, self._rows) if rows.axis else (self._rows, columns)
            self._loaded[rows] = _load(self._read[rows.source], *axes)
        return self._loaded[rows]

    def _element(self, variable: Any) -> Any:
        if variable in self._values:
            return self._values[variable]
        if is_number(variable):
            return variable.data.reshape(())[()]
        of_states, of_rows = (n != 1 for n in variable.type.shape)
        axes = (_STATES if of_states else _ONE), (self._rows if of_rows else _ONE)
        return _load(self._read[variable], *axes).T


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


def _zeros(end: Any) -> jax.Array:
    columns = [_columns(n).size for n in end.type.shape[1:]]
    return jnp.zeros((*columns, STATES), end.type.dtype)


def _product(x: jax.Array, y: jax.Array, axis_x: int, axis_y: int) -> jax.Array:
    axes = (((axis_x,), (axis_y,)), ((), ()))
    return lax.dot_general(x, y, axes, _PRECISION, preferred_element_type=jnp.float32)


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
