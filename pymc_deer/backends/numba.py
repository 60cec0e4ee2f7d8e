"""The Numba backend: both loops, over steps and over sweeps, are compiled around the graph."""

import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from threading import Event
from typing import Any

import numba
import numpy as np
from numba.core.errors import NumbaError

import pymc_deer.ops.batch_numba
import pymc_deer.ops.matmul_numba
import pymc_deer.ops.repeat_numba
import pymc_deer.ops.scan_numba  # noqa: F401
from pymc_deer.backends.base import Solver
from pymc_deer.backends.forecast import known_ahead
from pymc_deer.backends.forecast_numba import compiled_chain_states
from pymc_deer.backends.freed_memory import keep_freed_memory
from pymc_deer.backends.numba_mode import LOOP_MODE, NUMBA_MODE
from pymc_deer.backends.request import Job, Request
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.graphs.python_ops import calls_python
from pymc_deer.jacobian import unit_probes
from pymc_deer.metric import SymbolicMetric
from pymc_deer.ops.batch import BATCHINGS, Batching
from pymc_deer.ops.inline_numba import inlined
from pymc_deer.ops.numba_source import compiled_under, key_of
from pymc_deer.precision import in_precision
from pymc_deer.status import cannot_compile
from pymc_deer.sweep import Program, build_sequential, build_sweep

_BLOCK = 32
"""States a thread evaluates at once: few enough for the temporaries to stay in its cache, enough
for the matrix products to be efficient (measured flat between 16 and 128)."""

_THREADED_WORK = 200_000
"""Numbers a sweep reads, window times those of a state, the metric and the data, from which threads
are used. Below it the sweep is over before the threads have met, and spinning threads take the
cores from other chains."""

# Numba compiles these loops over rows in a third of the time of assignments to them, which check
# shapes.

_SEQUENTIAL = """
def run(start, at_rest, xi, log_u, step_sizes, n_leapfrog, begin, first, last, stride, out_z,
        out_logp, out_dlogp, out_log_alpha, out_energy, params):
    z, logp, dlogp = start, np.asarray(0.0), at_rest[0]
    if first > begin:
        row = (first - 1) // stride
        z, logp, dlogp = out_z[row].copy(), np.asarray(out_logp[row]), out_dlogp[row].copy()
    # Numbers are arrays to the step: these, and no new ones for each transition.
    draw, step_size, n_steps = np.asarray(0.0), at_rest[2].copy(), np.asarray(0)
    for t in range(first if first > begin else begin - 1, last):
        # A step of size 0 that is always accepted evaluates the density where the chain stands; the
        # Metropolis ratio against logp = 0 is logp itself, finite or not. It is one call with the
        # others, since what is called is compiled for each call anew.
        noise = at_rest
        if t >= begin:
            draw[()], step_size[()], n_steps[()] = log_u[t], step_sizes[t], n_leapfrog[t]
            noise = xi[t], draw, step_size, n_steps
        # Of one type with the first ones, so that the step is compiled once.
        z, dlogp = np.ascontiguousarray(z), np.ascontiguousarray(dlogp)
        z, logp, dlogp, log_alpha, energy = step(
            z, logp, dlogp, noise[0], noise[1], noise[2], noise[3], {params}
        )
        if t < begin:
            # A state that is not in the support is rejected, and keeps the logp before it.
            logp = log_alpha
            continue
        row = t // stride
        for i in range(len(z)):
            out_z[row, i] = z[i]
            out_dlogp[row, i] = dlogp[i]
        out_logp[row] = logp.item()
        out_log_alpha[t] = log_alpha.item()
        out_energy[row] = energy.item()
"""

_WINDOWED = """
def run(done, sweeps, guess, memory, start, xi, log_u, step_sizes, n_leapfrog, window, last_sweep,
        ahead, bend, probe_rng, probes, curvature, tol, block, stride, out_z, out_logp,
        out_dlogp, out_log_alpha, out_energy, params):
    n = len(log_u)
    while done < n and sweeps < last_sweep:
        width = min(window, n - done)
        end = done + width
        {draw_probes}
        guess, memory, states, logp, dlogp, log_alpha, energy, committed = sweep(
            guess[:width], memory[:width], start, xi[done:end], log_u[done:end], probes,
            step_sizes[done:end], n_leapfrog[done:end], bend[done:end], curvature, tol, block,
            {params}
        )
        k = committed.item()
        for t in range(k):
            row = (done + t) // stride
            for i in range(len(start)):
                out_z[row, i] = states[t, i]
                out_dlogp[row, i] = dlogp[t, i]
            out_logp[row] = logp[t]
            out_log_alpha[done + t] = log_alpha[t]
            out_energy[row] = energy[t]
        start = states[k - 1].copy()
        done += k
        # Slide: the guess for steps not seen before is the forecast, or where the window ends now.
        last = guess[width - 1].copy()
        for t in range(width):
            seen = t + k < width
            unseen = ahead[done + t] if done + t < len(ahead) else last
            for i in range(len(start)):
                guess[t, i] = guess[t + k, i] if seen else unseen[i]
            for i in range(memory.shape[1]):
                memory[t, i] = memory[t + k, i] if seen else np.nan
        sweeps += 1
    return done, sweeps, guess, memory, start
"""

_DRAW_PROBES = (
    "probes = np.where(probe_rng.random((width, probes.shape[1], probes.shape[2])) < 0.5, "
    "-1.0, 1.0).astype(start.dtype)"
)


class NumbaSolver(Solver):
    """Chains on the CPU, compiled by Numba; compiled code is cached on disk by PyTensor."""

    # Another rule would take Numba half a minute to compile, more than it is likely to save.
    trial_rules = ("secant",)
    # To load the loop from disk takes as long as NumPy takes for these.
    many_normals = 2**19
    sweeps_whole_windows = False
    _n_threads = 1

    def solve_together(
        self, chains: Sequence[Request], params: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """See :meth:`Solver.solve_together`; windows take as many threads as they may."""
        if self._stopped is None and self.plan.window > 1:
            # OpenMP does not survive a fork.
            self._n_threads = min(self._threads_allowed(), available_threads())
        return super().solve_together(chains, params, at_once)

    @property
    def calls_python(self) -> bool:
        """See :class:`Solver`."""
        takes_products = self.plan.window > 1 and self.spec.n_probes(self.density.size) > 0
        return self._gradients_call_python or (takes_products and self._products_call_python)

    @cached_property
    def _gradients_call_python(self) -> bool:
        return calls_python([self.density.logp, self.density.dlogp])

    @cached_property
    def _products_call_python(self) -> bool:
        x = self.density.x
        with in_precision(self.density.dtype):
            return calls_python([self.density.hvp(x, x.type("v"))])

    def _available_cores(self) -> int:
        return available_threads()

    def _beside(self, stopped: Event, i: int) -> "NumbaSolver":
        solver = super()._beside(stopped, i)
        solver._n_threads = 1
        return solver

    @property
    def _is_compiled(self) -> bool:
        key = "sequential" if self.plan.window == 1 else (self.spec.rule, False)
        return key in self._programs

    def _sequential(
        self, jobs: Sequence[Job], inputs: Sequence[np.ndarray], firsts: Sequence[int]
    ) -> None:
        at_rest, params = self._at_rest, self._writeable(inputs)
        for job, first in zip(jobs, firsts, strict=True):
            start = job.buffers.state_before(first) if first else job.start
            n, weight = len(job.noise.log_u) - first, job.noise.n_leapfrog[first:].max()
            calls = self._paces["sequential", 1].calls(n, weight)
            try:
                loop = self._compiled("sequential", self._compile_sequential)
                for begin, end in calls:
                    self._check_stopped()
                    rows = first, first + begin, first + end, job.buffers.stride
                    filled = job.buffers.arrays
                    loop(start, at_rest, *job.noise, *rows, *filled, params)
            except (NumbaError, NotImplementedError) as error:
                raise cannot_compile("Numba", error, "jax") from error

    def _windowed(self, jobs: Sequence[Job], inputs: Sequence[np.ndarray]) -> list[tuple[int, int]]:
        return [self._windowed_one(job, inputs) for job in jobs]

    def _windowed_one(self, job: Job, inputs: Sequence[np.ndarray]) -> tuple[int, int]:
        n, window = len(job.noise.log_u), self.plan.window
        width = min(window, n)
        threaded = self._n_threads > 1 and self._is_worth_threads_of_its_own(width, inputs)
        budget, weight = self.plan.sweep_budget(n), job.noise.n_leapfrog.max()
        pace = self._paces[self.spec.rule, window, threaded]
        ahead, bend = known_ahead(job.start, job.noise, job.tuning, compiled_chain_states())
        arguments = (
            *(ahead, bend, job.probe_rng),
            self._probes,
            self._scalar(job.tuning.curvature),
            self._scalar(self.plan.tol),
            np.asarray(_BLOCK),
            job.buffers.stride,
            *job.buffers.arrays,
            self._writeable(inputs),
        )
        done, sweeps = 0, 0
        first_guess = ahead[:width].copy() if len(ahead) else np.tile(job.start, (width, 1))
        carry = first_guess, self._memory(width), job.start
        with _numba_threads(self._n_threads) if threaded else nullcontext():
            while done < n and sweeps < budget:
                self._check_stopped()
                before, last = sweeps, min(budget, sweeps + pace.allows(weight))
                loop = self._windowed_loop(threaded)
                done, sweeps, *carry = loop(
                    done, sweeps, *carry, *job.noise, window, last, *arguments
                )
                pace.took(sweeps - before, weight)
        return done, sweeps

    def _is_worth_threads_of_its_own(self, width: int, inputs: Sequence[np.ndarray]) -> bool:
        """Whether so many states of a window are: a block of them has one thread."""
        numbers_per_state = self.density.size + sum(np.size(a) for a in inputs)
        return width > _BLOCK and width * numbers_per_state >= _THREADED_WORK

    def _windowed_loop(self, threaded: bool) -> Callable[..., tuple[Any, ...]]:
        """The windowed loop around the first form of the batch that Numba can compile.

        Numba compiles when it first sees the arguments, and some vectorised graphs fail only when
        they run (a broadcast that PyTensor cannot see ahead), so the first call makes the choice.
        """
        key = (self.spec.rule, threaded)
        if key in self._programs:
            return self._programs[key]

        def first_call(*arguments: Any) -> tuple[Any, ...]:
            failure: Exception | None = None
            for batching in BATCHINGS:
                try:
                    loop = self._compile_windowed(batching, threaded)
                    result = loop(*arguments)
                except Exception as error:  # noqa: BLE001 - the other form may work
                    failure = error
                    continue
                self._batchings[self.spec.rule] = batching
                self._programs[key] = loop
                return result
            raise cannot_compile("Numba", failure, "jax") from failure

        return first_call

    def _compile_windowed(
        self, batching: Batching, threaded: bool
    ) -> Callable[..., tuple[Any, ...]]:
        draw = _DRAW_PROBES if self.spec.rule == "stochastic" else "pass"
        program = build_sweep(self.density, self.spec, batching, threaded=threaded)
        source = _WINDOWED.format(draw_probes=draw, params=self._params)
        return _compile_loop(source, "sweep", program)

    def _compile_sequential(self) -> Callable[..., None]:
        program = build_sequential(self.density, self.spec)
        return _compile_loop(_SEQUENTIAL.format(params=self._params), "step", program)

    @property
    def _params(self) -> str:
        """The metric's arrays and the density's parameters, as arguments in a loop's source."""
        size = self.density.size
        n = len(SymbolicMetric.of(self.spec.metric, size, self.density.dtype).params)
        n += len(self.density.params)
        return ", ".join(f"params[{i}]" for i in range(n))

    def sweep_alone(self, batching: Batching) -> Callable[..., Any]:
        """See :meth:`Solver.sweep_alone`."""
        return build_sweep(self.density, self.spec, batching).linked(NUMBA_MODE)

    def _memory(self, width: int) -> np.ndarray:
        shape = (width, self.spec.memory_size(self.density.size))
        return np.full(shape, np.nan, dtype=self.density.dtype)

    @property
    def _at_rest(self) -> tuple[np.ndarray, ...]:
        """Noise of a transition that is accepted where the chain stands."""
        numbers = self._scalar(0.0), np.asarray(1)
        return np.zeros(self.density.size, self.density.dtype), np.asarray(-np.inf), *numbers

    @property
    def _probes(self) -> np.ndarray:
        size, dtype = self.density.size, self.density.dtype
        if self.spec.rule == "exact":
            return unit_probes(size, dtype)
        return np.empty((1, self.spec.n_probes(size), size), dtype=dtype)

    def _writeable(self, arrays: Sequence[np.ndarray]) -> tuple[np.ndarray, ...]:
        """Contiguous, writeable arrays: Numba compiles anew for any other kind.

        Of those that are not, copies that are made when other arrays are given, not for each call.
        """
        copy = partial(np.require, requirements=("C", "W"))
        return tuple(
            a if a.flags.carray else self._passed(i, a, copy) for i, a in enumerate(arrays)
        )


def available_threads() -> int:
    """Threads a window may be spread over: 1 in a worker process, whose siblings run chains."""
    if multiprocessing.parent_process() is not None:
        return 1
    config: Any = numba.config
    return config.NUMBA_NUM_THREADS


@contextmanager
def _numba_threads(n: int) -> Iterator[None]:
    """At most n threads for compiled loops."""
    before = numba.get_num_threads()
    numba.set_num_threads(min(n, before))
    try:
        yield
    finally:
        numba.set_num_threads(before)


def _compile_loop(source: str, inner_name: str, program: Program) -> Callable[..., Any]:
    """Compile a loop around a program, cached on disk wherever the program itself can be."""
    keep_freed_memory()
    inner, inner_key = program.linked(LOOP_MODE)
    key = inner_key and key_of("nogil direct", source, inner_key)
    return compiled_under(key, source, "run", {inner_name: inlined(inner)})
