"""Apply a graph to every state of a window, as one Op that each backend runs in its own way.

The inner graph takes either a batch of states (built by ``vectorize_graph``) or, for models whose
Ops cannot be vectorised, a single state. On JAX a batch is inlined and a single state goes through
``jax.vmap``. On Numba the window is cut into blocks of states that fit in cache, and the blocks
are spread over threads. The dispatches live in ``batch_jax`` and ``batch_numba``.
"""

from typing import Any, Literal, get_args

import numpy as np
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply

from pymc_deer.typing import Tensor

Batching = Literal["vectorized", "mapped"]
"""How a window of states is evaluated: one batched graph, or a single-state graph mapped."""

BATCHINGS: tuple[Batching, ...] = get_args(Batching)
"""In order of preference."""


class BatchMap(OpFromGraph):
    """An inner graph applied along the first axis of its first inputs.

    The Op takes one more input than its inner graph, the first: an integer, the states of a block,
    which only Numba heeds.

    Parameters
    ----------
    inputs, outputs
        The inner graph: of a batch if `batching` is ``vectorized``, else of one state.
    n_mapped
        How many of `inputs` carry the window along their first axis. All outputs do.
    batching
        Whether the inner graph itself takes a batch.
    threaded
        Whether Numba spreads the blocks over threads, as many as it may have when it runs. A
        property of the Op: code that can start threads takes longer to compile.
    """

    def __init__(
        self,
        inputs: list[Tensor],
        outputs: list[Tensor],
        *,
        n_mapped: int,
        batching: Batching,
        threaded: bool,
    ) -> None:
        super().__init__(inputs, outputs, name="BatchMap")
        self.n_mapped = n_mapped
        self.batching = batching
        self.threaded = threaded

    @property
    def _key(self) -> tuple[int, str, bool]:
        return self.n_mapped, self.batching, self.threaded

    def __eq__(self, other: object) -> bool:
        return isinstance(other, BatchMap) and self._key == other._key and super().__eq__(other)

    def __hash__(self) -> int:
        return hash((super().__hash__(), self._key))

    def make_node(self, *inputs: Tensor) -> Apply:
        block, *states = inputs
        outputs = self.output_types
        if self.batching == "mapped":
            width = states[0].type.shape[0]
            outputs = [t.clone(shape=(width, *t.shape)) for t in outputs]
        return Apply(self, [block, *states], [t() for t in outputs])

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        width = shapes[1][0]
        skipped = 0 if self.batching == "mapped" else 1
        return [(width, *map(pt.constant, t.shape[skipped:])) for t in self.output_types]

    def perform(self, node: Apply, inputs: Any, outputs: Any) -> None:
        _, *states = inputs
        if self.batching == "vectorized":
            results = self.fn(*states)
        else:
            mapped, shared = states[: self.n_mapped], states[self.n_mapped :]
            rows = [self.fn(*map(np.asarray, row), *shared) for row in zip(*mapped, strict=True)]
            results = [np.stack(column) for column in zip(*rows, strict=True)]
        for storage, result in zip(outputs, results, strict=True):
            storage[0] = result
