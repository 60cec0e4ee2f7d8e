"""PyTensor's canonical form of a graph, in a time that grows with the graph alone."""

from collections.abc import Sequence
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.utils import rewrite_graph

_DISTRIBUTOR = "local_greedy_distributor"
"""The rewrite that multiplies sums out where one product fewer is left. In a recursion that is
written out step by step it tries every step again behind every other: of 80, for minutes. Other
models' graphs are the same without it."""


def canonical(outputs: Any, *also: str, but: Sequence[str] = (), clone: bool = False) -> Any:
    """One output or several in canonical form.

    Parameters
    ----------
    also, but
        Tags of further rewrites, and of those that are left out.
    clone
        Whether the graph that is given stays as it is.
    """
    include, exclude = ("canonicalize", *also), (_DISTRIBUTOR, *but)
    return rewrite_graph(outputs, include=include, exclude=exclude, clone=clone)


def without_distributor(mode: Mode) -> Mode:
    """A mode that compiles without that rewrite."""
    return mode.excluding(_DISTRIBUTOR)
