"""JAX implementation of :class:`~pymc_deer.ops.scan.ChainScan`: associative scans, no loop.

Once decisions are known the chain is an affine recursion. Composition of affine maps is
associative, so W steps take O(log W) parallel passes (Blelloch 1990, "Prefix sums and their
applications"). Which decisions they are follows from the states: they are guessed, and found again
from the states that they lead to. Each round halves the number of those that are wrong, about.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.acceptance import accepts
from pymc_deer.ops.scan import ChainScan

ROUNDS = 3
"""Scans of a window at most. More of them save few sweeps (docs/accelerations.md)."""

_FUSED = 2**13
"""Steps of a scan whose levels XLA may fuse as it likes. Of longer ones it makes kernels for a GPU
that compute most of the scan again for each step."""

Maps = Sequence[jax.Array]
"""Factors and offsets of affine maps, one for each step: (W, D) each."""


@jax_funcify.register(ChainScan)  # pyright: ignore[reportArgumentType]
def jax_funcify_chain_scan(op: ChainScan, **kwargs: object) -> Any:
    return chain_scan


def chain_scan(*known: jax.Array) -> jax.Array:
    """See :class:`~pymc_deer.ops.scan.ChainScan`; decisions are guessed as those at `previous`."""
    *_, log_alpha, log_u, _ = known
    return chain_states(accepts(log_alpha, log_u), *known, rounds=ROUNDS)


def chain_states(
    accepted: jax.Array,
    jacobian: jax.Array,
    proposals: jax.Array,
    previous: jax.Array,
    start: jax.Array,
    log_alpha: jax.Array,
    log_u: jax.Array,
    bend: jax.Array,
    *,
    rounds: int,
) -> jax.Array:
    """The same from decisions `accepted`, (W,), which are found again until none is another one.

    Or `rounds` times, the last of which may leave some that do not belong to its states.
    """
    offsets = proposals - jacobian * previous

    def unsettled(carry: tuple[Any, ...]) -> jax.Array:
        i, accepted, used, _ = carry
        return (i < rounds) & ((i == 0) | (accepted != used).any())

    def solve(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        i, accepted, _, _ = carry
        moves = accepted[:, None]
        states = affine_scan(jnp.where(moves, jacobian, 1), jnp.where(moves, offsets, 0), start)
        moved = jnp.concatenate([start[None], states[:-1]]) - previous
        turned = jacobian * moved
        change = turned * (2 * proposals + turned) - moved * (2 * previous + moved)
        ratio = log_alpha - bend * change.sum(axis=1)
        return i + 1, accepts(ratio, log_u), accepted, states

    return lax.while_loop(unsettled, solve, (0, accepted, accepted, jnp.zeros_like(proposals)))[-1]


def affine_scan(a: jax.Array, b: jax.Array, start: jax.Array) -> jax.Array:
    """States s_t = a_t * s_{t-1} + b_t from `start`, (D,): shape (W, D), as factors and offsets."""
    factors, offsets = _composed((a, b))
    return factors * start + offsets


def _compose(first: Maps, second: Maps) -> tuple[jax.Array, jax.Array]:
    return second[0] * first[0], second[0] * first[1] + second[1]


def _composed(maps: Maps) -> Maps:
    """Each step's map behind all before it."""
    n = len(maps[0])
    if n <= _FUSED or n % 2:
        return jax.lax.associative_scan(_compose, maps)
    evens, odds = ([of_each[first::2] for of_each in maps] for first in (0, 1))
    # XLA fuses nothing across a barrier.
    pairs = jax.lax.optimization_barrier(_compose(evens, odds))
    at_odds = jax.lax.optimization_barrier(_composed(pairs))
    at_evens = _compose([a[:-1] for a in at_odds], [a[1:] for a in evens])
    factors, offsets = map(_interleaved, evens, at_evens, at_odds)
    return factors, offsets


def _interleaved(evens: jax.Array, at_evens: jax.Array, at_odds: jax.Array) -> jax.Array:
    """All steps in their order: behind the first even one is its own map alone."""
    at_evens = jnp.concatenate([evens[:1], at_evens])
    return jnp.stack([at_evens, at_odds], axis=1).reshape(-1, *at_odds.shape[1:])
