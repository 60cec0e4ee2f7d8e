"""Indices that are data, and the lengths of what is looked up by them.

JAX takes the last element where an index is too large, and adds a gradient there to none: the
draws would be of a posterior in which logp and gradient are not of one another. Numba reads what
lies behind the array, or raises, by the kind of lookup. So data are looked at before.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from pytensor.compile.builders import infer_shape
from pytensor.conditional.op import IfElse
from pytensor.graph.basic import Apply, Constant, Variable
from pytensor.graph.traversal import applys_between, walk
from pytensor.scalar.basic import Cast, switch
from pytensor.tensor.basic import ScalarFromTensor, TensorFromScalar, constant
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.subtensor import (
    AdvancedIncSubtensor,
    AdvancedSubtensor,
    IncSubtensor,
    Subtensor,
    unflatten_index_variables,
)

from pymc_deer.graphs.canonical import canonical
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

_LOOKUPS = (Subtensor, AdvancedSubtensor, IncSubtensor, AdvancedIncSubtensor)


def lengths_looked_up(
    logp: Tensor, shapes: Mapping[Tensor, tuple[int, ...]], data: Mapping[Tensor, np.ndarray]
) -> dict[Tensor, int]:
    """The shortest axis that each index among `data` looks up.

    Left out are axes whose length the graph does not know, indices computed from data, lookups
    within loops and other graphs of Ops, and single elements that one of two branches may not take.

    Parameters
    ----------
    shapes
        Of the variables that are inputs of logp.
    data
        Other inputs, with what they are now.

    Raises
    ------
    ModelError
        If an index, one of `data` or a constant, lies outside of the axis.
    """
    found: dict[Tensor, int] = {}
    lookups = [each for each in _lookups(logp) if isinstance(each[0], Constant) or each[0] in data]
    if not lookups:
        return found
    known = [tuple(constant(n, dtype="int64") for n in shape) for shape in shapes.values()]
    inferred = infer_shape([array for _, array, _ in lookups], list(shapes), known)
    lengths = [shape[axis] for shape, (_, _, axis) in zip(inferred, lookups, strict=True)]
    for (index, array, _), length in zip(lookups, canonical(lengths, clone=True), strict=True):
        if not isinstance(length, Constant):
            continue
        n, is_written = int(length.data), isinstance(index, Constant)
        values = np.asarray(index.data) if is_written else data[index]
        refuse_outside(values, n, index.name, array.name)
        if not is_written:
            found[index] = min(n, found.get(index, n))
    return found


def refuse_outside(
    indices: np.ndarray, length: int, name: str | None = None, array: str | None = None
) -> None:
    """Refuse indices that are not of an axis of that length.

    Raises
    ------
    ModelError
        Naming the first.
    """
    outside = indices[(indices < -length) | (indices >= length)]
    if outside.size:
        by = f"{name}: it looks up" if name else "The model looks up"
        of = f" of {array}" if array else ""
        there_are = f": give indices from 0 to {length - 1}" if length else ", and there are none"
        raise ModelError(
            f"{by} element {outside[0]}{of}, along an axis of {length}. Elements are numbered from "
            f"0{there_are}."
        )


def _lookups(logp: Tensor) -> Iterator[tuple[Any, Any, int]]:
    """Each index, as it was given, with what it looks up or adds to, and along which axis."""
    taken = {variable.owner for variable in walk([logp], _always_computed)}
    for node in applys_between([], [logp]):
        if not isinstance(node.op, _LOOKUPS):
            continue
        array, *indices = node.inputs
        if isinstance(node.op, IncSubtensor | AdvancedIncSubtensor):
            _, *indices = indices
        entries: Any = unflatten_index_variables(indices, node.op.idx_list)
        axis = 0
        for entry in entries:
            if isinstance(entry, slice):
                axis += 1
            elif entry.type.dtype == "bool":
                axis += entry.type.ndim
            else:
                source = _source(entry)
                if node in taken or source.type.ndim or not isinstance(source, Constant):
                    yield source, array, axis
                axis += 1


def _always_computed(variable: Variable) -> Sequence[Variable]:
    """What it is computed from, whatever conditions are."""
    if (node := variable.owner) is None:
        return []
    op = node.op
    has_branches = isinstance(op, IfElse) or getattr(op, "scalar_op", None) == switch
    return node.inputs[:1] if has_branches else node.inputs


def _source(index: Variable) -> Variable:
    """What has the same whole numbers, perhaps of another type or shape."""
    while (node := index.owner) is not None and _keeps_numbers(node):
        [index] = node.inputs
    return index


def _keeps_numbers(node: Apply) -> bool:
    if isinstance(node.op, Elemwise) and isinstance(node.op.scalar_op, Cast):
        [before], [after] = node.inputs, node.outputs
        return "int" in before.type.dtype and after.type.dtype in ("int32", "int64")
    return isinstance(node.op, DimShuffle | ScalarFromTensor | TensorFromScalar)
