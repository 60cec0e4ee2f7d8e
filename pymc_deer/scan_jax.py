"""JAX implementation of :class:`~pymc_deer.scan.AffineScan`: an associative scan.

Composition of affine maps is associative, so W steps take O(log W) parallel passes (Blelloch
1990, "Prefix sums and their applications").
"""

from typing import Any

import jax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.scan import AffineScan


@jax_funcify.register(AffineScan)  # pyright: ignore[reportArgumentType]
def jax_funcify_affine_scan(op: AffineScan, **kwargs: object) -> Any:
    def compose(first, second):
        return second[0] * first[0], second[0] * first[1] + second[1]

    def affine_scan(a, b, start):
        factors, offsets = jax.lax.associative_scan(compose, (a, b))
        return factors * start + offsets

    return affine_scan
