"""The JAX backend: whole stretches of chain inside one jitted ``while_loop``.

Between the call and its result nothing returns to the host. The output buffers are donated, so
that a stretch writes where the one before did.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any, Self

import jax
import numpy as np
from jax.sharding import Mesh

from pymc_deer.backends.aligned import empty_tape, fill_tape
from pymc_deer.backends.default_device import default_device
from pymc_deer.backends.jax_loops import state_at
from pymc_deer.backends.jax_process import JaxProcess
from pymc_deer.backends.jax_programs import JaxPrograms
from pymc_deer.backends.jax_results import Results
from pymc_deer.backends.pace import Pace, Unhurried
from pymc_deer.backends.placement import ManyDevices
from pymc_deer.backends.request import Job, Request
from pymc_deer.backends.spares import Spares
from pymc_deer.backends.trajectory import Found, Trajectory, solved_types
from pymc_deer.batches import as_many
from pymc_deer.beside import Beside
from pymc_deer.memory import CAUTIOUS
from pymc_deer.ops.batch import Batching

_RESULTS = 10
"""Arrays of length D that a state of a window has among its results: of five windows, two each."""

_MOST_IN_TURN, _MOST_READ_IN_TURN = 2**21, 2**18
"""Numbers that one call holds of all chains that it runs in turn, 16 MB, and that a gradient of
each reads. Where there are more, a call by itself costs little beside what it does.
"""

_NO_MESH = Mesh(np.empty((), dtype=object), ())
"""JAX's own way to say so; `jax.set_mesh` takes no None before JAX 0.10."""

_VECTORS, _NUMBERS = 3, 6
"""Arrays of length D, and numbers, of a transition's noise and results."""


class JaxSolver(JaxPrograms):
    """Chains on the CPU or GPU that JAX uses by default, or on :meth:`on_devices`.

    Raises
    ------
    ForkError
        When called in a process forked from one in which JAX ran: JAX is multithreaded, and would
        hang there rather than fail.
    """

    # They take NumPy a tenth of a second, as long as Numba takes to start for them alone.
    many_normals = 2**24
    sweeps_whole_windows = True
    fills_all = False
    _device: Any = None

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._spares = Spares()
        self._writer: Beside | None = None

    def on_devices(self, placement: ManyDevices) -> Self:
        """The same solver on devices that share its arrays.

        They share no arrays: those of the one are not where the other's are, and what it holds on
        its device makes room. Of what is compiled they share the graph of a single step, which
        differs between CPUs and GPUs.
        """
        self.spare_nothing()
        self._passed_on.clear()
        kept = {"step"} if placement.on_cpu == self.placement.on_cpu else set()
        kind = Unhurried if placement.spans_processes else Pace
        return self._changed(
            placement=placement,
            pace_kind=kind,
            _paces=defaultdict(kind),
            _programs={key: self._programs[key] for key in kept & self._programs.keys()},
            _passed_on={},
            _spares=Spares(),
        )

    def for_threads(self) -> Self:
        """See :meth:`Solver.for_threads`; ``jax.default_device`` speaks to one thread alone."""
        return self._changed(_device=default_device())

    def solve_together(
        self, chains: Sequence[Request], params: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """See :meth:`Solver.solve_together`."""
        with self._session():
            return super().solve_together(chains, params, at_once)

    def _solve_batch(
        self, chains: Sequence[Request], inputs: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """See :meth:`Solver._solve_batch`; a device solves a piece while the host has the last."""
        if not self.overlaps or self.plan.window == 1 or chains[0].n_transitions <= at_once:
            return super()._solve_batch(chains, inputs, at_once)
        with closing(Beside()) as writer:
            beside = self.for_threads()._changed(_writer=writer)
            found = super(JaxSolver, beside)._solve_batch(chains, inputs, at_once)
            writer.wait()
        return found

    def _solve_piece(self, jobs: Sequence[Job], inputs: Sequence[np.ndarray]) -> list[Found]:
        """See :meth:`Solver._solve_piece`; processes make sure first that they agree."""
        n_metric = len(inputs) - len(self.density.params)
        self.placement.refuse_differences((*_numbers(jobs), *inputs[:n_metric]))
        return super()._solve_piece(jobs, inputs)

    def _sequential(
        self, jobs: Sequence[Job], inputs: Sequence[np.ndarray], firsts: Sequence[int]
    ) -> None:
        batch, begins = as_many(jobs, self.n_together), as_many(firsts, self.n_together)
        own = zip(batch, begins, strict=True)
        noises = [job.noise.part(slice(first, None)) if first else job.noise for job, first in own]
        # The first row is for where the chains start.
        n, rows = max(len(noise.log_u) for noise in noises), 1 + self.plan.capacity
        places = max(len(batch), self._places)
        starts = np.zeros((places, self.density.size), self.density.dtype)
        for i, (job, first) in enumerate(zip(batch, begins, strict=True)):
            starts[i] = job.buffers.state_before(first) if first else job.start
        # Chains that begin at different rows do not have their strides at the same ones.
        stride = jobs[0].buffers.stride if len(set(firsts)) == 1 else 1
        keeps = stride, firsts[0] % stride
        at_once = len(batch) if self.batches_chains else 1
        weight = len(batch) // at_once * max(noise.n_leapfrog.max() for noise in noises)
        pace = self._paces["sequential", at_once]
        loop = self._compiled("sequential", self._compile_sequential)
        filled = self._take_buffers(places, rows)
        of_tape = "tape", places, rows
        tape = self._spares.take(of_tape, lambda: empty_tape(places, noises[0], rows))
        # The rows behind the noise, which are not looked at, are as they were.
        fill_tape(tape, noises, 1)
        starts, *arrays = map(self.placement.of_chains, (starts, *tape))
        for call in pace.calls(n, weight):
            self._check_stopped()
            rest = *call, *keeps, len(batch), self._on_device(inputs)
            filled = loop(filled, starts, *arrays, *rest)
            filled[0].block_until_ready()
        Results(self.placement, self.batches_chains).write_kept(filled, jobs, firsts, stride)
        # Once they are read: the next stretch may begin at once, in another thread.
        self._spares.keep(("buffers", places, rows), filled)
        self._spares.keep(of_tape, tape)

    def _windowed(self, jobs: Sequence[Job], inputs: Sequence[np.ndarray]) -> list[tuple[int, int]]:
        batch = as_many(jobs, self.n_together)
        seeds = as_many([job.probe_rng.integers(2**32) for job in jobs], self.n_together)
        n, window, n_chains = len(jobs[0].noise.log_u), self.plan.window, len(batch)
        rows = self.plan.capacity + window
        noises = [job.noise for job in batch]
        arrays = empty_tape(n_chains, noises[0], rows)
        fill_tape(arrays, noises, 0)
        budget, weight = self.plan.sweep_budget(n), arrays[-1].max()
        pace = self._paces[self.spec.rule, window, n_chains]
        dtype, of_chains = self.density.dtype, self.placement.of_chains
        loop = self._compiled((self.spec.rule, window), self._compile_windowed)
        filled = self._take_buffers(n_chains, rows)
        arrays = tuple(map(of_chains, arrays))
        starts = of_chains(np.stack([job.start for job in batch]))
        arguments = (
            *(starts, jobs[0].tuning.standardized),
            of_chains(np.array(seeds)),
            of_chains(np.array([job.tuning.curvature for job in batch], dtype)),
            self._scalar(self.plan.tol),
            self._on_device(inputs),
        )
        shapes = self._window_shapes(n_chains)
        guesses, memory = self._spares.take(
            shapes, lambda: tuple(self.placement.full(s, 0.0, dtype) for s in shapes)
        )
        counts = np.zeros(n_chains, int), np.zeros(n_chains, int)
        carry: Any = (*map(of_chains, counts), guesses, memory, starts)
        sweeps = 0
        while min(counts[0]) < n and sweeps < budget:
            self._check_stopped()
            last = min(budget, sweeps + pace.allows(weight))
            filled, now, *carry = loop(filled, sweeps, *carry, *arrays, n, last, *arguments)
            # Numbers of one type in every call, and there when the call is over.
            before, (now, *counts) = sweeps, self.placement.fetched((now, *carry[:2]))
            sweeps = int(now)
            pace.took(sweeps - before, weight)
        n_done, n_sweeps = (c[: len(jobs)].tolist() for c in (np.minimum(counts[0], n), counts[1]))
        self._spares.keep(shapes, (carry[2], carry[3]))
        write = partial(self._write_and_keep, filled, jobs, n_done)
        if self._writer is None:
            write()
        elif set(n_done) == {n}:
            # The next piece begins there, before all is written.
            [last] = self.placement.fetched([state_at(filled[0], n - 1)])
            for job, state in zip(jobs, last, strict=False):
                job.buffers.arrays[0][-1] = state
            self._writer.do(write)
        else:
            self._writer.wait()
            write()
        return list(zip(n_done, n_sweeps, strict=True))

    def _write_and_keep(
        self, filled: tuple[jax.Array, ...], jobs: Sequence[Job], done: Sequence[int]
    ) -> None:
        """Have what is asked for on the host, and leave the buffers to another piece."""
        with self._session():
            Results(self.placement, self.batches_chains).write(filled, jobs, done)
        self._spares.keep(("buffers", *filled[0].shape[:2]), filled)

    @property
    def n_in_turn(self) -> int:
        """Step by step as many as there is room for, one after the other."""
        return 1 if self.batches_chains or self.plan.window > 1 else self._places

    @property
    def _places(self) -> int:
        """Chains that a call without windows has room for: one program, for however many."""
        if self.batches_chains:
            return self.n_together
        held = self.plan.capacity * (_VECTORS * self.density.size + _NUMBERS)
        most = min(_MOST_IN_TURN // held, _MOST_READ_IN_TURN // self.density.n_numbers)
        return max(1, min(self.n_chains, most))

    @property
    def overlaps(self) -> bool:
        """But for devices that share chains, which have to fetch in one order."""
        return not (self.placement.on_cpu or self.placement.is_many)

    @property
    def batches_chains(self) -> bool:
        """On a GPU, which is idle beside one chain, and on devices that share the chains. On one
        CPU a batch of small products is slower than as many threads.
        """
        return self.placement.is_many or not self.placement.on_cpu

    def batch_gain_bound(self, params: Sequence[np.ndarray]) -> float:
        """Infinity where a batch has units to itself that a single state leaves idle."""
        return np.inf if self.batches_chains else super().batch_gain_bound(params)

    @property
    def _is_compiled(self) -> bool:
        window = self.plan.window
        return ("sequential" if window == 1 else (self.spec.rule, window)) in self._programs

    def spare_nothing(self) -> None:
        """See :meth:`Solver.spare_nothing`."""
        super().spare_nothing()
        self._spares.clear()

    def sweep_alone(self, batching: Batching) -> Callable[..., Any]:
        """See :meth:`Solver.sweep_alone`."""
        with self._session():
            sweep = self._of_windows(lambda graph: jax.jit(self._sweep(graph, batching)))

        def run(*arguments: np.ndarray) -> list[np.ndarray]:
            with self._session():
                return [np.asarray(result) for result in sweep(*arguments)]

        return run

    def bytes_per_state(self) -> int:
        """The arrays of length D, the results of two pieces, and the density's largest ones: of
        these alone each device has a part where several evaluate a window.
        """
        with self._session():
            largest = self._bytes_of_largest()
        second = _RESULTS * self._bytes_of_vector if self.overlaps else 0
        if not self.placement.on_cpu:
            largest = -(-largest // self.placement.n_evaluating)
        return super().bytes_per_state() + second + 4 * largest

    def free_memory(self) -> float:
        """Of all devices that share the chains, together; those on a CPU have the host's."""
        device = self.placement.device
        if device.platform != "gpu":
            return super().free_memory()
        stats = device.memory_stats()
        # Allocators other than JAX's own do not say, and the host's memory is none of the GPU's.
        of_each = stats["bytes_limit"] - stats["bytes_in_use"] if stats else CAUTIOUS
        return float(self.placement.n_sharing * of_each)

    @contextmanager
    def _session(self) -> Iterator[None]:
        # Of all solvers: what a copied step compiles anew in a fork would hang just as well.
        JaxProcess.enter()
        # 64 bits in float32 too, whose graphs count in int64. Where it may, XLA multiplies float32
        # matrices with 11 bits of each number (TF32, on GPUs since 2020): a thousand times tol.
        # The user's settings come back afterwards.
        # The device is named in every thread: programs are compiled anew where it is not.
        # What forbids transfers, NaN and mixed types is for their own code: all are meant here.
        # Keys give other momenta without `threefry_partitionable`. The user's own mesh is not
        # where arrays of a run lie.
        with (
            jax.default_device(self._device or default_device()),
            jax.enable_x64(True),
            jax.default_matmul_precision("highest"),
            jax.transfer_guard("allow"),
            jax.debug_nans(False),
            jax.debug_infs(False),
            jax.numpy_dtype_promotion("standard"),
            jax.numpy_rank_promotion("allow"),
            jax.threefry_partitionable(True),
            jax.set_mesh(_NO_MESH),
        ):
            yield

    def _take_buffers(self, n_chains: int, rows: int) -> tuple[jax.Array, ...]:
        """Buffers to donate, (C, rows, ...): those of the stretch before, if there was one."""
        types = solved_types(rows, self.density.size, self.density.dtype)
        full = self.placement.full
        return self._spares.take(
            ("buffers", n_chains, rows),
            lambda: tuple(full((n_chains, *shape), 0.0, dtype) for shape, dtype in types),
        )

    def _window_shapes(self, n_chains: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Of the states guessed in all chains' windows, and of what the rule keeps of them."""
        lead, size = (n_chains, self.plan.window), self.density.size
        return (*lead, size), (*lead, self.spec.memory_size(size))

    def _on_device(self, arrays: Sequence[np.ndarray]) -> list[jax.Array]:
        """The arrays on the device; one is sent again only when it is another one."""
        n_metric = len(arrays) - len(self.density.params)
        of_metric, of_data = self.placement.alike, self.placement.data
        return [
            self._passed(i, array, of_metric if i < n_metric else of_data)
            for i, array in enumerate(arrays)
        ]


def _numbers(jobs: Sequence[Job]) -> Iterator[Any]:
    """What is each chain's own of all that its states follow from."""
    for job in jobs:
        yield from (job.start, *job.noise, job.tuning.curvature)
