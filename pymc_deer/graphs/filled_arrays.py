"""Reductions of arrays that are filled with a number, or along an axis with a row."""

from typing import Any

import pytensor.tensor as pt
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.tensor.basic import Alloc
from pytensor.tensor.rewriting.math import local_careduce_of_alloc

_PYTENSORS: Any = local_careduce_of_alloc

_BEHIND_SPECIALIZATION = 2.01
"""Position behind the rewrites of which PyTensor's own is one."""


@node_rewriter(_PYTENSORS.tracks())
def reduced_as_it_is_filled(fgraph: Any, node: Any) -> list[Any] | None:
    """Take a sum of a number that fills an array for its product with the array's size.

    PyTensor's own rewrite multiplies the lengths of the axes in the types of their constants: of
    40 and 6, which are integers of 8 bits, that makes -16.
    """
    filled = node.inputs[0].owner
    if filled is None or not isinstance(filled.op, Alloc):
        return None
    value, *lengths = filled.inputs
    wide = filled.op(value, *map(_in_64_bits, lengths))
    return _PYTENSORS.transform(fgraph, node.op.make_node(wide)) or None


def with_wide_lengths(mode: Mode) -> Mode:
    """The mode with that rewrite in place of PyTensor's."""
    ours = dfs_rewriter(reduced_as_it_is_filled)
    return mode.excluding("local_careduce_of_alloc").register((ours, _BEHIND_SPECIALIZATION))


def _in_64_bits(length: Any) -> Any:
    # A constant stays one, which JAX must know.
    is_known = isinstance(length, Constant)
    return pt.constant(length.data, dtype="int64") if is_known else length.astype("int64")
