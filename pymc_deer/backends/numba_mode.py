"""How PyTensor compiles to Numba here: with Ops that Numba compiles fast in place of some."""

from typing import Any

import pytensor.tensor as pt
from pytensor import config
from pytensor.graph.rewriting.basic import dfs_rewriter, in2out, node_rewriter
from pytensor.link.numba.linker import NumbaLinker
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import CAReduce, DimShuffle, Elemwise
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise
from pytensor.tensor.rewriting.scalarize import ScalarizedElemwise

import pymc_deer.ops.groups_numba
import pymc_deer.ops.inlined_composite_numba
import pymc_deer.ops.shuffle_numba
import pymc_deer.ops.vector_loop_numba  # noqa: F401
from pymc_deer.graphs.canonical import without_pitfalls
from pymc_deer.graphs.filled_arrays import with_wide_lengths
from pymc_deer.graphs.short_axes import (
    inlined_function,
    reduced_as_it_lies,
    short_axis_first,
    shuffled_once,
)
from pymc_deer.modes import OwnMode
from pymc_deer.ops.groups import looked_up, summed_by_group
from pymc_deer.ops.inline_numba import function_of_graph
from pymc_deer.ops.inlined_composite import InlinedComposite
from pymc_deer.ops.matmul import MatrixProduct, untransposed
from pymc_deer.ops.scan import running_sum
from pymc_deer.ops.shuffle import Shuffle
from pymc_deer.ops.vector_loop import VectorLoop, body_size, partial_reductions
from pymc_deer.ops.vector_math import CALLED, VECTOR_OPS
from pymc_deer.ops.vector_math_numba import has_variants

_BEHIND_STABILIZATION = 1.9
"""Position behind the rewrites that look for what can be computed more precisely."""

_BEFORE_FUSION = 48.5
"""Position behind the rewrites that look for functions, before those that fuse them."""

_BEHIND_FUSION = 49.2
"""Position behind those, before the rewrites that let functions write over what they read."""

_LAST = 1000.0
"""Position behind all of PyTensor's rewrites, which know its own Ops alone."""

_BEHIND_OURS = 1001.0
"""Position behind the rewrites that put our Ops in, which look at PyTensor's."""

_FLOATS = ("float32", "float64")

_LARGE = 8
"""Functions of elements in the body of a loop, from which LLVM may leave it outside."""


@node_rewriter([Dot])
def fast_compiling_product(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`MatrixProduct` in place of a product that needs no copy which costs."""
    x, y = node.inputs
    dtypes = {x.type.dtype, y.type.dtype, node.outputs[0].type.dtype}
    if len(dtypes) > 1 or not dtypes <= set(_FLOATS):
        return None
    (x, transpose_x), (y, transpose_y) = untransposed(x), untransposed(y)
    if (_is_vector(y) and _is_strided(x)) or (_is_vector(x) and _is_strided(y)):
        return None
    return [MatrixProduct(transpose_x, transpose_y)(x, y)]


@node_rewriter([CumOp])
def fast_compiling_sum(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`~pymc_deer.ops.scan.RunningSum` in place of a running sum of rows."""
    [x] = node.inputs
    if (node.op.mode, node.op.axis, x.ndim) != ("add", 0, 2) or x.type.dtype not in _FLOATS:
        return None
    return [running_sum(x)]


@node_rewriter([Alloc])
def fast_compiling_fill(fgraph: Any, node: Any) -> list[Any] | None:
    """Fill an array with the element of a vector, where it is filled with one of no dimensions.

    That one Numba broadcasts, with code for the case that it cannot.
    """
    value, *shape = node.inputs
    return [node.op(pt.expand_dims(value, 0), *shape)] if value.ndim == 0 and shape else None


@node_rewriter([DimShuffle])
def fast_compiling_shuffle(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`Shuffle` in place of a change of axes that needs no check."""
    op, [x] = node.op, node.inputs
    if type(op) is not DimShuffle or any(x.type.shape[axis] != 1 for axis in op.drop):
        return None
    return Shuffle(input_ndim=op.input_ndim, new_order=op.new_order).make_node(x).outputs


@node_rewriter([Elemwise])
def vectorised_functions(fgraph: Any, node: Any) -> list[Any] | None:
    """Put an Op in place of an elementary function that has variants for vectors."""
    op = node.op.scalar_op
    ours = VECTOR_OPS.get(type(op))
    dtypes = {variable.type.dtype for variable in (*node.inputs, *node.outputs)}
    if ours is None or len(dtypes) > 1 or not dtypes <= set(_FLOATS):
        return None
    if not all(map(has_variants, CALLED[type(op)])):
        return None
    return Elemwise(ours(op.output_types_preference, name=op.name)).make_node(*node.inputs).outputs


@node_rewriter([Elemwise])
def compiled_as_one(fgraph: Any, node: Any) -> list[Any] | None:
    """Put an :class:`InlinedComposite` in place of fused functions of elements."""
    fused = node.op.scalar_op
    if type(fused) is not Composite:
        return None
    ours = InlinedComposite(fused.inputs, fused.outputs)
    return Elemwise(ours, node.op.inplace_pattern).make_node(*node.inputs).outputs


@node_rewriter([FusedElemwise])
def compiled_as_one_in_loops(fgraph: Any, node: Any) -> list[Any] | None:
    """The same in loops for which PyTensor has fused them anew."""
    op, inner = node.op, node.op.fgraph.unfreeze()
    [loop] = [n for n in inner.apply_nodes if isinstance(n.op, Elemwise)]
    outputs: Any = compiled_as_one.transform(inner, loop)
    if not outputs:
        return None
    inner.replace_all(zip(loop.outputs, outputs, strict=True))
    ours = FusedElemwise(
        inner.inputs,
        inner.outputs,
        fgraph=inner.freeze(),
        destroy_map=op.destroy_map,
        indexed_inputs=op.indexed_inputs,
        indexed_outputs=op.indexed_outputs,
        reduced_outputs=op.reduced_outputs,
    )
    return ours.make_node(*node.inputs).outputs


@node_rewriter([Elemwise, FusedElemwise, ScalarizedElemwise, CAReduce])
def vectorised_loops(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a :class:`VectorLoop` in place of a loop that LLVM would not vectorise."""
    return VectorLoop(node.op).make_node(*node.inputs).outputs if keeps_scalar(node) else None


def keeps_scalar(node: Any) -> bool:
    """Whether LLVM takes one element at a time in PyTensor's loop, or in those behind it."""
    return body_size(node.op) >= _LARGE or bool(partial_reductions(node.op, node.outputs))


def _is_vector(matrix: Any) -> bool:
    """Whether to read the other operand takes as long as the product."""
    return 1 in matrix.type.shape


def _is_strided(matrix: Any) -> bool:
    """Whether there may be gaps in memory between the rows of `matrix`."""
    known = Elemwise | FusedElemwise | MatrixProduct
    return not (_is_vector(matrix) or matrix.owner is None or isinstance(matrix.owner.op, known))


_IN_PLACE_OF_PYTENSORS = (
    *(fast_compiling_product, fast_compiling_sum, fast_compiling_fill, fast_compiling_shuffle),
    compiled_as_one_in_loops,
)

NUMBA_MODE = without_pitfalls(with_wide_lengths(OwnMode.of("NUMBA"))).register(
    (dfs_rewriter(inlined_function, looked_up, summed_by_group), _BEHIND_STABILIZATION),
    (in2out(short_axis_first, reduced_as_it_lies, shuffled_once), _BEFORE_FUSION),
    (dfs_rewriter(vectorised_functions), _BEFORE_FUSION),
    (dfs_rewriter(compiled_as_one), _BEHIND_FUSION),
    (dfs_rewriter(*_IN_PLACE_OF_PYTENSORS), _LAST),
    (dfs_rewriter(vectorised_loops), _BEHIND_OURS),
)


class LoopLinker(NumbaLinker):
    """For programs of which a compiled loop consists: to be inlined there.

    It makes a function for Numba and its key on disk, None where it has none. PyTensor's own linker
    puts two more functions around it, each of which Numba optimises with all that is in it.
    """

    def fgraph_convert(self, fgraph: Any, **options: Any) -> tuple[Any, str | None]:
        """See PyTensor's ``JITLinker``."""
        function, key = function_of_graph(fgraph, **options)
        cached = key is not None and config.numba__cache
        return function, f"{key} fastmath={config.numba__fastmath}" if cached else None

    def jit_compile(self, fn_and_cache: Any) -> Any:
        """See PyTensor's ``JITLinker``: it is the loop that is compiled."""
        return fn_and_cache


LOOP_MODE = OwnMode(LoopLinker(), NUMBA_MODE.provided_optimizer)
