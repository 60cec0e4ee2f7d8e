"""What of a sweep runs along the chain, as PyTensor Ops; dispatches live in ``scan_jax`` and
``scan_numba`` and are imported by the backend that needs them.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op

from pymc_deer.typing import Tensor

_NDIMS = (2, 2, 2, 1, 1, 1, 1)


def chain_states(
    jacobian: Any,
    proposals: Any,
    previous: Any,
    start: Any,
    log_alpha: Any,
    log_u: Any,
    bend: Any,
) -> Any:
    """See :class:`ChainScan`. Written so that Numba compiles it too."""
    states, state = np.empty_like(proposals), start.copy()
    last_factor = jacobian.shape[1] - 1
    for t in range(len(proposals)):
        change = 0.0
        for i in range(len(start)):
            moved = state[i] - previous[t, i]
            turned = jacobian[t, min(i, last_factor)] * moved
            states[t, i] = proposals[t, i] + turned
            change += turned * (2 * proposals[t, i] + turned) - moved * (2 * previous[t, i] + moved)
        ratio = log_alpha[t] - bend[t] * change
        if ratio > log_u[t] and ratio < np.inf:
            for i in range(len(start)):
                state[i] = states[t, i]
        else:
            for i in range(len(start)):
                states[t, i] = state[i]
    return states


class ChainScan(Op):
    r"""States of a chain whose transitions are known near by.

    From :math:`z^-_t` transition t proposes :math:`q_t` with the log of the Metropolis ratio
    :math:`a_t`. From a state :math:`z = z^-_t + d` it is taken to propose
    :math:`q = q_t + J_t \odot d`, with the ratio :math:`a_t - \beta_t\,((|q|^2 - |z|^2) -
    (|q_t|^2 - |z^-_t|^2))`: as it would be on the standard normal target, where the energy changes
    by :math:`\beta_t` times what the squared length changes by
    (:class:`~pymc_deer.backends.forecast.LinearTransitions`). With :math:`\beta_t = 0` decisions
    are those at :math:`z^-_t`.

    Inputs
    ------
    jacobian
        Of proposals, shape (W, D), or (W, 1) for one factor a step.
    proposals, previous
        :math:`q_t` and :math:`z^-_t`, shape (W, D).
    start
        The state before the first step, shape (D,).
    log_alpha, log_u, bend
        :math:`a_t`, what it is compared with, and :math:`\beta_t`, shape (W,).

    Output
    ------
    The W states after each step, shape (W, D).
    """

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        variables = list(map(pt.as_tensor_variable, inputs))
        if (ndims := tuple(v.ndim for v in variables)) != _NDIMS:
            raise TypeError(f"ChainScan takes arrays of {_NDIMS} dimensions, got {ndims}.")
        return Apply(self, variables, [variables[1].type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = chain_states(*inputs)

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [shapes[1]]


chain_scan = ChainScan()


class RunningSum(Op):
    """Sums of the rows of a matrix up to each of them, in a loop that Numba compiles fast."""

    __props__ = ()

    def make_node(self, *inputs: Tensor) -> Apply:
        [x] = inputs
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.cumsum(inputs[0], axis=0)

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return shapes


running_sum = RunningSum()
