"""Ops that no backend compiles: the Python code of the user, or of a library around a solver."""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.op import HasInnerGraph
from pytensor.graph.traversal import applys_between
from pytensor.tensor.blockwise import Blockwise

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
    nodes = applys_between([], outputs)
    return any(implementation(type(op)) is implementation(object) for op in _ops(nodes))


def _ops(nodes: Iterable[Apply]) -> Iterator[Any]:
    """Ops of the nodes, down to those that others run."""
    for node in nodes:
        op: Any = node.op
        while isinstance(op, Blockwise):
            op = op.core_op
        yield op
        if isinstance(op, HasInnerGraph):
            yield from _ops(op.fgraph.apply_nodes)
