"""Numba functions with few levels of calls between a compiled loop and a model's logp.

Numba optimises a function with all that it calls, and whatever calls it once more: each level costs
up to half a second, and hands on arrays whose references are counted.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from types import FunctionType
from typing import Any

from pytensor.graph.basic import Apply
from pytensor.graph.fg import AbstractFunctionGraph
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key, numba_njit

_MOST_KEPT = 1024
"""Functions of Ops that are kept for other programs; a large model has a hundred."""

_MOST_ARGUMENTS = 30
"""Arguments of a call up to which Python's bytecode names them one by one: more are a list that is
unpacked, which Numba understands in calls but not where it inlines."""

_MARK = "inlined_in_graphs"


def direct(called: Any, function: Any, node: Apply) -> Any:
    """The Op's function itself: kept in memory alone, where what PyTensor calls is on disk."""
    types = tuple(variable.type for variable in (*node.inputs, *node.outputs))
    return _first(_Found(CACHED_SRC_FUNCTIONS[called.py_func], types, function))


def function_of_graph(
    fgraph: AbstractFunctionGraph,
    choose: Callable[[Any, Any, Apply], Any] = direct,
    **options: Any,
) -> tuple[Any, str | None]:
    """Numba's function of a graph and its key on disk, None where it has none.

    It is PyTensor's but for what it calls. PyTensor has it call a function ``op(*args)`` around
    that of each Op.

    Parameters
    ----------
    choose
        What to call in place of the first, from the two and the Op's node.
    options
        Of PyTensor's conversion.
    """
    names: dict[str, Any] = {}
    nodes: Sequence[Apply] = options.pop("order", None) or fgraph.toposort()
    options |= {"order": nodes, "global_env": names}
    function: Any
    function, key = numba_funcify_and_cache_key(fgraph, **options)
    # The functions have got their names in the order of the nodes; between them are constants.
    called = [name for name, value in names.items() if callable(value)]
    if len(called) < len(nodes):
        # Nodes share functions: with its cache off, PyTensor puts nothing around them.
        return function, key
    ours = {
        name: choose(names[name], within, node)
        for name, node in zip(called, nodes, strict=True)
        if (within := _within(names[name])) is not None
    }
    return numba_njit(_with_names(function.py_func, ours)), key


def inlined(function: Any) -> Any:
    """The same function, for callers to be compiled with its body in place of the call.

    The arguments must be named one by one where it is called. With too many to be inlined, it is
    the function itself.
    """
    if function.py_func.__code__.co_argcount > _MOST_ARGUMENTS:
        return function
    return numba_njit(function.py_func, inline="always")


def inlined_in_graphs(function: Any) -> Any:
    """A function of an Op, to be inlined in all graphs of which :func:`function_of_graph` is."""
    setattr(function.py_func, _MARK, True)
    return function


@dataclass(frozen=True)
class _Found:
    """A function, which is as good as others of the same key for arguments of the same types."""

    key: str
    types: tuple[Any, ...]
    function: Any = field(compare=False)


@lru_cache(_MOST_KEPT)
def _first(found: _Found) -> Any:
    """The function that was found first, which need not be compiled again."""
    marked = getattr(getattr(found.function, "py_func", None), _MARK, False)
    return inlined(found.function) if marked else found.function


def _within(called: Any) -> Any:
    """The function of an Op within PyTensor's wrapper, None if what is called is none."""
    wrapper: Any = getattr(called, "py_func", None)
    is_wrapper = wrapper in CACHED_SRC_FUNCTIONS and "jitable_func" in wrapper.__globals__
    return wrapper.__globals__["jitable_func"] if is_wrapper else None


def _with_names(function: FunctionType, names: dict[str, Any]) -> FunctionType:
    """A copy of the function, for which some of its global names mean something else."""
    every = {**function.__globals__, **names}
    return FunctionType(function.__code__, every, function.__name__, function.__defaults__)
