"""Products and functions of elements in the kernels of ``row_kernel``, as fast as a GPU has them.

A GPU multiplies numbers of 8 bits (bfloat16) at twice the rate of any that are longer, and adds up
the products in float32. A float32 is the sum of three of them, and of their nine products six count
(Henry, Tang and Heinecke 2019, "Leveraging the bfloat16 artificial intelligence datatype for
higher-precision computations", https://arxiv.org/abs/1904.06376).
"""

from collections.abc import Sequence
from functools import reduce
from operator import add

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.experimental.pallas import triton as plt

N_PIECES = 3
"""Of 8 bits, of a number's 24."""

_PAIRS = ((2, 0), (0, 2), (1, 1), (1, 0), (0, 1), (0, 0))
"""Pieces of both factors whose products are added up, the smallest first."""

_PIECE, HALF = -(1 << 16), 1 << 15
"""Of the bits of a float32 those that a bfloat16 has, and half the last of them."""

Pieces = Sequence[jax.Array]
"""Of an array."""


def sigmoid(x: jax.Array) -> jax.Array:
    """Without overflow; also for infinite x."""
    small = exponential(x)
    return jnp.where(x >= 0, jnp.ones_like(x), small) * reciprocal(1 + small)


def softplus(x: jax.Array) -> jax.Array:
    """Without overflow; also for infinite x."""
    return jnp.maximum(x, 0) + jnp.log(1 + exponential(x))


def exponential(x: jax.Array) -> jax.Array:
    """Of all that a logistic function of x needs, what takes long; the compiler makes one of it."""
    return exp2(jnp.abs(x) * x.dtype.type(-np.log2(np.e)))


def exp2(x: jax.Array) -> jax.Array:
    """By the instruction itself, to 2^-22: the library's function spends four on tiny results."""
    return _instruction("ex2.approx.ftz.f32", x) if x.dtype == jnp.float32 else jnp.exp2(x)


def reciprocal(x: jax.Array) -> jax.Array:
    """By the instruction itself, to the last bit but one: a division spends five on large x."""
    return _instruction("rcp.approx.ftz.f32", x) if x.dtype == jnp.float32 else 1 / x


def _instruction(name: str, x: jax.Array) -> jax.Array:
    like = jax.ShapeDtypeStruct(x.shape, x.dtype)
    [found] = plt.elementwise_inline_asm(
        f"{name} $0, $1;", args=[x], constraints="=f,f", pack=1, result_shape_dtypes=[like]
    )
    return found


def product(x: Pieces, y: Pieces, axis_x: int, axis_y: int) -> jax.Array:
    """Of two matrices, summed over these axes, in float32."""
    axes = (((axis_x,), (axis_y,)), ((), ()))
    products = (
        lax.dot_general(x[i], y[j], axes, preferred_element_type=jnp.float32) for i, j in _PAIRS
    )
    return reduce(add, products)


def pieces_of(values: jax.Array, added: int = 0) -> Pieces:
    """What bfloat16 has of numbers, and of what it left of them; `HALF` added rounds.

    That is for one of two factors: of products that are left out, the mean is 0 then. What is not
    finite makes NaN of all that it is a part of.
    """
    pieces = []
    for _ in range(N_PIECES):
        bits = lax.bitcast_convert_type(values, jnp.int32)
        if added:
            # There is a NaN whose bits would overflow.
            bits = jnp.where(jnp.isfinite(values), bits + jnp.int32(added), bits)
        piece = lax.bitcast_convert_type(bits & jnp.int32(_PIECE), jnp.float32)
        pieces.append(piece.astype(jnp.bfloat16))
        values = values - piece
    return pieces
