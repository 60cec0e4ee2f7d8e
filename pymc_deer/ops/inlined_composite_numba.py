"""Numba implementation of :class:`~pymc_deer.ops.inlined_composite.InlinedComposite`."""

from typing import Any

from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import register_funcify_and_cache_key
from pytensor.scalar.basic import (
    AND,
    EQ,
    GE,
    GT,
    LE,
    LT,
    NEQ,
    OR,
    Add,
    Mul,
    Neg,
    Reciprocal,
    Sqr,
    Sub,
    Switch,
    TrueDiv,
)

from pymc_deer.ops.inline_numba import function_of_graph, inlined
from pymc_deer.ops.inlined_composite import InlinedComposite
from pymc_deer.ops.numba_source import key_of

_SIMPLE = frozenset(
    {*(Add, Sub, Mul, TrueDiv, Neg, Reciprocal, Sqr, Switch), *(AND, OR, EQ, NEQ, GE, GT, LE, LT)}
)
"""What takes an instruction or two, and longer to compile by itself than where it is used."""


@register_funcify_and_cache_key(InlinedComposite)
def numba_funcify_inlined_composite(op: InlinedComposite, node: Apply, **kwargs: Any) -> Any:
    kwargs.pop("storage_map", None)
    named = {"squeeze_output": True, "fgraph_name": "inlined_composite"}
    function, key = function_of_graph(op.fgraph, _inlined_if_simple, **named, **kwargs)
    return function, key and key_of("inlined composite", key)


def _inlined_if_simple(called: Any, function: Any, node: Apply) -> Any:
    return inlined(function) if type(node.op) in _SIMPLE else called
