"""Elementary functions that a compiled loop may call for several numbers at once.

Each is a scalar Op of PyTensor in all but its class, by which Numba finds another way to compile
it; the dispatch lives in ``vector_math_numba``.
"""

from pytensor.scalar.basic import Cos, Exp, Expm1, Log, Log1p, ScalarOp, Sin, Tanh
from pytensor.scalar.math import Erf, Erfc, Sigmoid, Softplus

CALLED: dict[type[ScalarOp], tuple[str, ...]] = {
    Cos: ("cos",),
    Erf: ("erf",),
    Erfc: ("erfc",),
    Exp: ("exp",),
    Expm1: ("expm1",),
    Log: ("log",),
    Log1p: ("log1p",),
    Sigmoid: ("exp",),
    Sin: ("sin",),
    Softplus: ("exp", "log1p"),
    Tanh: ("tanh",),
}
"""What PyTensor's Ops call of C's mathematical library."""

VECTOR_OPS: dict[type[ScalarOp], type[ScalarOp]] = {
    op: type(f"Vector{op.__name__}", (op,), {"__module__": __name__}) for op in CALLED
}
"""Ours, by those of PyTensor that they stand for."""
