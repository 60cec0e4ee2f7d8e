"""Ops that no backend compiles: the Python code of the user, or of a library around a solver."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import applys_between
from pytensor.scalar.basic import ScalarOp
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import Elemwise

from pymc_deer.typing import Tensor


def calls_python(outputs: Sequence[Tensor]) -> bool:
    """Whether Numba leaves an Op of these, or inside one, to Python.

    Python's lock makes such calls take turns, but lets another begin while one goes on: what they
    use need not bear that. PyTensor's own functions do not.
    """
    dispatch: Any = sys.modules.get("pytensor.link.numba.dispatch.basic")
    if dispatch is None:
        # Nothing runs on Numba, and a run on JAX need not import it.
        return False
    implementation = dispatch.numba_funcify.dispatch

    def is_python(op: Any) -> bool:
        found = implementation(type(op))
        # One function is there for all operations on elements: those that do not say which of
        # NumPy's or SciPy's functions they are it leaves to Python.
        unnamed = found is implementation(ScalarOp) and not hasattr(op, "nfunc_spec")
        return unnamed or found is implementation(object)

    return any(map(is_python, _ops(applys_between([], outputs))))


def _ops(nodes: Iterable[Apply]) -> Iterator[Any]:
    """Ops of the nodes, down to those that others run."""
    for node in nodes:
        op: Any = node.op
        while isinstance(op, Blockwise):
            op = op.core_op
        yield op
        if isinstance(op, Elemwise):
            op = op.scalar_op
            yield op
        if isinstance(op, HasInnerGraph):
            yield from _ops(op.fgraph.apply_nodes)
