"""The affine recursion s_t = a_t * s_{t-1} + b_t as one PyTensor Op.

It is the only part of a sweep that runs along the chain. JAX evaluates it as an associative scan
of logarithmic depth, Numba and NumPy as a loop; their dispatches live in ``scan_jax`` and
``scan_numba`` and are imported by the backend that needs them.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_deer.typing import Tensor


class AffineScan(Op):
    """States of an elementwise affine recursion.

    Inputs
    ------
    a
        Factors, shape (W, D), or (W, 1) for one factor a step.
    b
        Offsets, shape (W, D).
    start
        The state before the first step, shape (D,).

    Output
    ------
    The W states after each step, shape (W, D).
    """

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        a, b, start = map(pt.as_tensor_variable, inputs)
        if (a.ndim, b.ndim, start.ndim) != (2, 2, 1):
            raise TypeError(
                f"AffineScan takes a matrix, a matrix and a vector, got {(a.ndim, b.ndim)} "
                f"and {start.ndim} dimensions."
            )
        return Apply(self, [a, b, start], [b.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        a, b, state = inputs
        states = np.empty_like(b)
        for t in range(len(b)):
            state = a[t] * state + b[t]
            states[t] = state
        output_storage[0][0] = states

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]


affine_scan = AffineScan()
