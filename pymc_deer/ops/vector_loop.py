"""A loop over elements of arrays, compiled so that LLVM vectorises it and those behind it.

The loop is PyTensor's; two things keep LLVM from taking several elements at once there:

- Functions of elements are fused into one, which Numba compiles apart from the loop that calls it.
  LLVM puts a small function in place of the call. A large one stays a call for each element, and
  each of its exponentials one for a single number.
- The result of a reduction over some of the axes is typed as an array with gaps between its
  elements. It has none, and which way the next loop is compiled depends on what is known.

The Numba dispatch lives in ``vector_loop_numba``; ``backends.numba_mode`` puts the Op into graphs.
"""

from collections.abc import Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.scalar.basic import Composite
from pytensor.tensor.elemwise import CAReduce, Elemwise
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise

from pymc_deer.typing import Tensor


class VectorLoop(Op):
    """What another Op computes.

    Parameters
    ----------
    op
        An ``Elemwise``, a ``CAReduce``, or an Op whose inner graph holds one.
    """

    __props__ = ("op",)

    def __init__(self, op: Op) -> None:
        self.op = op
        self.destroy_map = op.destroy_map
        self.view_map = op.view_map

    def make_node(self, *inputs: Tensor) -> Apply:
        node = self.op.make_node(*inputs)
        return Apply(self, node.inputs, [output.type() for output in node.outputs])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        self.op.perform(node, inputs, output_storage)

    def __str__(self) -> str:
        return f"VectorLoop{{{self.op}}}"


def body_size(op: Op) -> int:
    """How many functions of elements the body of the Op's loop consists of."""
    inner: Any = getattr(op, "fgraph", None)
    loops = [op] if inner is None else [node.op for node in inner.apply_nodes]
    bodies = [loop.scalar_op for loop in loops if isinstance(loop, Elemwise)]
    return sum(len(b.fgraph.apply_nodes) if isinstance(b, Composite) else 1 for b in bodies)


def partial_reductions(op: Op, outputs: Sequence[Any]) -> tuple[int, ...]:
    """Which of the Op's outputs are reductions over some of the axes alone."""
    if isinstance(op, CAReduce):
        reductions: Sequence[Any] = [op]
    elif isinstance(op, FusedElemwise):
        reductions = op.reduced_outputs or ()
    else:
        return ()
    return tuple(i for i, r in enumerate(reductions) if r is not None and outputs[i].type.ndim > 0)
