"""The loops of the JAX backend, over steps and over sweeps, for C chains at once.

Arrays that are each chain's own have the chain as their first axis.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from pymc_deer.backends.forecast import on_standard_normal
from pymc_deer.backends.forecast_jax import forecast
from pymc_deer.backends.trajectory import KEPT, SOLVED

Chains = Callable[[Any, int, tuple[jax.Array, ...]], tuple[jax.Array, ...]]
"""The buffers behind transitions of so many chains from one of them on."""


def at_once(
    run: Chains, n_chains: jax.Array, buffers: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """All chains in one batch, however many are asked for."""
    return run(0, len(buffers[0]), buffers)


def in_turn(
    run: Chains, n_chains: jax.Array, buffers: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """The chains that are asked for, one after the other.

    On a CPU, where a call takes longer than many transitions of a small model: there is one call
    for all of them.
    """
    return lax.fori_loop(0, n_chains, lambda chain, buffers: run(chain, 1, buffers), buffers)


def sequential_loop(
    order: Callable[..., tuple[jax.Array, ...]],
    step: Callable[..., Any],
    momenta: Callable[[jax.Array], jax.Array],
    buffers: tuple[jax.Array, ...],
    starts: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    step_sizes: jax.Array,
    n_leapfrog: jax.Array,
    first: jax.Array,
    last: jax.Array,
    stride: jax.Array,
    behind: jax.Array,
    n_chains: jax.Array,
    inputs: list[jax.Array],
) -> tuple[jax.Array, ...]:
    """Transitions `first` to `last` of all chains, step by step, into the buffers.

    Row 0 of the noise moves nothing: with it the density is evaluated where the chains start. It is
    one program with the transitions, each of which has the row behind its number. Of what is kept
    of one transition in every `stride`, all of these have the same row, which stays in the cache.

    Parameters
    ----------
    order
        :func:`at_once` or :func:`in_turn`.
    step
        The compiled transition of one chain.
    momenta
        Momenta (n, D) from n rows of the tape.
    buffers
        What a solve fills in, (C, rows, ...), behind a row for the starts; given back filled.
    starts
        States before the first transition of all, (C, D).
    xi, log_u, step_sizes, n_leapfrog
        Noise, (C, rows, ...); xi has momenta or their keys.
    stride, behind
        The stride, and how many transitions of a stride lie before the first one of all.
    n_chains
        How many of the C chains are asked for, the first ones.
    inputs
        The metric's arrays and the density's parameters, the same for all chains.
    """
    before = stride - 1 + behind
    noise = xi, log_u, step_sizes, n_leapfrog
    is_first = first == 0

    def rows_of(transition):
        kept = lax.div(transition + before, stride)
        return [kept if name in KEPT else transition for name in SOLVED]

    def run(chain, n, buffers):
        step_all = _for_each_chain(step, n, 7)

        def read(array, row):
            rest = array.shape[2:]
            place = chain, row, *(0,) * len(rest)
            return lax.dynamic_slice(array, place, (n, 1, *rest)).reshape(n, *rest)

        def write(array, values, row):
            return lax.dynamic_update_slice(
                array, values[:, None], (chain, row, *(0,) * (values.ndim - 1))
            )

        def advance(carry):
            row, states, written = carry
            of_xi, *now = (read(array, row) for array in noise)
            found = step_all(*states, momenta(of_xi), *now, *inputs)
            z, logp, dlogp, log_alpha, energy = _of_types(buffers, found)
            # The Metropolis ratio against logp = 0 is logp itself, finite or not.
            logp = jnp.where(row == 0, log_alpha, logp)
            found = z, logp, dlogp, log_alpha, energy
            written = tuple(map(write, written, found, rows_of(row)))
            return row + 1, (z, logp, dlogp), written

        own = lax.dynamic_slice_in_dim(starts, chain, n)
        unknown = own, jnp.zeros(n, log_u.dtype), jnp.zeros_like(own)
        there = map(read, buffers[:3], rows_of(first))
        states = tuple(
            jnp.where(is_first, new, old) for new, old in zip(unknown, there, strict=True)
        )
        carry = (jnp.where(is_first, 0, first + 1), states, buffers)
        return lax.while_loop(lambda carry: carry[0] <= last, advance, carry)[2]

    return order(run, n_chains, buffers)


WINDOWED_GIVEN = (0, 4, 5)
"""Arguments of :func:`windowed_loop` whose memory its results take: buffers, guesses, memory."""


def windowed_loop(
    sweep: Callable[..., Any],
    momenta: Callable[[jax.Array], jax.Array],
    draw_probes: Callable[[jax.Array], jax.Array],
    buffers: tuple[jax.Array, ...],
    n_swept: jax.Array,
    done: jax.Array,
    sweeps: jax.Array,
    guesses: jax.Array,
    memory: jax.Array,
    window_starts: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    step_sizes: jax.Array,
    n_leapfrog: jax.Array,
    n: jax.Array,
    last_sweep: jax.Array,
    starts: jax.Array,
    standardized: jax.Array,
    seeds: jax.Array,
    curvature: jax.Array,
    tol: jax.Array,
    inputs: list[jax.Array],
) -> tuple[Any, ...]:
    """Sweeps over the windows of all chains, until each has n transitions or `last_sweep` is over.

    Parameters
    ----------
    sweep
        The compiled sweep of one chain.
    momenta
        Momenta (n, D) from n rows of the tape.
    draw_probes
        Probes of one sweep from a key.
    buffers
        What a solve fills in, (C, rows, ...), with room for a window behind the n transitions.
    n_swept
        Sweeps before this call.
    done, sweeps
        Transitions each chain has committed, and its sweeps, (C,).
    guesses, memory
        States guessed in each chain's window, and what its rule remembers, (C, W, ...). Before the
        first sweep, whatever they hold, the guess is the first one, and nothing is known.
    window_starts
        States before each window, (C, D).
    xi, log_u, step_sizes, n_leapfrog
        Noise, (C, rows, ...); xi has momenta or their keys.
    starts
        States before the first transition of all, (C, D).
    standardized
        Whether states are forecast, and decisions between sweeps; if not, the first guess is that
        no chain moves, and decisions stay.
    seeds, curvature
        Seeds of the probes and bounds of the rules, (C,).
    tol, inputs
        The same for all chains.

    Returns
    -------
    tuple
        The buffers, and all from `n_swept` to `window_starts` as it is now.
    """
    n_chains, window = guesses.shape[:2]
    # Once for all sweeps, each of which takes a window of them.
    momenta_of_all = jax.vmap(momenta)(xi)
    linear = on_standard_normal(jnp, step_sizes, n_leapfrog)
    bend = jnp.where(standardized, linear.bend, 0)
    noise = momenta_of_all, log_u, step_sizes, n_leapfrog, bend
    ahead = lax.cond(
        standardized,
        lambda: _for_each_chain(forecast, n_chains, 6)(starts, momenta_of_all, log_u, *linear),
        lambda: jnp.zeros_like(momenta_of_all),
    )
    first_guess = jnp.where(standardized, ahead[:, :window], window_starts[:, None])
    guesses = jnp.where(n_swept == 0, first_guess, guesses)
    memory = jnp.where(n_swept == 0, jnp.nan, memory)
    block = jnp.zeros((), int)
    unknown = jnp.full_like(memory[0], jnp.nan)

    def advance_one(done, sweeps, guess, memory, start, written, tape, seed, curvature, n_swept):
        xi, log_u, step_sizes, n_leapfrog, bend, ahead = tape
        key = jax.random.fold_in(jax.random.key(seed), n_swept)
        guess, memory, *rows, committed = sweep(
            guess,
            memory,
            start,
            lax.dynamic_slice_in_dim(xi, done, window),
            lax.dynamic_slice_in_dim(log_u, done, window),
            draw_probes(key),
            lax.dynamic_slice_in_dim(step_sizes, done, window),
            lax.dynamic_slice_in_dim(n_leapfrog, done, window),
            lax.dynamic_slice_in_dim(bend, done, window),
            curvature,
            tol,
            block,
            *inputs,
        )
        guess = guess.astype(start.dtype)
        rows = _of_types(written, rows)
        # Rows past the committed ones are written too: the next sweep starts over them. A chain
        # that has all its n transitions writes behind them, until all chains have.
        written = tuple(
            lax.dynamic_update_slice_in_dim(b, row, done, 0)
            for b, row in zip(written, rows, strict=True)
        )
        # Slide: the guess for steps not seen before is the forecast, or where the window ends now.
        unseen = lax.dynamic_slice_in_dim(ahead, done + window, window)
        padded = jnp.concatenate([guess, jnp.where(standardized, unseen, guess[-1])])
        guess = lax.dynamic_slice_in_dim(padded, committed, window)
        forgotten = jnp.concatenate([memory.astype(start.dtype), unknown])
        memory = lax.dynamic_slice_in_dim(forgotten, committed, window)
        goes_on = done < n
        done, sweeps = done + jnp.where(goes_on, committed, 0), sweeps + goes_on
        return done, sweeps, guess, memory, rows[0][committed - 1], written

    advance_all = _for_each_chain(advance_one, n_chains, 9)

    def advance(carry):
        n_swept, *own = carry
        return n_swept + 1, *advance_all(*own, (*noise, ahead), seeds, curvature, n_swept)

    def unfinished(carry):
        return (carry[0] < last_sweep) & (carry[1] < n).any()

    carry = (n_swept, done, sweeps, guesses, memory, window_starts, buffers)
    n_swept, *own, written = lax.while_loop(unfinished, advance, carry)
    return written, n_swept, *own


@partial(jax.jit, static_argnames=("names", "first", "kept"))
def asked_rows(
    buffers: tuple[jax.Array, ...], names: tuple[str, ...], first: int, kept: slice
) -> tuple[jax.Array, ...]:
    """Of buffers (C, rows, ...) of these names, such rows of what is kept in every stride.

    And of the others those from `first` on. That is for all transitions that there could be:
    another number of them is no other program.
    """
    return tuple(
        array[:, kept if name in KEPT else slice(first, None)]
        for name, array in zip(names, buffers, strict=True)
    )


@jax.jit
def state_at(states: jax.Array, row: int) -> jax.Array:
    """That of each chain, (C, D), of states (C, rows, D)."""
    return lax.dynamic_index_in_dim(states, row, 1, keepdims=False)


def momenta_of_keys(keys: jax.Array, size: int, dtype: str) -> jax.Array:
    """Standard normal momenta, shape (n, D), from keys of 64 bits, shape (n,).

    By JAX's counter-based generator: each row depends on its key alone.
    """

    def of_one(key: jax.Array) -> jax.Array:
        return jax.random.normal(jax.random.key(key, impl="threefry2x32"), (size,), dtype)

    return jax.vmap(of_one)(keys)


def _of_types(buffers: Sequence[jax.Array], rows: Sequence[jax.Array]) -> list[jax.Array]:
    """What a program returned, in the types of the buffers that it is written to."""
    return [row.astype(b.dtype) for b, row in zip(buffers, rows, strict=True)]


def _for_each_chain(function: Callable[..., Any], n_chains: int, n_own: int) -> Callable[..., Any]:
    """The function of one chain for C chains, whose first `n_own` arguments are each chain's own.

    For one chain it is the function itself: XLA has products of a matrix and a vector for it.
    """

    def for_one(*arguments: Any) -> Any:
        own = jax.tree.map(lambda a: a[0], arguments[:n_own])
        return jax.tree.map(lambda a: a[None], function(*own, *arguments[n_own:]))

    def for_all(*arguments: Any) -> Any:
        shared = arguments[n_own:]
        return jax.vmap(lambda *own: function(*own, *shared))(*arguments[:n_own])

    return for_one if n_chains == 1 else for_all
