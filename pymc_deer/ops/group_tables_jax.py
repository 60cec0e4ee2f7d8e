"""JAX implementation of :class:`~pymc_deer.ops.group_tables.Written`: a barrier to rewrites."""

from typing import Any

import jax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.group_tables import Written


@jax_funcify.register(Written)  # pyright: ignore[reportArgumentType]
def jax_funcify_written(op: Written, **kwargs: object) -> Any:
    return jax.lax.optimization_barrier
