"""The kernels of :class:`~pymc_deer.ops.window_scan.WindowScanInKernel`, in Pallas, for GPUs.

The window is cut into chunks of about as many steps as there are chunks. A first kernel composes
the affine maps of each chunk and adds up its residuals; a second one goes through what the chunks
before have left, and then along the steps of its own (Blelloch 1990, "Prefix sums and their
applications", section 1.3). A program has a chunk and some coordinates, one or more for each thread
of a warp, which have nothing to tell each other but the largest of what they find at each step, or
its sum. Decisions are found as in ``scan_jax``: all rounds but the last one ask what each step's
ratio changes by, and the last one for states.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plt

from pymc_deer.acceptance import accepts
from pymc_deer.ops.pallas_kernels import kernel
from pymc_deer.ops.scan_jax import ROUNDS

_WARP, _MOST_COLUMNS = 32, 128
"""Coordinates of a program, at least and at most."""

_AT_ONCE = 16
"""Steps that are read before any of them is computed: memory answers after hundreds of cycles."""

_HELD = 8
"""Bytes of each of a step's arrays that a thread may hold for as many steps: four arrays are then
half of its 255 registers. Of longer rows fewer steps are read at once."""

_COMPILER = plt.CompilerParams(num_warps=1, num_stages=1)

Rows = tuple[jax.Array, ...]


def next_guess_and_error(
    jacobian: jax.Array,
    proposals: jax.Array,
    previous: jax.Array,
    guess: jax.Array,
    start: jax.Array,
    log_alpha: jax.Array,
    log_u: jax.Array,
    bend: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """As :func:`~pymc_deer.ops.window_scan.window_scan`."""
    width, size = proposals.shape
    length, dtype = chunk_length(width), proposals.dtype
    columns = min(max(_WARP, 1 << (size - 1).bit_length()), _MOST_COLUMNS)
    grid = width // length, -(-size // columns)
    steps = pl.BlockSpec((length, columns), lambda i, j: (i, j))
    decisions = pl.BlockSpec((length,), lambda i, j: (i,))
    chunk = pl.BlockSpec((None, columns), lambda i, j: (i, j))
    chunks = pl.BlockSpec((grid[0], columns), lambda i, j: (0, j))
    state = pl.BlockSpec((columns,), lambda i, j: (j,))
    of_each_step = pl.BlockSpec((None, length), lambda i, j: (j, i))
    per_chunk = jax.ShapeDtypeStruct((grid[0], size), dtype)
    per_step = jax.ShapeDtypeStruct((grid[1], width), dtype)
    call = partial(kernel, grid=grid, compiler_params=_COMPILER)
    composed = call(
        partial(_compose, size=size),
        in_specs=[*[steps] * 4, *[decisions] * 2],
        out_specs=[chunk] * 3,
        out_shape=[per_chunk] * 3,
    )
    decided = call(
        partial(_decide, size=size),
        in_specs=[*[steps] * 3, decisions, *[chunks] * 2, state],
        out_specs=of_each_step,
        out_shape=per_step,
    )
    of_each_program = pl.BlockSpec((None, None), lambda i, j: (j, i))
    per_program = jax.ShapeDtypeStruct(grid[::-1], dtype)
    applied = call(
        partial(_apply, size=size),
        in_specs=[*[steps] * 4, *[decisions] * 2, *[chunks] * 3, state],
        out_specs=[steps, of_each_program, of_each_step],
        out_shape=[jax.ShapeDtypeStruct(proposals.shape, dtype), per_program, per_step],
    )
    maps = jnp.broadcast_to(jacobian, proposals.shape), proposals, previous
    first = found = _decisions(log_alpha, log_u)
    for _ in range(ROUNDS - 1):
        factors, offsets, _ = composed(*maps, guess, found, first)
        changes = decided(*maps, found, factors, offsets, start)
        found = _decisions(log_alpha - bend * changes.sum(0), log_u)
    of_steps = *maps, guess, found, first
    solved, n_finite, error = applied(*of_steps, *composed(*of_steps), start)
    finite = (jnp.arange(length) < n_finite.min(0)[:, None]).reshape(width, 1)
    states = jnp.where(first[:, None] != 0, proposals, previous)
    return jnp.where(finite, solved, states), error.max(0)


def _decisions(log_alpha: jax.Array, log_u: jax.Array) -> jax.Array:
    """As kernels read them, which have no truth values in memory."""
    return accepts(log_alpha, log_u).astype(jnp.int32)


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
        for jacobian, proposal, previous, guess, accepted, accepted_first in rows:
            moved = proposal + jacobian * (b - previous)
            a, b = jnp.where(accepted, a * jacobian, a), jnp.where(accepted, moved, b)
            e = e + (jnp.where(accepted_first, proposal, previous) - guess)
        return a, b, e

    nothing = jnp.zeros(mask.shape, factor.dtype)
    carry = nothing + 1, nothing, nothing
    found = _along(of_steps, of_steps[0].shape[0], mask, advance, carry)
    for ref, value in zip((factor, offset, total), found, strict=True):
        plt.store(ref.at[:], value, mask=mask)


def _decide(*refs: Any, size: int) -> None:
    """What the squared lengths change by at each step of a chunk, beyond what is known of them."""
    *of_steps, factors, offsets, start, changes = refs
    mask = _mask(start, size)

    def advance(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        [state] = carry
        found = []
        for jacobian, proposal, previous, accepted in rows:
            moved = state - previous
            turned = jacobian * moved
            change = turned * (2 * proposal + turned) - moved * (2 * previous + moved)
            found.append(jnp.sum(change))
            state = jnp.where(accepted, proposal + turned, state)
        for i, change in enumerate(found):
            plt.store(changes.at[first + i], change)
        return (state,)

    carry = (plt.load(start.at[:], mask=mask, other=0.0),)
    carry = _before((factors, offsets), mask, carry)
    _along(of_steps, of_steps[0].shape[0], mask, advance, carry)


def _apply(*refs: Any, size: int) -> None:
    """States of a chunk, how many of them are finite, and the largest sum of residuals at each."""
    *of_steps, factors, offsets, totals, start, solved, finite, error = refs
    mask = _mask(start, size)

    def advance(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        state, total, count = carry
        found = []
        for jacobian, proposal, previous, guess, accepted, accepted_first in rows:
            state = jnp.where(accepted, proposal + jacobian * (state - previous), state)
            total = total + (jnp.where(accepted_first, proposal, previous) - guess)
            # What is not finite stays so: those that are come first.
            count = count + jnp.where(jnp.abs(state) < jnp.inf, 1.0, 0.0).astype(count.dtype)
            found.append((state, _largest(total)))
        # Behind all that is read, which is not read again.
        for i, (state_here, largest) in enumerate(found):
            plt.store(solved.at[first + i], state_here, mask=mask)
            plt.store(error.at[first + i], largest)
        return state, total, count

    nothing = jnp.zeros(mask.shape, start.dtype)
    carry = plt.load(start.at[:], mask=mask, other=0.0), nothing
    carry = _before((factors, offsets, totals), mask, carry)
    *_, count = _along(of_steps, of_steps[0].shape[0], mask, advance, (*carry, nothing))
    finite[...] = jnp.min(count)


def _before(refs: Sequence[Any], mask: jax.Array, carry: Rows) -> Rows:
    """What the chunks before a program's own leave of a state, and of sums if there are any."""
    before = pl.program_id(0)

    def advance(first: Any, rows: Sequence[Rows], carry: Rows) -> Rows:
        state, *sums = carry
        # Those that do not come before leave all as it is.
        for i, (a, b, *totals) in enumerate(rows):
            passed = first + i < before
            state = jnp.where(passed, a * state + b, state)
            sums = [jnp.where(passed, s + e, s) for s, e in zip(sums, totals, strict=True)]
        return state, *sums

    return _along(refs, before, mask, advance, carry)


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
    held = mask.shape[0] // _WARP * carry[0].dtype.itemsize
    count = min(_AT_ONCE * _HELD // max(held, _HELD), refs[0].shape[0])

    def step(i: Any, carry: Rows) -> Rows:
        return advance(i * count, _loaded(refs, i * count, count, mask), carry)

    return lax.fori_loop(0, (n + count - 1) // count, step, carry)


def _mask(ref: Any, size: int) -> jax.Array:
    """Which of a program's coordinates there are, (columns,) as all that it computes."""
    columns = ref.shape[0]
    return pl.program_id(1) * columns + jnp.arange(columns) < size


def _loaded(refs: Sequence[Any], first: Any, count: int, mask: jax.Array) -> list[Rows]:
    """Rows from `first` on, and the last one behind it; 0 where there are no coordinates.

    Of decisions, which have one number each, whether they are acceptances.
    """
    last = refs[0].shape[0] - 1
    at = [jnp.minimum(first + i, last) for i in range(count)]
    return [tuple(_loaded_row(ref, i, mask) for ref in refs) for i in at]


def _loaded_row(ref: Any, i: Any, mask: jax.Array) -> jax.Array:
    if len(ref.shape) == 1:
        return plt.load(ref.at[i]) != 0
    return plt.load(ref.at[i], mask=mask, other=0.0)


def _largest(values: jax.Array) -> jax.Array:
    """Infinity where one is not finite."""
    sizes = jnp.abs(values)
    return jnp.max(jnp.where(sizes < jnp.inf, sizes, jnp.inf))
