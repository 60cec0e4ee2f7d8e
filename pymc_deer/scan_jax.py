"""JAX implementation of :class:`~pymc_deer.scan.AffineScan`: an associative scan.

Composition of affine maps is associative, so W steps take O(log W) parallel passes (Blelloch
1990, "Prefix sums and their applications").
"""

from typing import Any

import jax
import jax.numpy as jnp
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.scan import AffineScan

_FUSED = 2**13
"""Steps of a scan whose levels XLA may fuse as it likes. Of longer ones it makes kernels for a GPU
that compute most of the scan again for each step."""

Maps = tuple[jax.Array, jax.Array]
"""Factors and offsets of affine maps, one for each step: (W, D) each."""


@jax_funcify.register(AffineScan)  # pyright: ignore[reportArgumentType]
def jax_funcify_affine_scan(op: AffineScan, **kwargs: object) -> Any:
    return affine_scan


def affine_scan(a: jax.Array, b: jax.Array, start: jax.Array) -> jax.Array:
    """See :class:`~pymc_deer.scan.AffineScan`."""
    factors, offsets = _composed((a, b))
    return factors * start + offsets


def _compose(first: Maps, second: Maps) -> Maps:
    return second[0] * first[0], second[0] * first[1] + second[1]


def _composed(maps: Maps) -> Maps:
    """Each step's map behind all before it."""
    n = len(maps[0])
    if n <= _FUSED or n % 2:
        return jax.lax.associative_scan(_compose, maps)
    evens, odds = _every_second(maps, 0), _every_second(maps, 1)
    # XLA fuses nothing across a barrier.
    pairs = jax.lax.optimization_barrier(_compose(evens, odds))
    at_odds = jax.lax.optimization_barrier(_composed(pairs))
    at_evens = _compose((at_odds[0][:-1], at_odds[1][:-1]), (evens[0][1:], evens[1][1:]))
    return _interleaved(evens[0], at_evens[0], at_odds[0]), _interleaved(
        evens[1], at_evens[1], at_odds[1]
    )


def _every_second(maps: Maps, first: int) -> Maps:
    return maps[0][first::2], maps[1][first::2]


def _interleaved(evens: jax.Array, at_evens: jax.Array, at_odds: jax.Array) -> jax.Array:
    """All steps in their order: behind the first even one is its own map alone."""
    at_evens = jnp.concatenate([evens[:1], at_evens])
    return jnp.stack([at_evens, at_odds], axis=1).reshape(-1, *at_odds.shape[1:])
