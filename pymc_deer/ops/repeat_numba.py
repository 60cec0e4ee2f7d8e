"""Numba implementation of :class:`~pymc_deer.ops.repeat.Repeat`: a loop."""

from typing import Any

from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key

from pymc_deer.ops.inline_numba import function_of_graph, inlined, inlined_in_graphs
from pymc_deer.ops.numba_source import from_source
from pymc_deer.ops.repeat import Repeat

_TEMPLATE = """
def repeat(n, {arguments}):
    {own}
    # A number is an array to the graph: this one, and no new one for each round.
    number = np.asarray(0)
    for i in range({rounds}):
        number[()] = i
        {carried} = inner(number, {arguments})
        {contiguous}
    return {carried}
"""


@register_funcify_and_cache_key(Repeat)
def numba_funcify_repeat(op: Repeat, node: Any, **kwargs: object):
    inner, inner_key = function_of_graph(op.fgraph, squeeze_output=True, fgraph_name="repeat_inner")
    [n, *_] = node.inputs
    source = _source(op, "n.max()" if n.type.ndim else "n.item()")
    function, key = from_source("repeat", source, inlined(inner), inner_key)
    return inlined_in_graphs(function), key


def _source(op: Repeat, rounds: str) -> str:
    carried = [f"carried_{i}" for i in range(op.n_carried)]
    arrays = [c for c, t in zip(carried, op.output_types, strict=True) if t.ndim]
    shared = [f"shared_{i}" for i in range(len(op.input_types) - 1 - op.n_carried)]
    return _TEMPLATE.format(
        arguments=", ".join(carried + shared),
        rounds=rounds,
        # Copies: arrays of one type whatever the caller's, and the caller's stay untouched.
        own="\n    ".join(f"{name} = {name}.copy()" for name in carried),
        carried=", ".join(carried),
        # Numba does not know this of every result, and strided code is slower.
        contiguous="\n        ".join(f"{c} = np.ascontiguousarray({c})" for c in arrays),
    )
