"""JAX implementation of :func:`pymc_deer.forecast.forecast`: scans in place of the loop."""

import jax
import jax.numpy as jnp

from pymc_deer.scan_jax import chain_states

_ROUNDS = 5
"""Behind these few decisions are left to spoil a guess."""


def forecast(
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    decay: jax.Array,
    kick: jax.Array,
    bend: jax.Array,
) -> jax.Array:
    """States behind n transitions on the standard normal target, shape (n, D)."""
    # What is known exactly is what each transition makes of 0. Decisions begin with acceptances.
    pushes, every = kick[:, None] * xi, jnp.ones(len(xi), bool)
    known = decay[:, None], pushes, jnp.zeros_like(pushes)
    log_alpha = -bend * (pushes**2).sum(axis=1)
    return chain_states(every, *known, start, log_alpha, log_u, bend, rounds=_ROUNDS)
