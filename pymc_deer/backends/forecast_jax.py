"""JAX implementation of forecasts: scans in place of the loop."""

import jax
import jax.numpy as jnp

from pymc_deer.backends.forecast import from_rest
from pymc_deer.ops.scan_jax import chain_states

_ROUNDS = 5
"""Behind these few decisions are left to spoil a guess."""


def forecast(start: jax.Array, xi: jax.Array, log_u: jax.Array, *linear: jax.Array) -> jax.Array:
    """States behind n transitions on the standard normal target, shape (n, D).

    Parameters
    ----------
    start, xi, log_u, *linear
        As of :func:`~pymc_deer.backends.forecast.from_rest`.
    """
    # Decisions begin with acceptances: beyond few dimensions more of those at 0 are wrong.
    every = jnp.ones(len(xi), bool)
    known = from_rest(jnp, start, xi, log_u, *linear)
    return chain_states(every, *known, rounds=_ROUNDS)
