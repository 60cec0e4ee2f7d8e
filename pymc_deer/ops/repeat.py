"""Apply a graph over and over to its own outputs, as one Op that each backend runs as a loop.

The leapfrog path is one: its number of steps is known only when the chain runs. The dispatches
live in ``repeat_jax`` and ``repeat_numba``.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply

from pymc_deer.typing import Tensor


class Repeat(OpFromGraph):
    """An inner graph that maps some of its inputs to new values of them, applied n times.

    In place of the inner graph's first input the Op has the integer n, or a vector of such numbers,
    one for each of several states that go together, for as many rounds as the largest of them says.
    Its outputs are the inputs behind it after these rounds, themselves if there are none.

    Parameters
    ----------
    inputs, outputs
        The inner graph. Its first input is the number of the round, from 0 on, as int64; the next
        ``len(outputs)`` are those that are carried along, each of its output's type; the others are
        the same in all rounds.
    """

    def __init__(self, inputs: list[Tensor], outputs: list[Tensor]) -> None:
        carried = zip(inputs[1:], outputs, strict=False)
        outputs = [before.type.filter_variable(after) for before, after in carried]
        super().__init__(inputs, outputs, name="Repeat", on_unused_input="ignore")

    @property
    def n_carried(self) -> int:
        """How many of the inner graph's inputs are carried along."""
        return len(self.output_types)

    def make_node(self, *inputs: Tensor) -> Apply:
        n, *states = inputs
        states = [t.filter_variable(v) for t, v in zip(self.input_types[1:], states, strict=True)]
        return Apply(self, [pt.as_tensor_variable(n), *states], [t() for t in self.output_types])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return list(shapes[1 : 1 + self.n_carried])

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        n, *states = inputs
        carried, shared = states[: self.n_carried], states[self.n_carried :]
        for i in range(int(np.max(n))):
            carried = [np.asarray(value) for value in self.fn(np.asarray(i), *carried, *shared)]
        for storage, value in zip(outputs, carried, strict=True):
            storage[0] = value
