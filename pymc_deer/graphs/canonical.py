"""PyTensor's rewrites, without those that take minutes or fail."""

from collections.abc import Sequence
from typing import Any

from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.utils import rewrite_graph

_LEFT_OUT = ("local_greedy_distributor", "local_sumsqr2dot")
"""The first multiplies sums out where one product fewer is left. In a recursion that is written out
step by step it tries every step again behind every other: of 80, for minutes. Other models' graphs
are the same without it. The second makes a product of matrices of a sum over squares, and fails
where these are of what has been scaled, as those of a window's states are."""


def canonical(outputs: Any, *also: str, but: Sequence[str] = (), clone: bool = False) -> Any:
    """One output or several in canonical form.

    Parameters
    ----------
    also, but
        Tags of further rewrites, and of those that are left out.
    clone
        Whether the graph that is given stays as it is.
    """
    include, exclude = ("canonicalize", *also), (*_LEFT_OUT, *but)
    return rewrite_graph(outputs, include=include, exclude=exclude, clone=clone)


def without_pitfalls(mode: Mode) -> Mode:
    """A mode that compiles without these rewrites."""
    return mode.excluding(*_LEFT_OUT)
