"""The kernels of :class:`~pymc_deer.window_scan.WindowScanInKernel`, in Pallas, for GPUs.

Imported where there is one, as those of ``row_kernel``.

The window is cut into chunks of about as many steps as there are chunks. A first kernel composes
the affine maps of each chunk and adds up its residuals; a second one goes through what the chunks
before have left, and then along the steps of its own (Blelloch 1990, "Prefix sums and their
applications", section 1.3). A program has a chunk and some coordinates, one or more for each thread
of a warp, which have nothing to tell each other but the largest of what they find at each step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

_WARP, _MOST_COLUMNS = 32, 128
"""Coordinates of a program, at least and at most."""

_AT_ONCE = 16
"""Steps that are read before any of them is computed: memory answers after hundreds of cycles."""

_COMPILER = plt.CompilerParams(num_warps=1, num_stages=1)

Rows = tuple[jax.Array, ...]


def next_guess_and_error(
    jacobian: jax.Array, states: jax.Array, previous: jax.Array, guess: jax.Array, start: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """As :func:`~pymc_deer.window_scan.window_scan`."""
    width, size = states.shape
    length = chunk_length(width)
    columns = min(max(_WARP, 1 << (size - 1).bit_length()), _MOST_COLUMNS)
    grid = width // length, -(-size // columns)
    steps = pl.BlockSpec((length, columns), lambda i, j: (i, j))
    chunk = pl.BlockSpec((1, columns), lambda i, j: (i, j))
    chunks = pl.BlockSpec((grid[0], columns), lambda i, j: (0, j))
    state = pl.BlockSpec((1, columns), lambda i, j: (0, j))
    largest = pl.BlockSpec((1, length), lambda i, j: (j, i))
    of_steps = jnp.broadcast_to(jacobian, states.shape), states, previous, guess
    call = partial(pl.pallas_call, grid=grid, compiler_params=_COMPILER)
    composed = call(
        partial(_compose, size=size),
        in_specs=[steps] * 4,
        out_specs=[chunk] * 3,
        out_shape=[jax.ShapeDtypeStruct((grid[0], size), states.dtype)] * 3,
    )(*of_steps)
    per_step = jax.ShapeDtypeStruct((grid[1], width), states.dtype)
    solved, size_of_state, error = call(
        partial(_apply, size=size),
        in_specs=[*[steps] * 4, *[chunks] * 3, state],
        out_specs=[steps, largest, largest],
        out_shape=[jax.ShapeDtypeStruct(states.shape, states.dtype), per_step, per_step],
    )(*of_steps, *composed, start[None])
    finite = size_of_state.max(0) < jnp.inf
    return jnp.where(finite[:, None], solved, states), error.max(0)


def chunk_length(width: int) -> int:
    """The largest power of 2 up to the root of `width` that divides it."""
    most = width & -width
    return min(most, 1 << (width.bit_length() - 1) // 2)


def _compose(*refs: Any, size: int) -> None:
    """The affine map of a chunk, factors and offsets, and the sum of its residuals."""
    *of_steps, factor, offset, total = refs
    mask = _mask(factor, size)

    def advance(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        a, b, e = carry
        for jacobian, here, previous, guess in rows:
            a, b, e = a * jacobian, jacobian * (b - previous) + here, e + (here - guess)
        return a, b, e

    nothing = jnp.zeros(mask.shape, factor.dtype)
    carry = nothing + 1, nothing, nothing
    found = _along(of_steps, of_steps[0].shape[0], mask, advance, carry)
    for ref, value in zip((factor, offset, total), found, strict=True):
        plt.store(ref.at[_row(0)], value, mask=mask)


def _apply(*refs: Any, size: int) -> None:
    """States of a chunk, and for each step the largest of them and of the sums of residuals."""
    *of_steps, factors, offsets, totals, start, solved, largest, error = refs
    mask = _mask(start, size)
    before = pl.program_id(0)

    def pass_chunks(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        state, total = carry
        # Those that do not come before leave all as it is.
        for i, (a, b, e) in enumerate(rows):
            passed = first + i < before
            state = jnp.where(passed, a * state + b, state)
            total = jnp.where(passed, total + e, total)
        return state, total

    def advance(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        state, total = carry
        found = []
        for jacobian, here, previous, guess in rows:
            state = jacobian * (state - previous) + here
            total = total + (here - guess)
            found.append((state, _largest(state), _largest(total)))
        # Behind all that is read, which is not read again.
        for i, (state_here, *both) in enumerate(found):
            plt.store(solved.at[_row(first + i)], state_here, mask=mask)
            for ref, value in zip((largest, error), both, strict=True):
                plt.store(ref.at[:, _row(first + i)], value)
        return state, total

    carry = plt.load(start.at[_row(0)], mask=mask, other=0.0), jnp.zeros(mask.shape, start.dtype)
    carry = _along((factors, offsets, totals), before, mask, pass_chunks, carry)
    _along(of_steps, of_steps[0].shape[0], mask, advance, carry)


def _along(
    refs: Sequence[Any],
    n: Any,
    mask: jax.Array,
    advance: Callable[[Any, Sequence[Rows], Rows], Rows],
    carry: Rows,
) -> Rows:
    """Have `advance` go along the first n rows of arrays, and what fills the last step's reading.

    It is given the number of the first row of each reading, and the rows.
    """
    count = min(_AT_ONCE, refs[0].shape[0])

    def step(i: Any, carry: Rows) -> Rows:
        return advance(i * count, _loaded(refs, i * count, count, mask), carry)

    return lax.fori_loop(0, (n + count - 1) // count, step, carry)


def _mask(ref: Any, size: int) -> jax.Array:
    """Which of a program's coordinates there are, (1, columns) as all that it computes."""
    columns = ref.shape[1]
    return (pl.program_id(1) * columns + jnp.arange(columns) < size)[None]


def _row(i: Any) -> Any:
    return pl.ds(i, 1)


def _loaded(refs: Sequence[Any], first: Any, count: int, mask: jax.Array) -> list[Rows]:
    """Rows from `first` on, and the last one behind it; 0 where there are no coordinates."""
    last = refs[0].shape[0] - 1
    at = [jnp.minimum(first + i, last) for i in range(count)]
    return [tuple(plt.load(ref.at[_row(i)], mask=mask, other=0.0) for ref in refs) for i in at]


def _largest(values: jax.Array) -> jax.Array:
    """Infinity where one is not finite."""
    sizes = jnp.abs(values)
    return jnp.max(jnp.where(sizes < jnp.inf, sizes, jnp.inf), axis=1, keepdims=True)
