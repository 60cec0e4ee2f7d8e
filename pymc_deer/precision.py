# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false, reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""What is summed up in float64, whatever the precision of the model.

A Metropolis ratio is a small difference of large sums. In float32 a log-density of 1e7 is rounded
to whole numbers, and the chain no longer knows which of two states is the more probable. So the
terms are computed in the model's precision, and added in float64: their own rounding errors are
independent and stay small, 1e-7 sqrt(N) for N terms of order 1.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial, wraps
from threading import RLock

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
from pytensor.tensor.elemwise import DimShuffle, Elemwise
from pytensor.tensor.math import Sum

from pymc_deer.typing import Tensor

WIDE = "float64"
"""Type of log-densities, energies and Metropolis ratios."""

_ADDITIVE = (ps.Add, ps.Sub, ps.Neg, ps.Mul, ps.TrueDiv)
"""Through these the sums that make up a log-density are followed; factors are scalars there."""


_SETTING = RLock()
"""Held while the type that PyTensor is set to matters, which is the same for all threads."""


def precision_of(value_vars: Sequence[Tensor]) -> str:
    """Type of the density of such variables, as PyTensor is set now: the widest of all."""
    return str(np.result_type(pytensor.config.floatX, *(v.dtype for v in value_vars)))


@contextmanager
def in_precision(dtype: str) -> Iterator[None]:
    """While graphs of that type are built or compiled, whatever is set when they are.

    Constants that no short type holds, 0.7 say, get the type that PyTensor is set to, and what is
    computed with them follows. What is float64 is meant to be: no warning tells of it.
    """
    with _SETTING, pytensor.config.change_flags(floatX=dtype, warn_float64="ignore"):
        yield


def with_float64_meant[**P, T](build: Callable[P, T]) -> Callable[P, T]:
    """The same function, of whose float64 no warning of PyTensor's tells."""

    @wraps(build)
    def built(*args: P.args, **kwargs: P.kwargs) -> T:
        with _SETTING, pytensor.config.change_flags(warn_float64="ignore"):
            return build(*args, **kwargs)

    return built


def wide(x: Tensor) -> Tensor:
    """The same in float64."""
    return x.astype(WIDE)


def wide_sum(x: Tensor) -> Tensor:
    """Sum over the last axis, in float64."""
    return pt.sum(wide(x), axis=-1)


def added_in_float64(logp: Tensor) -> Tensor:
    """The scalar `logp`, with all sums that it consists of taken in float64.

    Sums inside of nonlinear functions, and those that an Op does on its own (a matrix product, a
    loop), keep the precision of the model.
    """
    return _added(logp, {})


def _added(scalar: Tensor, known: dict[Tensor, Tensor]) -> Tensor:
    """The same, with what is known of others: a recursion reads each of its steps several times."""
    if scalar not in known:
        known[scalar] = _summed(scalar, partial(_added, known=known))
    return known[scalar]


def _summed(logp: Tensor, added: Callable[[Tensor], Tensor]) -> Tensor:
    node = logp.owner
    if node is None or "float" not in logp.type.dtype:
        return wide(logp)
    if isinstance(node.op, Sum):
        return pt.sum(wide(node.inputs[0]), axis=node.op.axis)
    if isinstance(node.op, DimShuffle):
        return node.op(added(node.inputs[0]))
    if isinstance(node.op, Elemwise) and logp.type.ndim == 0:
        scalar_op = node.op.scalar_op
        if isinstance(scalar_op, ps.Cast):
            return added(node.inputs[0])
        if isinstance(scalar_op, ps.Switch):
            condition, *values = node.inputs
            return node.op(condition, *map(added, values))
        if isinstance(scalar_op, _ADDITIVE):
            return node.op(*map(added, node.inputs))
    return wide(logp)
