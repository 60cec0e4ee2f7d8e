"""Squared distances of covariance functions, whose gradient does not depend on rounding.

PyMC computes squared distances between inputs of a Gaussian process as ``|x|^2 + |y|^2 - 2 x y``,
and clips what rounding takes below 0: on the diagonal, where they are 0, every other one or so. The
derivative of what is clipped is 0, that of the rest 1, and those of the three terms cancel only
where it is the same for all. XLA computes the sum anew in each of its fused loops, with other
roundings, so that an element is clipped in one and not in another: the gradient is then wrong, and
the more so the closer to singular the covariance matrix is. What is clipped for rounding alone has
the derivative 1, wherever it lies.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pytensor.scalar as ps
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Dot, Sum
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape
from pytensor.tensor.subtensor import Subtensor

from pymc_deer.graphs.elements import inputs_of, underlying_constant
from pymc_deer.typing import Tensor

_VIEWS = (DimShuffle, Reshape, JoinDims, SplitDims)


def distances_with_gradient(logp: Tensor) -> Tensor:
    """The same `logp`, with :class:`RoundingClip` where squared distances are clipped."""
    return rewrite_graph(logp, include=(), custom_rewrite=_CLIPPED_DISTANCES)


class RoundingClip(ps.Clip):
    """A ``Clip`` of what lies beyond its bounds for rounding alone: its derivative is 1."""

    def pullback(self, inputs: Any, outputs: Any, gout: Any) -> list[Any]:
        """See PyTensor's ``Op``."""
        # Bounds may be integers, of which there are no derivatives.
        return [gout[0], *(bound.zeros_like(dtype=gout[0].dtype) for bound in inputs[1:])]


@node_rewriter([Elemwise])
def _clipped_distance(fgraph: Any, node: Any) -> list[Any] | None:
    if type(node.op.scalar_op) is not ps.Clip:
        return None
    distance, lower, upper = node.inputs
    is_rounding = underlying_constant(lower) == 0 and underlying_constant(upper) == np.inf
    if not (is_rounding and _is_squared_distance(distance)):
        return None
    clip = RoundingClip(node.op.scalar_op.output_types_preference, name="rounding_clip")
    return Elemwise(clip).make_node(*node.inputs).outputs


def _is_squared_distance(variable: Any) -> bool:
    """Whether it is the sum of two squares less twice the product of what is squared."""
    terms = list(_terms(variable, 1.0))
    squares = [term for sign, term in terms if sign > 0 and _is_square(term)]
    others = [(sign, term) for sign, term in terms if sign < 0 or not _is_square(term)]
    if (len(squares), len(others)) != (2, 1) or not _is_minus_twice(*others[0]):
        return False
    return _all_multiplied(map(_base, squares)) == _multiplied(others[0][1])


def _multiplied(variable: Any) -> Counter[Any]:
    """What a product is of, whatever axes of it, and what it is divided by, and how often; but for
    factors of 1 and 2.
    """
    if isinstance(variable, Constant) and variable.data.size == 1:
        factor = abs(variable.data.item())
        return Counter() if factor in (1, 2) else Counter([factor])
    node = variable.owner
    if node is None:
        return Counter([variable])
    if isinstance(node.op, (Sum, *_VIEWS)) or _takes_all(node):
        return _multiplied(node.inputs[0])
    if isinstance(node.op, Subtensor):
        # The same elements of the same are the same, however many nodes take them.
        where = (int(i.data) if isinstance(i, Constant) else i for i in node.inputs[1:])
        return Counter([(node.op, frozenset(_multiplied(node.inputs[0]).items()), *where)])
    kind = getattr(node.op, "scalar_op", None)
    if isinstance(kind, ps.TrueDiv):
        divisor = "divisor", frozenset(_multiplied(node.inputs[1]).items())
        return _multiplied(node.inputs[0]) + Counter([divisor])
    if isinstance(kind, ps.Mul) or isinstance(node.op, Dot):
        factors = [v for v in node.inputs if not isinstance(v, Constant)]
        if len(factors) > 1 and any(_summed_up(v) is not _seen(v) for v in factors):
            # A product of sums is more than the sum of the products.
            return Counter([variable])
        return _all_multiplied(node.inputs)
    return Counter([variable])


def _all_multiplied(variables: Iterable[Any]) -> Counter[Any]:
    return sum(map(_multiplied, variables), Counter())


def _takes_all(node: Any) -> bool:
    """Whether it is an axis of length 1 at most that it does not take whole."""
    if not isinstance(node.op, Subtensor):
        return False
    pairs = zip(node.op.idx_list, node.inputs[0].type.shape, strict=False)
    return all(index == slice(None) or length == 1 for index, length in pairs)


def _terms(variable: Any, sign: float) -> Iterator[tuple[float, Any]]:
    """What is added up, each with its sign."""
    added, subtracted = inputs_of(variable, ps.Add), inputs_of(variable, ps.Sub)
    if subtracted:
        yield from _terms(subtracted[0], sign)
        yield from _terms(subtracted[1], -sign)
    for term in added:
        yield from _terms(term, sign)
    if not (added or subtracted):
        yield sign, variable


def _is_square(variable: Any) -> bool:
    """Whether it consists of squares, or of sums of squares."""
    variable = _summed_up(variable)
    power = inputs_of(variable, ps.Pow)
    is_second_power = bool(power) and underlying_constant(power[1]) == 2
    return is_second_power or bool(inputs_of(variable, ps.Sqr))


def _base(square: Any) -> Any:
    """What is squared."""
    return _summed_up(square).owner.inputs[0]


def _summed_up(variable: Any) -> Any:
    """What a sum is of, along whatever axes."""
    return _behind(variable, (Sum, *_VIEWS))


def _seen(variable: Any) -> Any:
    """What is seen through views."""
    return _behind(variable, _VIEWS)


def _behind(variable: Any, ops: tuple[type, ...]) -> Any:
    while variable.owner is not None and isinstance(variable.owner.op, ops):
        variable = variable.owner.inputs[0]
    return variable


def _is_minus_twice(sign: float, variable: Any) -> bool:
    quotient = inputs_of(variable, ps.TrueDiv)
    factors = inputs_of(quotient[0] if quotient else variable, ps.Mul)
    # Products are flat only once a graph is canonical.
    factors = [inner for factor in factors for inner in inputs_of(factor, ps.Mul) or [factor]]
    return any(underlying_constant(factor) == -2 * sign for factor in factors)


_CLIPPED_DISTANCES = dfs_rewriter(_clipped_distance)
