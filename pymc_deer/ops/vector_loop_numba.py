"""Numba implementation of :class:`~pymc_deer.ops.vector_loop.VectorLoop`."""

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import (
    numba_funcify_and_cache_key,
    register_funcify_and_cache_key,
)

from pymc_deer.ops.numba_source import from_source
from pymc_deer.ops.vector_loop import VectorLoop, partial_reductions

_TEMPLATE = """
def vector_loop(*inputs):
    {results}, = {loop}
    return {contiguous}
"""


@register_funcify_and_cache_key(VectorLoop)
def numba_funcify_vector_loop(op: VectorLoop, node: Apply, **kwargs: Any):
    loop, loop_key = numba_funcify_and_cache_key(op.op, node=node, **kwargs)
    # What is called from there is forced in, too, down to the body of the loop.
    return from_source("vector_loop", _source(op, node), loop, loop_key, forceinline=True)


def _source(op: VectorLoop, node: Apply) -> str:
    reductions = partial_reductions(op.op, node.outputs)
    results = [f"result_{i}" for i in range(len(node.outputs))]
    # No copy where memory turns out to be contiguous.
    contiguous = [
        f"np.ascontiguousarray({result})" if i in reductions else result
        for i, result in enumerate(results)
    ]
    return _TEMPLATE.format(
        results=", ".join(results),
        loop="inner(*inputs)" if len(results) > 1 else "(inner(*inputs),)",
        contiguous=", ".join(contiguous),
    )
