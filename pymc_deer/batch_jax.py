"""JAX implementation of :class:`~pymc_deer.batch.BatchMap`: inlined, or ``jax.vmap``."""

import jax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.batch import BatchMap


@jax_funcify.register(BatchMap)
def jax_funcify_batch_map(op: BatchMap, **kwargs: object):
    inner = jax_funcify(op.fgraph)
    if op.batching == "mapped":
        n_shared = len(op.input_types) - op.n_mapped
        inner = jax.vmap(inner, in_axes=(0,) * op.n_mapped + (None,) * n_shared)

    def batch_map(blocking, *states):
        return inner(*states)

    return batch_map
