"""JAX implementation of :class:`~pymc_deer.ops.batch.BatchMap`: inlined, or ``jax.vmap``.

Devices that share a window evaluate each a part of its states. What they find is brought together
at once: the scan along the window would else take a message for each of its levels.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import jax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.batch import BatchMap

Placing = Callable[[jax.Array], jax.Array]
"""The same array, with a word to XLA on where it is to lie."""


def _anywhere(array: jax.Array) -> jax.Array:
    return array


_placing: ContextVar[tuple[Placing, Placing]] = ContextVar(
    "placing", default=(_anywhere, _anywhere)
)


@contextmanager
def shared_windows(in_parts: Placing, everywhere: Placing) -> Iterator[None]:
    """Programs compiled meanwhile place what goes into a batch, and what comes out of it."""
    token = _placing.set((in_parts, everywhere))
    try:
        yield
    finally:
        _placing.reset(token)


@jax_funcify.register(BatchMap)
def jax_funcify_batch_map(op: BatchMap, **kwargs: object):
    inner = jax_funcify(op.fgraph)
    n_mapped, (in_parts, everywhere) = op.n_mapped, _placing.get()
    if op.batching == "mapped":
        n_shared = len(op.input_types) - n_mapped
        inner = jax.vmap(inner, in_axes=(0,) * n_mapped + (None,) * n_shared)

    def batch_map(block: Any, *states: Any):
        mapped = map(in_parts, states[:n_mapped])
        return jax.tree.map(everywhere, inner(*mapped, *states[n_mapped:]))

    return batch_map
