"""The JAX backend: whole stretches of chain inside one jitted ``while_loop``.

Between the call and its result nothing returns to the host. The output buffers are donated, so
that a stretch writes where the one before did.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
from jax import lax

import pymc_deer.batch_jax
import pymc_deer.repeat_jax
import pymc_deer.scan_jax  # noqa: F401
from pymc_deer.backends.base import Solver
from pymc_deer.backends.trajectory import Buffers, Noise, solved_types
from pymc_deer.batch import BATCHINGS
from pymc_deer.jacobian import unit_probes
from pymc_deer.status import BackendError, ForkError
from pymc_deer.sweep import Program, build_sequential, build_sweep


class JaxSolver(Solver):
    """Chains on the CPU or GPU that JAX uses by default.

    Raises
    ------
    ForkError
        When called in a process forked from one in which JAX ran: JAX is multithreaded, and would
        hang there rather than fail.
    """

    name = "jax"
    _jax_process: ClassVar[int | None] = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._on_device_cache: dict[int, tuple[np.ndarray, jax.Array]] = {}
        self._buffers: dict[int, tuple[jax.Array, ...]] = {}

    def _sequential(
        self,
        start: np.ndarray,
        noise: Noise,
        inputs: Sequence[np.ndarray],
        buffers: Buffers,
        first: int,
    ) -> None:
        rest = noise.after(first)
        n, rows = len(rest.log_u), self.plan.capacity
        arrays = _padded(rest, rows)
        with self._session():
            loop = self._compiled("sequential", self._compile_sequential)
            filled = self._take_buffers(rows)
            for call in self._paces["sequential"].calls(n, rest.n_leapfrog.max()):
                filled = loop(filled, start, *arrays, *call, self._on_device(inputs))
                filled[0].block_until_ready()
            self._keep_buffers(rows, filled)
            buffers.write(first, [np.asarray(b)[:n] for b in filled])

    def _windowed(
        self,
        start: np.ndarray,
        noise: Noise,
        curvature: float,
        inputs: Sequence[np.ndarray],
        probe_rng: np.random.Generator,
        buffers: Buffers,
    ) -> tuple[int, int]:
        n, window = len(noise.log_u), self.plan.window
        rows = self.plan.capacity + window
        budget, weight = self.plan.sweep_budget(n), noise.n_leapfrog.max()
        pace = self._paces[self.spec.rule, window]
        arrays = _padded(noise, rows)
        with self._session():
            loop = self._compiled((self.spec.rule, window), self._compile_windowed)
            filled = self._take_buffers(rows)
            arguments = (
                jax.random.key(probe_rng.integers(2**32)),
                self._scalar(curvature),
                self._scalar(self.plan.tol),
                self._on_device(inputs),
            )
            memory = np.full((window, self.spec.memory_size(len(start))), np.nan, start.dtype)
            carry = np.tile(start, (window, 1)), memory, start
            done, sweeps = 0, 0
            while done < n and sweeps < budget:
                before, last = sweeps, min(budget, sweeps + pace.allows(weight))
                # Numbers, not arrays: of one type in every call, and there when the call is over.
                filled, now, *carry = loop(
                    filled, done, sweeps, *carry, *arrays, n, last, *arguments
                )
                done, sweeps = map(int, now)
                pace.took(sweeps - before, weight)
            self._keep_buffers(rows, filled)
            n_done = min(done, n)
            buffers.write(0, [np.asarray(b)[:n_done] for b in filled])
        return n_done, sweeps

    def _compile_sequential(self) -> Callable[..., Any]:
        try:
            program = build_sequential(self.density, self.spec)
            step = self._compiled("step", lambda: _compile(program))
        except Exception as error:
            raise _cannot_compile(error) from error
        return jax.jit(partial(_sequential_loop, step), donate_argnums=0)

    def _compile_windowed(self) -> Callable[..., Any]:
        """The windowed loop around the first form of the batch that JAX can trace.

        The vectorised graph is the faster one, but its shapes may depend on values that JAX only
        knows when it runs (ordered and simplex transforms, imputed data); ``vmap`` of the
        single-state graph then still works.
        """
        failure: Exception | None = None
        for batching in BATCHINGS:
            try:
                program = build_sweep(self.density, self.spec, batching, width=self.plan.window)
                sweep = _compile(program)
            except Exception as error:  # noqa: BLE001 - whatever JAX raises, the other form may do
                failure = error
                continue
            self._batchings[self.spec.rule] = batching
            draw = self._draw_probes()
            loop = partial(_windowed_loop, sweep, draw)
            return jax.jit(loop, donate_argnums=0)
        raise _cannot_compile(failure) from failure

    def bytes_per_state(self) -> int:
        """The arrays of length D, and the largest intermediate results of the density."""
        with self._session():
            program = build_sequential(self.density, self.spec)
            step = self._compiled("step", lambda: _compile(program))
            traced = jax.make_jaxpr(step)(*map(_abstract, program.inputs))
        return super().bytes_per_state() + 4 * max(_sizes(traced.jaxpr), default=0)

    def free_memory(self) -> float:
        device = jax.local_devices()[0]
        stats = device.memory_stats() if device.platform == "gpu" else None
        if not stats:
            return super().free_memory()
        return float(stats["bytes_limit"] - stats["bytes_in_use"])

    def _draw_probes(self) -> Callable[[jax.Array], jax.Array]:
        size, dtype = self.density.size, self.density.dtype
        n_probes = self.spec.n_probes(size)
        if self.spec.rule == "exact":
            return lambda key: jnp.asarray(unit_probes(size, dtype))
        if n_probes == 0:
            return lambda key: jnp.zeros((self.plan.window, n_probes, size), dtype)
        shape = (self.plan.window, n_probes, size)
        return lambda key: jax.random.rademacher(key, shape, dtype)

    def _session(self) -> Any:
        # Of all solvers: what a copied step compiles anew in a fork would hang just as well.
        JaxSolver._jax_process = JaxSolver._jax_process or os.getpid()
        if os.getpid() != JaxSolver._jax_process:
            raise ForkError(
                "JAX cannot run in a forked process. Write pm.sample(..., mp_ctx='forkserver'), "
                "pm.sample(..., cores=1), or backend='numba'."
            )
        # In float32 too, whose graphs count in int64. The user's setting comes back afterwards.
        return jax.enable_x64(True)

    def _take_buffers(self, rows: int) -> tuple[jax.Array, ...]:
        """Buffers to donate: those of the stretch before, if there was one."""
        if rows not in self._buffers:
            types = solved_types(rows, self.density.size, self.density.dtype)
            return tuple(jnp.zeros(*like) for like in types)
        return self._buffers.pop(rows)

    def _keep_buffers(self, rows: int, filled: tuple[jax.Array, ...]) -> None:
        self._buffers[rows] = filled

    def _on_device(self, arrays: Sequence[np.ndarray]) -> list[jax.Array]:
        """The arrays on the device; one is sent again only when it is another one."""
        known = self._on_device_cache
        for i, value in enumerate(arrays):
            if i not in known or known[i][0] is not value:
                known[i] = (value, jnp.asarray(value))
        return [known[i][1] for i in range(len(arrays))]

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"_programs": {}, "_on_device_cache": {}, "_buffers": {}}


def _cannot_compile(error: Exception | None) -> BackendError:
    return BackendError(f"JAX cannot compile this model ({error}). Write backend='numba'.")


def _compile(program: Program) -> Callable[..., Any]:
    """The program as a JAX function, traced once to see that it can be."""
    with warnings.catch_warnings():
        # PyTensor's dispatch warns of what JAX may not trace; whether it does is tried next.
        warnings.filterwarnings("ignore", module="pytensor.link.jax")
        function = pytensor.function(
            program.inputs, program.outputs, mode="JAX", on_unused_input="ignore", trust_input=True
        )
    vm: Any = function.vm
    jax.eval_shape(vm.jit_fn, *map(_abstract, program.inputs))
    return vm.jit_fn


def _sizes(jaxpr: Any) -> Iterator[int]:
    """Bytes of each intermediate result, but for transposed data."""
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "jaxpr")]
        for closed in inner:
            yield from _sizes(closed.jaxpr)
        if not inner and equation.primitive.name != "transpose":
            yield from (v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)


def _abstract(variable: Any) -> jax.ShapeDtypeStruct:
    # What is left open (the rank of a metric) must trace whatever its length.
    shape = tuple(1 if n is None else n for n in variable.type.shape)
    return jax.ShapeDtypeStruct(shape, variable.type.dtype)


def _padded(noise: Noise, rows: int) -> tuple[np.ndarray, ...]:
    """The noise at its full capacity, so that every call has the same shapes."""
    missing = rows - len(noise.log_u)
    return tuple(np.pad(a, ((0, missing), *((0, 0),) * (a.ndim - 1))) for a in noise)


def _of_types(buffers: Sequence[jax.Array], rows: Sequence[jax.Array]) -> list[jax.Array]:
    """What a program returned, in the types of the buffers that it is written to."""
    return [row.astype(b.dtype) for b, row in zip(buffers, rows, strict=True)]


def _sequential_loop(
    step: Callable[..., Any],
    buffers: tuple[jax.Array, ...],
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    step_sizes: jax.Array,
    n_leapfrog: jax.Array,
    first: jax.Array,
    last: jax.Array,
    inputs: list[jax.Array],
) -> tuple[jax.Array, ...]:
    def advance(carry):
        t, (z, logp, dlogp), written = carry
        rows = step(z, logp, dlogp, xi[t], log_u[t], step_sizes[t], n_leapfrog[t], *inputs)
        rows = _of_types(buffers, rows)
        written = tuple(b.at[t].set(row) for b, row in zip(written, rows, strict=True))
        return t + 1, rows[:3], written

    def evaluate():
        # A step of size 0 that is always accepted evaluates the density where the chain stands; the
        # Metropolis ratio against logp = 0 is logp itself, finite or not.
        still, zero = jnp.zeros_like(start), jnp.zeros((), log_u.dtype)
        no_size, one = jnp.zeros((), start.dtype), jnp.ones((), n_leapfrog.dtype)
        rows = step(start, zero, still, still, zero - jnp.inf, no_size, one, *inputs)
        z, _, dlogp, logp, _ = _of_types(buffers, rows)
        return [z, logp, dlogp]

    def go_on():
        return [b[first - 1] for b in buffers[:3]]

    carry = (first, lax.cond(first == 0, evaluate, go_on), buffers)
    return lax.while_loop(lambda carry: carry[0] < last, advance, carry)[2]


def _windowed_loop(
    sweep: Callable[..., Any],
    draw_probes: Callable[[jax.Array], jax.Array],
    buffers: tuple[jax.Array, ...],
    done: jax.Array,
    sweeps: jax.Array,
    guess: jax.Array,
    memory: jax.Array,
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    step_sizes: jax.Array,
    n_leapfrog: jax.Array,
    n: jax.Array,
    last_sweep: jax.Array,
    key: jax.Array,
    curvature: jax.Array,
    tol: jax.Array,
    inputs: list[jax.Array],
) -> tuple[Any, ...]:
    window = len(guess)
    blocking = jnp.zeros(2, int)
    unknown = jnp.full_like(memory, jnp.nan)

    def advance(carry):
        done, sweeps, guess, memory, start, written = carry
        guess, memory, *rows, committed = sweep(
            guess,
            memory,
            start,
            lax.dynamic_slice_in_dim(xi, done, window),
            lax.dynamic_slice_in_dim(log_u, done, window),
            draw_probes(jax.random.fold_in(key, sweeps)),
            lax.dynamic_slice_in_dim(step_sizes, done, window),
            lax.dynamic_slice_in_dim(n_leapfrog, done, window),
            curvature,
            tol,
            blocking,
            *inputs,
        )
        guess = guess.astype(start.dtype)
        rows = _of_types(buffers, rows)
        # Rows past the committed ones are written too: the next sweep starts over them.
        written = tuple(
            lax.dynamic_update_slice_in_dim(b, row, done, 0)
            for b, row in zip(written, rows, strict=True)
        )
        # Slide: the guess for steps not seen before is where the window ends now.
        padded = jnp.concatenate([guess, jnp.broadcast_to(guess[-1], guess.shape)])
        guess = lax.dynamic_slice_in_dim(padded, committed, window)
        forgotten = jnp.concatenate([memory.astype(start.dtype), unknown])
        memory = lax.dynamic_slice_in_dim(forgotten, committed, window)
        return done + committed, sweeps + 1, guess, memory, rows[0][committed - 1], written

    def unfinished(carry):
        return (carry[0] < n) & (carry[1] < last_sweep)

    carry = (done, sweeps, guess, memory, start, buffers)
    done, sweeps, guess, memory, start, written = lax.while_loop(unfinished, advance, carry)
    return written, (done, sweeps), guess, memory, start
