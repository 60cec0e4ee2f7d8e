"""JAX implementation of :class:`~pymc_deer.ops.repeat.Repeat`: a ``fori_loop``."""

from jax import lax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.repeat import Repeat


@jax_funcify.register(Repeat)
def jax_funcify_repeat(op: Repeat, **kwargs: object):
    inner = jax_funcify(op.fgraph)

    def repeat(n, *states):
        carried, shared = states[: op.n_carried], states[op.n_carried :]

        def advance(_, carried):
            rows = inner(*carried, *shared)
            return tuple(row.astype(c.dtype) for row, c in zip(rows, carried, strict=True))

        carried = lax.fori_loop(0, n, advance, tuple(carried))
        return carried if op.n_carried > 1 else carried[0]

    return repeat
