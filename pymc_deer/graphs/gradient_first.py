# pyright: reportArgumentType=false, reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""A log-density whose gradient comes first, and logp where it is wanted.

A path of leapfrog steps needs the gradient at each of its states, and logp at the last one alone.
The two have much in common: matrix products, solves, sums. These *parts* are computed with the
gradient, and logp follows from them by what costs little once a path: elementwise functions,
indexing, a few sums.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

from pytensor.graph.op import Op
from pytensor.graph.traversal import ancestors, toposort
from pytensor.tensor.basic import Alloc, Join, MakeVector, ScalarFromTensor, TensorFromScalar
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.reshape import JoinDims, SplitDims
from pytensor.tensor.shape import Reshape, SpecifyShape
from pytensor.tensor.subtensor import AdvancedSubtensor, Subtensor

from pymc_deer.typing import Tensor

CHEAP: tuple[type[Op], ...] = (
    *(Elemwise, DimShuffle, Subtensor, AdvancedSubtensor, Reshape, SpecifyShape),
    *(JoinDims, SplitDims, Join, Alloc, MakeVector, ScalarFromTensor, TensorFromScalar),
)
"""What is computed once more for logp, rather than kept from the gradient."""


@dataclass(frozen=True)
class GradientFirst:
    """Logp (...) and its gradient (..., D) as functions of z (..., D).

    Attributes
    ----------
    both
        Logp and gradient.
    gradient
        The gradient, and the parts from which logp follows.
    logp
        Logp from these parts.
    """

    both: Callable[[Tensor], list[Tensor]]
    gradient: Callable[[Tensor], list[Tensor]]
    logp: Callable[[Sequence[Tensor]], Tensor]

    @classmethod
    def of_parts(
        cls,
        gradient: Callable[[Tensor], list[Tensor]],
        logp: Callable[[Sequence[Tensor]], Tensor],
    ) -> Self:
        """Without another function for both."""

        def both(z: Tensor) -> list[Tensor]:
            dlogp, *parts = gradient(z)
            return [logp(parts), dlogp]

        return cls(both, gradient, logp)

    @classmethod
    def of_both(cls, both: Callable[[Tensor], list[Tensor]]) -> Self:
        """Where logp is not known to follow from less: it is a part itself."""
        return cls(both, lambda z: both(z)[::-1], lambda parts: parts[0])


def common_parts(
    x: Tensor, logp: Tensor, dlogp: Tensor, cheap: tuple[type[Op], ...] = CHEAP
) -> list[Tensor]:
    """What `logp` and `dlogp` have in common of what is not `cheap`, as near to `logp` as can be.

    From these, x and whatever does not depend on x, `logp` follows. Where the shape of one of them
    is not known, it is `logp` itself.
    """
    depends, shared = _depending(x, [logp, dlogp]), set(ancestors([dlogp]))
    parts = list(dict.fromkeys(_met_first(logp, depends, shared, cheap)))
    known = all(None not in part.type.shape for part in parts)
    return parts if known else [logp]


def _met_first(
    logp: Tensor, depends: set[Tensor], shared: set[Tensor], cheap: tuple[type[Op], ...]
) -> Iterator[Tensor]:
    """On the way from logp to x."""
    seen, waiting = set(), [logp]
    while waiting:
        variable = waiting.pop()
        if variable in seen or variable not in depends or variable.owner is None:
            continue
        seen.add(variable)
        if variable in shared and not isinstance(variable.owner.op, cheap):
            yield variable
        else:
            waiting += variable.owner.inputs


def _depending(x: Tensor, outputs: Sequence[Tensor]) -> set[Tensor]:
    """Variables that are computed from x, and x."""
    depends = {x}
    for node in toposort(outputs):
        if not depends.isdisjoint(node.inputs):
            depends.update(node.outputs)
    return depends
