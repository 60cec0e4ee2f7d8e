"""The JAX backend: whole stretches of chain inside one jitted ``while_loop``.

Between the call and its result nothing returns to the host. The output buffers are donated, so
that a stretch writes where the one before did.
"""

import os
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytensor
from jax import lax

import pymc_deer.batch_jax
import pymc_deer.scan_jax  # noqa: F401
from pymc_deer.backends.base import Buffers, Solver, Tuning
from pymc_deer.batch import BATCHINGS
from pymc_deer.jacobian import unit_probes
from pymc_deer.noise import Tape
from pymc_deer.status import BackendError, ForkError
from pymc_deer.sweep import Program, build_sequential, build_sweep

_BUFFERS = ("z", "logp", "dlogp", "log_alpha")


class JaxSolver(Solver):
    """Chains on the CPU or GPU that JAX uses by default.

    Raises
    ------
    ForkError
        When called in a process forked from the one that made it: JAX is multithreaded, and would
        hang there rather than fail.
    """

    name = "jax"

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._pid = os.getpid()
        self._device_params: list[tuple[np.ndarray, jax.Array]] = []
        self._buffers: dict[int, tuple[jax.Array, ...]] = {}

    def _sequential(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        buffers: Buffers,
        first: int,
    ) -> None:
        rest = tape[first:]
        n = len(rest)
        with self._session():
            filled = self._run_sequential(
                self._take_buffers(0),
                start,
                *self._padded(rest, 0),
                n,
                self._scalar(tuning.step_size),
                tuning.metric.mu,
                tuning.metric.factor,
                self._on_device(params),
            )
            self._keep_buffers(0, filled)
            buffers.write(first, [np.asarray(b)[:n] for b in filled])

    def _windowed(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        probe_rng: np.random.Generator,
        buffers: Buffers,
    ) -> tuple[int, int]:
        n, window = len(tape), self.plan.window
        with self._session():
            filled, done, sweeps = self._run_windowed(
                self._take_buffers(window),
                start,
                *self._padded(tape, window),
                n,
                self.sweep_budget(n),
                jax.random.key(probe_rng.integers(2**32)),
                self._scalar(tuning.step_size),
                self._scalar(tuning.curvature),
                self._scalar(self.plan.tol),
                tuning.metric.mu,
                tuning.metric.factor,
                self._on_device(params),
            )
            self._keep_buffers(window, filled)
            n_done = min(int(done), n)
            buffers.write(0, [np.asarray(b)[:n_done] for b in filled])
        return n_done, int(sweeps)

    @cached_property
    def _run_sequential(self) -> Callable[..., Any]:
        try:
            program = build_sequential(self.density, self.spec)
            step = _compile(program)
        except Exception as error:
            raise _cannot_compile(error) from error
        return jax.jit(partial(_sequential_loop, step), donate_argnums=0)

    @cached_property
    def _run_windowed(self) -> Callable[..., Any]:
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
            self.batching = batching
            draw = self._draw_probes()
            loop = partial(_windowed_loop, sweep, draw, self.plan.window)
            return jax.jit(loop, donate_argnums=0)
        raise _cannot_compile(failure) from failure

    def _draw_probes(self) -> Callable[[jax.Array], jax.Array]:
        size, dtype = self.density.size, self.density.dtype
        n_probes = self.spec.n_probes(size)
        if self.spec.rule == "exact":
            return lambda key: jnp.asarray(unit_probes(size, dtype))
        if self.spec.rule == "preconditioned":
            return lambda key: jnp.zeros((self.plan.window, n_probes, size), dtype)
        shape = (self.plan.window, n_probes, size)
        return lambda key: jax.random.rademacher(key, shape, dtype)

    def _session(self) -> Any:
        if os.getpid() != self._pid:
            raise ForkError(
                "JAX cannot run in a forked process. Write pm.sample(..., mp_ctx='forkserver'), "
                "pm.sample(..., cores=1), or DeerMALA(backend='numba')."
            )
        # In float32 too, whose graphs count in int64. The user's setting comes back afterwards.
        return jax.enable_x64(True)

    def _padded(self, tape: Tape, extra: int) -> tuple[np.ndarray, np.ndarray]:
        """The tape at its full capacity plus a window, so that every call has the same shapes."""
        rows = self.plan.capacity + extra - len(tape)
        return np.pad(tape.xi, ((0, rows), (0, 0))), np.pad(tape.log_u, (0, rows))

    def _take_buffers(self, extra: int) -> tuple[jax.Array, ...]:
        """Buffers to donate: those of the stretch before, if there was one."""
        rows, size, dtype = self.plan.capacity + extra, self.density.size, self.density.dtype
        if extra not in self._buffers:
            shapes = {"z": (rows, size), "dlogp": (rows, size)}
            return tuple(jnp.zeros(shapes.get(name, (rows,)), dtype) for name in _BUFFERS)
        return self._buffers.pop(extra)

    def _keep_buffers(self, extra: int, filled: tuple[jax.Array, ...]) -> None:
        self._buffers[extra] = filled

    def _on_device(self, params: Sequence[np.ndarray]) -> list[jax.Array]:
        """The parameters on the device; an array is sent again only when it is another one."""
        known = self._device_params
        self._device_params = [
            known[i] if i < len(known) and known[i][0] is value else (value, jnp.asarray(value))
            for i, value in enumerate(params)
        ]
        return [on_device for _, on_device in self._device_params]

    def _scalar(self, value: float) -> np.ndarray:
        return np.asarray(value, dtype=self.density.dtype)

    def __getstate__(self) -> dict[str, Any]:
        compiled = ("_run_sequential", "_run_windowed")
        state = {k: v for k, v in self.__dict__.items() if k not in compiled}
        return state | {"_device_params": [], "_buffers": {}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        for name, value in state.items():
            setattr(self, name, value)
        self._pid = os.getpid()


def _cannot_compile(error: Exception | None) -> BackendError:
    return BackendError(
        f"JAX cannot compile this model ({error}). Write DeerMALA(backend='numba')."
    )


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


def _abstract(variable: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(variable.type.shape, variable.type.dtype)


def _sequential_loop(
    step: Callable[..., Any],
    buffers: tuple[jax.Array, ...],
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    n: jax.Array,
    step_size: jax.Array,
    mu: jax.Array,
    factor: jax.Array,
    params: list[jax.Array],
) -> tuple[jax.Array, ...]:
    def advance(carry):
        t, (z, logp, dlogp), written = carry
        rows = step(z, logp, dlogp, xi[t], log_u[t], step_size, mu, factor, *params)
        rows = [row.astype(start.dtype) for row in rows]
        written = tuple(b.at[t].set(row) for b, row in zip(written, rows, strict=True))
        return t + 1, rows[:3], written

    # A step of size 0 that is always accepted evaluates the density where the chain stands; the
    # Metropolis ratio against logp = 0 is logp itself, finite or not.
    still, zero = jnp.zeros_like(start), jnp.zeros_like(step_size)
    first = step(start, zero, still, still, zero - jnp.inf, zero, mu, factor, *params)
    z, _, dlogp, logp = (row.astype(start.dtype) for row in first)
    carry = (jnp.zeros((), int), [z, logp, dlogp], buffers)
    return lax.while_loop(lambda carry: carry[0] < n, advance, carry)[2]


def _windowed_loop(
    sweep: Callable[..., Any],
    draw_probes: Callable[[jax.Array], jax.Array],
    window: int,
    buffers: tuple[jax.Array, ...],
    start: jax.Array,
    xi: jax.Array,
    log_u: jax.Array,
    n: jax.Array,
    max_sweeps: jax.Array,
    key: jax.Array,
    step_size: jax.Array,
    curvature: jax.Array,
    tol: jax.Array,
    mu: jax.Array,
    factor: jax.Array,
    params: list[jax.Array],
) -> tuple[tuple[jax.Array, ...], jax.Array, jax.Array]:
    blocking = jnp.zeros(2, int)

    def advance(carry):
        done, sweeps, guess, start, written = carry
        guess, *rows, committed = sweep(
            guess,
            start,
            lax.dynamic_slice_in_dim(xi, done, window),
            lax.dynamic_slice_in_dim(log_u, done, window),
            draw_probes(jax.random.fold_in(key, sweeps)),
            step_size,
            curvature,
            tol,
            blocking,
            mu,
            factor,
            *params,
        )
        guess = guess.astype(start.dtype)
        rows = [row.astype(start.dtype) for row in rows]
        # Rows past the committed ones are written too: the next sweep starts over them.
        written = tuple(
            lax.dynamic_update_slice_in_dim(b, row, done, 0)
            for b, row in zip(written, rows, strict=True)
        )
        # Slide: the guess for steps not seen before is where the window ends now.
        padded = jnp.concatenate([guess, jnp.broadcast_to(guess[-1], guess.shape)])
        guess = lax.dynamic_slice_in_dim(padded, committed, window)
        return done + committed, sweeps + 1, guess, rows[0][committed - 1], written

    def unfinished(carry):
        return (carry[0] < n) & (carry[1] < max_sweeps)

    guess = jnp.broadcast_to(start, (window, *start.shape))
    none = jnp.zeros((), int)
    done, sweeps, _, _, written = lax.while_loop(
        unfinished, advance, (none, none, guess, start, buffers)
    )
    return written, done, sweeps
