"""JAX implementation of :class:`~pymc_deer.ops.repeat.Repeat`: a ``fori_loop``."""

import jax
import jax.numpy as jnp
from jax import lax
from jax.custom_batching import custom_vmap
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.repeat import Repeat


@jax_funcify.register(Repeat)
def jax_funcify_repeat(op: Repeat, **kwargs: object):
    inner = jax_funcify(op.fgraph)

    def repeat(n, *states):
        carried, shared = states[: op.n_carried], states[op.n_carried :]

        def advance(i, carried):
            rows = inner(jnp.asarray(i, "int64"), *carried, *shared)
            return tuple(row.astype(c.dtype) for row, c in zip(rows, carried, strict=True))

        rounds = _largest(n) if n.ndim else n
        carried = lax.fori_loop(0, rounds, advance, tuple(carried))
        return carried if op.n_carried > 1 else carried[0]

    return repeat


@custom_vmap
def _largest(n: jax.Array) -> jax.Array:
    """The largest of numbers of rounds, for all of a batch the same.

    States that have had theirs stand still anyway; were it each one's own, JAX would choose between
    old and new values of all that is carried once more.
    """
    return jnp.max(n)


@_largest.def_vmap
def _largest_of_batch(axis_size: int, in_batched: list[bool], n: jax.Array):
    return jnp.max(n), False
