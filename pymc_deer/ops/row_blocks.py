# pyright: reportAttributeAccessIssue=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""What a window's states make of the rows of the data, without an array of both.

A likelihood of N observations with covariates takes a product of the states with them, (W, N), what
elementwise functions make of it, sums over the N rows and a product back. As arrays in a GPU's
memory, each of these is written and read once more, and with a few columns that takes longer than
the arithmetic. Block by block of rows, none leaves the processor. Flash attention does the same
(Dao et al. 2022, https://arxiv.org/abs/2205.14135).

A rewrite of graphs that JAX compiles for a GPU. The dispatch lives in ``row_blocks_jax``.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Constant
from pytensor.graph.replace import graph_replace
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum

from pymc_deer.density import Density
from pymc_deer.ops.matmul import untransposed

STATES = 64
"""States of a block; a window that is no multiple of it is left as it is."""

ROWS = 32
"""Rows of a block."""

_FEWEST_ROWS = 4 * ROWS
"""Below it arrays of states and rows are small, and products of few kernels."""

_MOST_COLUMNS = 64
"""Of a product: of more, XLA's products take less time (``tests.benchmarks.row_blocks``)."""

_FUNCTIONS = (
    *(ps.Add, ps.Sub, ps.Mul, ps.TrueDiv, ps.Neg, ps.Abs, ps.Reciprocal, ps.Sqr, ps.Sqrt),
    *(ps.Exp, ps.Expm1, ps.Log, ps.Log1p, ps.Tanh, Sigmoid, Softplus, ps.Pow),
    *(ps.Maximum, ps.Minimum, ps.Clip, ps.Switch, ps.Cast, ps.Identity),
    *(ps.LT, ps.LE, ps.GT, ps.GE, ps.EQ, ps.NEQ, ps.AND, ps.OR, ps.Invert),
)
"""Elementwise functions that JAX compiles into a kernel."""


class RowBlocks(OpFromGraph):
    """Arrays of W states and N rows, and what is left of them, in one kernel.

    Inner graph: products of states (W, K) with rows (K, N) and elementwise functions make arrays
    (W, N). Outputs are these, their sums over the rows, and their products with rows (N, K).

    Parameters
    ----------
    inputs
        What states, rows and elements bring in: (W, K), (K, N) or (N, K), and for the elementwise
        functions (W, N), (W, 1), (1, N) and (1, 1).
    outputs
        What other parts of the graph read.
    """

    def __init__(self, inputs: list[Any], outputs: list[Any]) -> None:
        super().__init__(inputs, outputs, name="RowBlocks")


def for_row_blocks(density: Density) -> Density:
    """The same density, with graphs that make the most of such an Op.

    Logp repeats products, in less time than it takes to keep their results. And data of which a
    model has the transpose too are read once.
    """
    matrices = [(p, value) for p, value in density.constants.items() if value.ndim == 2]
    replaced = {
        wide: tall.dimshuffle(1, 0)
        for (tall, rows), (wide, columns) in permutations(matrices, 2)
        if len(rows) > len(columns) and np.array_equal(rows, columns.T)
    }
    logp, dlogp = graph_replace([density.logp, density.dlogp], replaced, strict=False)
    return replace(density, logp=logp, dlogp=dlogp, cheap=(*density.cheap, Dot))


@node_rewriter([Dot])
def as_it_is_read(fgraph: Any, node: Any) -> list[Any] | None:
    """A product that is only read transposed, the other way round."""
    clients = [client.op for client, _ in fgraph.clients[node.outputs[0]]]
    if not _fits(node) or not clients or not all(map(_swaps_axes, clients)):
        return None
    x, y = map(_transposed, node.inputs)
    return [_transposed(node.op(y, x))]


@node_rewriter([DimShuffle])
def computed_as_it_is_read(fgraph: Any, node: Any) -> list[Any] | None:
    """An elementwise function of transposed matrices, in place of its transpose."""
    source, is_transposed = untransposed(node.outputs[0])
    made = source.owner
    if not is_transposed or made is None or not isinstance(made.op, Elemwise):
        return None
    return made.op.make_node(*map(_transposed, made.inputs)).outputs


def _swaps_axes(op: Any) -> bool:
    return isinstance(op, DimShuffle) and [i for i in op.new_order if i != "x"] == [1, 0]


def _transposed(matrix: Any) -> Any:
    source, is_transposed = untransposed(matrix)
    return source if is_transposed else matrix.dimshuffle(1, 0)


@node_rewriter([Dot, Sum])
def in_row_blocks(fgraph: Any, node: Any) -> dict[Any, Any] | None:
    """A :class:`RowBlocks` in place of all that goes with what is left of the rows."""
    found = _around(fgraph, node)
    if found is None:
        return None
    leaves, outputs = found
    # The inner graph has its own variables, also for data that are constants of the outer one.
    own = [leaf.type() for leaf in leaves]
    inner = graph_replace(outputs, dict(zip(leaves, own, strict=True)), strict=False)
    results = RowBlocks(own, inner).make_node(*leaves).outputs
    return dict(zip(outputs, results, strict=True))


def _around(fgraph: Any, node: Any) -> tuple[list[Any], list[Any]] | None:
    """Inputs and outputs of the Op whose outputs have `node`'s among them."""
    shape = node.inputs[0].type.shape
    if not _is_end(node, shape) or None in shape:
        return None
    if shape[0] % STATES or shape[1] < _FEWEST_ROWS:
        return None
    inside = _inside(fgraph, node.inputs[0])
    products = [v for v in inside if isinstance(v.owner.op, Dot)]
    sums = [client for v in inside for client, _ in fgraph.clients[v] if _is_end(client, shape)]
    ends = [v for c in dict.fromkeys(sums) for v in c.outputs]
    read = [v for v in inside if _is_read_elsewhere(fgraph, v, {*inside, *ends})]
    leaves = list(dict.fromkeys(_leaves([*inside, *ends])))
    if not products or not set(ancestors(leaves)).isdisjoint({*inside, *ends}):
        # Nothing to gain, or elementwise functions of their own sums.
        return None
    return leaves, [*ends, *read]


def _inside(fgraph: Any, array: Any) -> list[Any]:
    """The array (W, N), and all like it that elementwise functions join it with."""
    shape = array.type.shape
    found: dict[Any, None] = {}
    waiting = [array]
    while waiting:
        variable = waiting.pop()
        if variable in found or not _is_made_inside(variable, shape):
            continue
        found[variable] = None
        if isinstance(variable.owner.op, Elemwise):
            waiting += variable.owner.inputs
        waiting += [v for client, _ in fgraph.clients[variable] for v in _elements(client)]
    return list(found)


def _elements(node: Any) -> list[Any]:
    return node.outputs if isinstance(node.op, Elemwise) else []


def _is_made_inside(variable: Any, shape: tuple[int, int]) -> bool:
    node = variable.owner
    if node is None or variable.type.shape != shape:
        return False
    if isinstance(node.op, Dot):
        few = _fits(node) and node.inputs[0].type.shape[1] <= _MOST_COLUMNS
        return few and not untransposed(node.inputs[0])[1]
    return isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, _FUNCTIONS)


def _is_end(node: Any, shape: tuple[int | None, ...]) -> bool:
    """Whether `node` sums up the rows of an array (W, N) of this shape, or multiplies it back."""
    op = node.op
    if not isinstance(op, (Sum, Dot)) or node.inputs[0].type.shape != shape:
        return False
    if isinstance(op, Sum):
        return op.axis == (1,) and node.inputs[0].type.ndim == 2
    return _fits(node) and node.inputs[1].type.shape[1] <= _MOST_COLUMNS


def _fits(node: Any) -> bool:
    """Whether the product is of float32 matrices whose sizes tell states, rows and columns."""
    types = [v.type for v in (*node.inputs, *node.outputs)]
    known = all(t.ndim == 2 and t.dtype == "float32" and None not in t.shape for t in types)
    return known and len(set(types[1].shape)) == 2


def _is_read_elsewhere(fgraph: Any, variable: Any, inside: set[Any]) -> bool:
    clients = [client for client, _ in fgraph.clients[variable]]
    return any(inside.isdisjoint(client.outputs) for client in clients)


def _leaves(made: Sequence[Any]) -> Iterator[Any]:
    """What is computed elsewhere; of a matrix that is read transposed, what lies in memory."""
    for variable in made:
        for read in variable.owner.inputs:
            if read not in made and not is_number(read):
                yield untransposed(read)[0] if isinstance(variable.owner.op, Dot) else read


def is_number(variable: Any) -> bool:
    """Whether `variable` is a constant of one element, which is written into the kernel."""
    return isinstance(variable, Constant) and set(variable.type.shape) <= {1}
