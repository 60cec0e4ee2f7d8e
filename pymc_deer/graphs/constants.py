"""Constants of a log-density: what follows from them alone is computed once, and large ones are
inputs of what is compiled.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.pytensorf import constant_fold
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import graph_replace
from pytensor.tensor.basic import Split, constant
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.extra_ops import Repeat
from pytensor.tensor.type import DenseTensorType

from pymc_deer.typing import Tensor

_LIFTED_INDICES = 4096
"""Indices are constants of the graph, on which backends specialise, up to this many."""

_LIFTED_SIZE = 64
"""Constants of at least this many elements become inputs: compiled code then serves every data
set of the same shape, and neither XLA nor LLVM has to digest megabytes of literals."""


def folded(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same outputs, with a constant for whatever follows from constants alone.

    PyTensor folds them too, but for arrays that are filled with a number, and with them all that
    is computed from one: the basis functions of a Hilbert space Gaussian process, say. What is
    filled and goes straight into something else stays: to fill is faster than to read.
    """
    graph = FunctionGraph(outputs=list(outputs), clone=False)
    known: set[Variable] = set()
    for node in graph.toposort():
        if all(isinstance(v, Constant) or v in known for v in node.inputs):
            known.update(node.outputs)
    ends: list[Any] = [v for v in known if _is_worth_folding(graph, v, known)]
    values = (constant(value) for value in constant_fold(ends)) if ends else ()
    constants = zip(ends, values, strict=True)
    replacements = {v: v.type.filter_variable(value) for v, value in constants}
    return list(graph_replace(list(outputs), replacements, strict=False))


def _is_worth_folding(graph: FunctionGraph, variable: Variable, known: set[Variable]) -> bool:
    """Whether something unknown takes a known variable that took work."""
    node = variable.owner
    if node is None or not isinstance(variable.type, DenseTensorType):
        return False
    clients = (client for client, _ in graph.clients[variable])
    ends = any(known.isdisjoint(client.outputs) for client in clients)
    return ends and bool(node.op.do_constant_folding(graph, node))


def lifted(outputs: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[Tensor, Constant]]]:
    """The same outputs with inputs in place of large constants, and which are which.

    Short indices and masks stay: backends specialise on them, and JAX must know a mask to trace it.
    The others lie in memory row by row, as compiled code reads them. The transpose of a constant,
    which PyTensor makes a constant of its own, is a view of it, which each call would copy.
    """
    graph = FunctionGraph(outputs=list(outputs), clone=False)

    def liftable(var: Any) -> bool:
        if not isinstance(var, Constant) or not isinstance(var.type, DenseTensorType):
            return False
        if var.data.size < _LIFTED_SIZE or var.type.dtype == "bool":
            return False
        clients = [node.op for node, _ in graph.clients[var]]
        if any(isinstance(op, Repeat | Split) for op in clients) and "int" in var.type.dtype:
            # Shapes follow from how often and how many, which JAX must know.
            return False
        elementwise = all(isinstance(op, Elemwise) for op in clients)
        return elementwise or "float" in var.type.dtype or var.data.size >= _LIFTED_INDICES

    # In the order in which they are taken, so that compiled code is found again.
    taken = [v for node in graph.toposort() for v in node.inputs]
    constants: list[Any] = [v for v in dict.fromkeys([*taken, *graph.outputs]) if liftable(v)]
    inputs = (c.type.clone(shape=c.data.shape)(f"constant_{i}") for i, c in enumerate(constants))
    pairs = list(zip(inputs, constants, strict=True))
    made = graph_replace(list(outputs), {c: v for v, c in pairs}, strict=False)
    return list(made), [(v, _row_by_row(c)) for v, c in pairs]


def _row_by_row(large: Any) -> Constant:
    lies_so = large.data.flags.c_contiguous
    return large if lies_so else Constant(large.type, np.ascontiguousarray(large.data))
