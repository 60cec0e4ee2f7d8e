# pyright: reportOperatorIssue=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Sums of logistic terms by a logarithm for many of them: that of a product.

A logistic log-likelihood is a sum of ``softplus(a) = max(a, 0) + log(1 + exp(-|a|))``. On a CPU,
XLA's logarithm takes four to eight times as long as its exponential. The factors ``1 + exp(-|a|)``
lie between 1 and 2, so that products of many of them neither overflow nor lose digits: each factor
adds a rounding of 1e-16 to the sum, as a term of its own would.

The gradient of such a sum has the sigmoids of the same arguments, which follow from the same
exponentials.

Rewrites of graphs that XLA compiles for a CPU. A GPU waits for its memory, from which a sum apart
from the gradient is read once more; Numba calls logarithms of several numbers at once.
"""

from math import prod
from typing import Any

import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.graph.rewriting.basic import node_rewriter
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum

from pymc_deer.graphs.elements import inputs_of, negated
from pymc_deer.precision import wide
from pymc_deer.typing import Tensor

_FACTORS = 32
"""Of a product, which is at most 2 to that power."""

_LEAST = 4 * _FACTORS
"""Terms from which it pays."""


@node_rewriter([Sum])
def softplus_by_products(fgraph: Any, node: Any) -> list[Any] | None:
    """A sum of softplus over the last axes by products of their factors, in float64."""
    [terms], [total] = node.inputs, node.outputs
    sign, argument = signed_softplus(terms)
    lead = total.type.ndim
    axes = range(terms.type.ndim) if node.op.axis is None else node.op.axis
    shape = terms.type.shape[lead:]
    is_float = argument is not None and "float" in argument.type.dtype
    if not is_float or total.type.dtype != "float64" or None in shape:
        return None
    if tuple(axes) != tuple(range(lead, terms.type.ndim)) or prod(shape) < _LEAST:
        return None
    logs = _logs_of_products(argument, lead, prod(shape))
    summed = pt.sum(wide(pt.maximum(argument, 0)), axis=node.op.axis) + logs
    return [pt.neg(summed) if sign < 0 else summed]


@node_rewriter([Elemwise])
def sigmoid_by_exponential(fgraph: Any, node: Any) -> list[Any] | None:
    """A sigmoid by ``exp(-|a|)`` of its argument a, where the graph has that, with new axes too."""
    arguments = inputs_of(node.outputs[0], Sigmoid)
    if not arguments:
        return None
    [argument], shuffle = arguments, None
    if argument.owner is not None and isinstance(argument.owner.op, DimShuffle):
        shuffle, [argument] = argument.owner.op, argument.owner.inputs
    variables = [argument]
    for kind in (ps.Abs, ps.Neg, ps.Exp):
        variables = [v for of_one in variables for v in _functions(fgraph, of_one, kind)]
    if not variables:
        return None
    exponential = variables[0]
    sigmoid = pt.switch(pt.ge(argument, 0), 1, exponential) / (1 + exponential)
    return [sigmoid if shuffle is None else shuffle(sigmoid)]


def _functions(fgraph: Any, variable: Any, kind: type) -> list[Any]:
    """What the graph has of this function of `variable`."""
    outputs = [output for client, _ in fgraph.clients[variable] for output in client.outputs]
    return [output for output in outputs if inputs_of(output, kind)]


def _logs_of_products(argument: Any, lead: int, n: int) -> Tensor:
    """Sum of ``log(1 + exp(-|argument|))`` over the n elements behind the first `lead` axes."""
    kept = [argument.shape[i] for i in range(lead)]
    factors = 1 + wide(pt.exp(-pt.abs(argument)))
    factors = factors.reshape((*kept, n)) if argument.type.ndim > lead + 1 else factors
    columns = n // _FACTORS
    whole = factors[..., : columns * _FACTORS].reshape((*kept, _FACTORS, columns))
    logs = pt.sum(pt.log(pt.prod(whole, axis=lead)), axis=-1)
    if n % _FACTORS:
        logs = logs + pt.log(pt.prod(factors[..., columns * _FACTORS :], axis=-1))
    return logs


def signed_softplus(terms: Any) -> tuple[int, Any]:
    """Sign and argument of a softplus, None of anything else."""
    widened = inputs_of(terms, ps.Cast)
    if widened and all("float" in v.type.dtype for v in (terms, *widened)):
        return signed_softplus(widened[0])
    opposite = negated(terms)
    if opposite is not None:
        sign, argument = signed_softplus(opposite)
        return -sign, argument
    found = inputs_of(terms, Softplus)
    return 1, found[0] if found else None
