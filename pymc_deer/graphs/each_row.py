"""Values of a graph at each row of a matrix of states: at all of them at once where that works."""

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor.rewriting.shape import ShapeFeature
from pytensor.tensor.shape import Shape, Shape_i
from pytensor.tensor.type import TensorType

from pymc_deer.modes import OwnMode
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

MODE = OwnMode.of("FAST_COMPILE")
"""Each Op is one call of NumPy for a whole batch of draws: there is no loop to compile."""

OfRows = Callable[[np.ndarray], Sequence[np.ndarray]]


def at_each_row(outputs: Mapping[str, Tensor], x: Tensor, example: np.ndarray) -> OfRows:
    """A function of rows (n, D) that gives the outputs at each, arrays (n, ...).

    Some outputs can only be computed row by row: those of Ops that PyTensor cannot vectorise, and
    those for which something of another shape is computed at another row.

    Parameters
    ----------
    outputs
        By name, functions of one state `x`, (D,), and of nothing else.
    example
        A state at which they can be computed, (D,).

    Raises
    ------
    ModelError
        When it is called, and an output has not the same shape at all rows.
    """
    ragged = _ragged(list(outputs.values()), x)
    regular = {name: o for name, o in outputs.items() if o not in ragged}
    at_once = _together(regular, x, example)
    if at_once is None:
        alone = {name: _together({name: o}, x, example) for name, o in regular.items()}
        regular = {name: o for name, o in regular.items() if alone[name] is not None}
        at_once = _together(regular, x, example)
        assert at_once is not None
    others = {name: o for name, o in outputs.items() if name not in regular}
    if not others:
        return at_once
    one_by_one = _row_by_row(others, x, example)

    def each(rows: np.ndarray) -> list[np.ndarray]:
        found = dict(zip(regular, at_once(rows), strict=True))
        found |= dict(zip(others, one_by_one(rows), strict=True))
        return [found[name] for name in outputs]

    return each


def bytes_of_largest(outputs: Sequence[Tensor], x: Tensor, example: np.ndarray) -> int:
    """Bytes of the largest array that is computed on the way to the outputs at `example`, (D,)."""
    shapes = ShapeFeature()
    graph: Any = FunctionGraph(
        outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False, features=[shapes]
    )
    computed = [v for node in graph.toposort() for v in node.outputs]
    arrays: list[Any] = [v for v in computed if isinstance(v.type, TensorType)]
    sizes = [_size(v, v.type.shape) for v in arrays if None not in v.type.shape]
    if others := [v for v in arrays if None in v.type.shape]:
        # Lengths may be integers of 8 bits, and so would their product be.
        lengths = [[pt.cast(n, "int64") for n in shapes.shape_tuple(v) or ()] for v in others]
        symbolic = [_size(v, of_v) for v, of_v in zip(others, lengths, strict=True)]
        function: Any = pytensor.function([x], symbolic, mode=MODE, on_unused_input="ignore")
        sizes += function(example)
    return int(max([example.nbytes, *sizes]))


def _size(array: Any, lengths: Sequence[Any]) -> Any:
    """Bytes of an array of these lengths."""
    return prod(lengths, start=np.dtype(array.type.dtype).itemsize)


def _together(outputs: Mapping[str, Tensor], x: Tensor, example: np.ndarray) -> OfRows | None:
    """All rows at once; None where PyTensor cannot do that."""
    single = list(outputs.values())
    rows = pt.matrix("rows", dtype=x.type.dtype, shape=(None, *x.type.shape))
    try:
        # What does not depend on the state is the same for all.
        batch = [
            v if v.type.ndim > s.type.ndim else pt.broadcast_to(v, (rows.shape[0], *s.shape))
            for v, s in zip(vectorize_graph(single, {x: rows}), single, strict=True)
        ]
        function: Any = pytensor.function([rows], batch, mode=MODE, on_unused_input="ignore")
        function(np.stack([example, example]))
    except Exception:  # noqa: BLE001 - whatever Ops raise, one row at a time may work
        return None
    return function


def _row_by_row(outputs: Mapping[str, Tensor], x: Tensor, example: np.ndarray) -> OfRows:
    """One row after the other, each of whose values must have the shape of the example's."""
    single: Any = pytensor.function(
        [x], list(outputs.values()), mode=MODE, on_unused_input="ignore"
    )
    expected = [np.shape(value) for value in single(example)]

    def each(rows: np.ndarray) -> list[np.ndarray]:
        columns = list(zip(*map(single, rows), strict=True))
        for name, shape, column in zip(outputs, expected, columns, strict=True):
            for other in map(np.shape, column):
                if other != shape:
                    raise ModelError(
                        f"{name}: it has the shape {shape} at one draw and {other} at another, and "
                        "what is recorded has one. Leave it out of var_names, or give it one shape."
                    )
        return [np.stack(column) for column in columns]

    return each


def _ragged(outputs: Sequence[Tensor], x: Tensor) -> set[Tensor]:
    """Outputs for which something is computed whose shape may depend on the value of x."""
    shapes = ShapeFeature()
    graph: Any = FunctionGraph(
        outputs=list(outputs), clone=True, copy_inputs=False, copy_orphans=False, features=[shapes]
    )
    varying, irregular = {x}, set()

    def varies(variable: Any, of: Any) -> bool:
        """Whether a length depends on the value of x: one of `of`, which is not known yet."""
        node = variable.owner
        if variable in graph.variables or node is None:
            return variable in varying
        if isinstance(node.op, (Shape, Shape_i)) and node.inputs[0] in graph.variables:
            return node.inputs[0] is of or node.inputs[0] in irregular
        return any(varies(v, of) for v in node.inputs)

    for node in graph.toposort():
        known = irregular if isinstance(node.op, (Shape, Shape_i)) else varying
        if not known.isdisjoint(node.inputs):
            varying.update(node.outputs)
        for output in node.outputs:
            if any(varies(length, output) for length in _unknown(output, shapes)):
                irregular.add(output)
    pairs = zip(outputs, graph.outputs, strict=True)
    return {o for o, copied in pairs if not irregular.isdisjoint(ancestors([copied]))}


def _unknown(variable: Any, shapes: ShapeFeature) -> list[Tensor]:
    """What the lengths of an array follow from that its type does not tell."""
    if not isinstance(variable.type, TensorType):
        return []
    pairs = zip(variable.type.shape, shapes.shape_tuple(variable) or (), strict=True)
    return [length for known, length in pairs if known is None]
