"""JAX implementation of :func:`pymc_deer.forecast.forecast`: scans in place of the loop.

Once decisions are known the chain is an affine recursion, hence an associative scan. Which they are
follows from its states: they are guessed, and found again from the states that they lead to. Each
round halves the number of those that are wrong, about, and few are left to spoil a guess.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pymc_deer.forecast import on_standard_normal
from pymc_deer.scan_jax import affine_scan

_ROUNDS = 5


def forecast(
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    step_sizes: jax.Array,
    n_leapfrog: jax.Array,
) -> jax.Array:
    """States behind n transitions on the standard normal target, shape (n, D).

    Parameters
    ----------
    start
        State before the first of them, shape (D,).
    xi, log_u, step_sizes, n_leapfrog
        Their noise, (n, D) and (n,).
    """
    decay, kick, bend = on_standard_normal(jnp, step_sizes, n_leapfrog)
    drift, pushes = decay[:, None], kick[:, None] * xi

    def solve(_: Any, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        accepted, _ = carry
        moves = accepted[:, None]
        states = affine_scan(jnp.where(moves, drift, 1), jnp.where(moves, pushes, 0), start)
        previous = jnp.concatenate([start[None], states[:-1]])
        change = ((drift * previous + pushes) ** 2 - previous**2).sum(axis=1)
        return -bend * change > log_u, states

    every = jnp.ones(len(xi), bool)
    return lax.fori_loop(0, _ROUNDS, solve, (every, jnp.zeros_like(xi)))[1]
