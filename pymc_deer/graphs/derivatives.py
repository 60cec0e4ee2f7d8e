# pyright: reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Derivatives of a log-density, as graphs: the gradient, and products with the Hessian."""

from collections.abc import Callable
from functools import cache

import pytensor
import pytensor.tensor as pt
from pytensor.gradient import DisconnectedInputError, NullTypeGradError, pushforward
from pytensor.graph.replace import graph_replace

from pymc_deer.graphs.canonical import canonical
from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

HvpFunction = Callable[[Tensor, Tensor], Tensor]


def gradient(logp: Tensor, value: Tensor, name: str) -> Tensor:
    """Gradient of `logp` with respect to the value variable of the variable called `name`.

    Raises
    ------
    ModelError
        `logp` does not depend on it, or has no gradient.
    """
    try:
        return pytensor.grad(logp, value)
    except DisconnectedInputError as error:
        raise ModelError(
            f"{name}: logp does not depend on it, so there is nothing to sample. Give it a prior "
            "and a likelihood, or remove it."
        ) from error
    except (NotImplementedError, NullTypeGradError, TypeError, ValueError) as error:
        raise ModelError(
            f"{name}: logp has no gradient with respect to it ({error}). Give this variable "
            "another step (pm.Slice, pm.Metropolis), or implement the Op's pullback."
        ) from error


def automatic_hvp(x: Tensor, dlogp: Tensor) -> HvpFunction:
    """Hessian-vector product by differentiating the gradient once more.

    Forward over reverse (``pushforward``) where the Ops support it, otherwise reverse over
    reverse. The graph is built on the first call only: the rule without HVPs never pays for it.
    """

    @cache
    def build() -> tuple[Tensor, Tensor]:
        v = x.type("v")
        try:
            product = pushforward(dlogp, x, v, disconnected_outputs="ignore")
        except (NotImplementedError, NullTypeGradError, TypeError, ValueError):
            inner = pt.sum(dlogp * v)
            product = pytensor.grad(inner, x, disconnected_inputs="ignore")
        # The forward form leaves zero cotangents behind, which these rewrites remove.
        product = canonical(product, "stabilize", clone=True)
        return v, product

    def hvp(at: Tensor, direction: Tensor) -> Tensor:
        v, product = build()
        return graph_replace([product], {x: at, v: direction}, strict=False)[0]

    return hvp
