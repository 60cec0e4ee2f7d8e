"""Logistic likelihoods, computed once where they are written twice.

The log-probability of ``Bernoulli(logit_p=x)`` chooses between those of both outcomes,
``switch(y, -softplus(-x), -softplus(x))``, after two reductions that see to it that ``sigmoid(x)``
lies between 0 and 1. Its gradient does the same again. Exponentials and logarithms are most of the
time that such a likelihood takes, and half of them are thrown away. That of ``Poisson(exp(x))``
sees to it that no exponential is negative.
"""

from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.rewriting.basic import dfs_rewriter, node_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All

from pymc_deer.graphs.canonical import canonical
from pymc_deer.graphs.elements import inputs_of, negated, underlying_constant
from pymc_deer.typing import Tensor

_HOLDING = ((ps.GE, 0.0, Sigmoid), (ps.LE, 1.0, Sigmoid), (ps.GE, 0.0, ps.Exp))
"""Comparisons that hold: with which number, and of which function."""


def evaluated_once(logp: Tensor) -> Tensor:
    """The same `logp`, with each logistic term evaluated for the outcome that was observed.

    Values are the same to the last bit. Where a logit or the logarithm of a rate is NaN, `logp` is
    NaN instead of -inf.

    Parameters
    ----------
    logp
        Canonical, before the gradient is taken, which then is that of the terms that are left.
    """
    logp = rewrite_graph(logp, include=(), custom_rewrite=_EVALUATED_ONCE)
    # What a check that holds leaves behind goes.
    return canonical(logp)


@node_rewriter([All])
def _probability(fgraph: Any, node: Any) -> list[Any] | None:
    """True in place of the check that a sigmoid is nowhere below 0, or nowhere above 1.

    And that an exponential is nowhere below 0.
    """
    if node.outputs[0].ndim > 0:
        return None
    for comparison, limit, kind in _HOLDING:
        compared = inputs_of(node.inputs[0], comparison)
        if compared and inputs_of(compared[0], kind) and underlying_constant(compared[1]) == limit:
            return [pt.constant(True, dtype="bool")]
    return None


@node_rewriter([Elemwise])
def _chosen_first(fgraph: Any, node: Any) -> list[Any] | None:
    """The softplus of what is chosen, in place of a choice between two."""
    output = node.outputs[0]
    choice = inputs_of(output, ps.Switch)
    if not choice:
        return None
    condition, *branches = choice
    arguments = [_argument_of_minus_softplus(branch) for branch in branches]
    # A softplus of fewer elements than the choice has is cheaper as it is.
    if any(a is None or a.type.broadcastable != output.type.broadcastable for a in arguments):
        return None
    return [pt.neg(pt.softplus(pt.switch(condition, *arguments)))]


def _argument_of_minus_softplus(variable: Any) -> Any | None:
    opposite = negated(variable)
    arguments = inputs_of(opposite, Softplus) if opposite is not None else []
    return arguments[0] if arguments else None


_EVALUATED_ONCE = dfs_rewriter(_probability, _chosen_first)
