"""What every backend offers: stretches of chain, solved in windows or step by step."""

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from threading import Event, RLock
from typing import Any, Self

import numpy as np

from pymc_deer.backends.blas import Blas
from pymc_deer.backends.pace import Pace
from pymc_deer.backends.request import Job, Request, TapedRequest, Tuning
from pymc_deer.backends.threads import Threads, available_cores, existing_cores
from pymc_deer.backends.trajectory import SOLVED, Buffers, Found, Noise, Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density
from pymc_deer.duplicate import duplicate
from pymc_deer.jacobian import Rule
from pymc_deer.memory import available_memory
from pymc_deer.metric import Metric
from pymc_deer.noise import Draw, Tape, draw_keys
from pymc_deer.noise_numba import FasterOnceMany
from pymc_deer.ops.batch import Batching
from pymc_deer.sweep import SweepSpec

_THREADS_SECONDS = 2e-3
"""Time of all chains from which threads pay; warm-up takes as long with 1 ms."""

_CACHE = 2**20
_MATRIX_GAIN = 8
_CACHED_GAIN = 5
"""Bounds on what a matrix product gains a state on a CPU, for a matrix larger than a core's cache,
in bytes, and for a smaller one."""

_ARRAYS_PER_STATE = 37
"""Arrays of length D that a window holds for each state: tape, forecast, guess, buffers."""

_ARRAYS_PER_PROBE = 4
"""And for each probe: its direction, the product, and what carries them along a path."""


class Solver(ABC):
    """Runs a density's chain on one backend. Compiles lazily, once per program.

    Solvers derived from one another by :meth:`with_rule` and :meth:`with_plan` share what is
    compiled.
    """

    trial_rules: tuple[Rule, ...] = ("secant", "stochastic")
    """Rules that ``jacobian="auto"`` chooses from."""
    pace_kind: type[Pace] = Pace
    """How solves are cut into calls."""
    many_normals: int
    """Normals from which Numba draws them: the same numbers on every backend."""
    sweeps_whole_windows: bool
    """Whether a sweep evaluates as many states as a window has, however few are left."""
    fills_all = True
    """Whether what is not asked for is given back too, since it lies in the host's memory."""
    overlaps = False
    """Whether what a call in windows has found is fetched while the next call runs."""
    n_chains = 1
    """Chains of the run."""
    n_together = 1
    """Chains of a batch: programs are for as many, and of fewer the first takes the places left."""
    n_in_turn = 1
    """Chains of one call, where they are no batch."""
    _stopped: Event | None = None
    _cores: int | None = None

    def __init__(self, density: Density, spec: SweepSpec, plan: WindowPlan) -> None:
        self.density = density
        self.spec = spec
        self.plan = plan
        self.threads, self._blas = Threads(), Blas()
        self._programs: dict[Hashable, Any] = {}
        self._compiling = RLock()
        self._normals = FasterOnceMany(self.many_normals)
        self._batchings: dict[Hashable, Batching] = {}
        self._passed_on: dict[Hashable, tuple[Any, Any]] = {}
        self._paces: dict[Hashable, Pace] = defaultdict(Pace)
        self._paces_beside: dict[int, Any] = defaultdict(partial(defaultdict, Pace))

    @property
    def batching(self) -> Batching | None:
        """How windows are evaluated; None before the first windowed solve."""
        return self._batchings.get(self.spec.rule)

    @property
    def draw_momenta(self) -> Draw:
        """How momenta are made of a chain's generator, or the keys of which the device does."""
        return draw_keys if self.spec.noise == "device" else self._normals

    def with_rule(self, rule: Rule) -> Self:
        """The same solver with another Jacobian rule."""
        return self._changed(spec=replace(self.spec, rule=rule))

    def with_plan(self, plan: WindowPlan) -> Self:
        """The same solver with another plan."""
        return self._changed(plan=plan)

    def for_chains(self, n: int) -> Self:
        """The same solver for a run of so many chains."""
        return self._changed(n_chains=n, n_together=n if self.batches_chains else 1)

    def on_cores(self, n: int | None) -> Self:
        """The same solver on so many cores, if there are as many.

        None is for as many as BLAS may have threads now, whatever it may have later.
        """
        return self._changed(_cores=self._spare_cores() if n is None else min(n, existing_cores()))

    def _changed(self, **attributes: Any) -> Self:
        return duplicate(self, **attributes)

    def _compiled(self, key: Hashable, build: Callable[[], Any]) -> Any:
        """A program that all derived solvers share, in whatever thread one first needs it."""
        with self._compiling:
            if key not in self._programs:
                self._programs[key] = build()
            return self._programs[key]

    def forget_data(self) -> None:
        """Read the model's data anew, which may have been written to where they are."""
        self.density.forget_data()
        self._passed_on.clear()

    def _passed[T](self, key: Hashable, given: T, make: Callable[[T], Any]) -> Any:
        """What `make` makes of what programs take in this place: once of the same one."""
        known = self._passed_on.get(key)
        if known is None or known[0] is not given:
            known = self._passed_on[key] = given, make(given)
        return known[1]

    def spare_nothing(self) -> None:
        """Free what calls have left for others of as many chains and transitions."""
        self._passed_on.pop("metric", None)

    def solve(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        probe_rng: np.random.Generator,
    ) -> Trajectory:
        """Run ``len(tape)`` transitions from the whitened state `start`, shape (D,).

        Parameters
        ----------
        tape
            Noise of at most ``plan.capacity`` transitions.
        params
            Values of ``density.params``.
        probe_rng
            Source of the Rademacher probes of the ``stochastic`` rule. They steer the sweeps and
            leave no trace in the states beyond the tolerance.
        """
        chain = TapedRequest(start, tape, tuning, probe_rng)
        return self.solve_together([chain], params, len(tape))[0]

    def run(self, chain: Request, params: Sequence[np.ndarray]) -> Trajectory:
        """As :meth:`solve`, for a tape of any length, in as many calls as the capacity asks for."""
        return self.run_together([chain], params, self.plan.capacity)[0]

    def run_together(
        self, chains: Sequence[Request], params: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """As :meth:`run`, for several chains with tapes of one length and one metric.

        Parameters
        ----------
        at_once
            Transitions of each chain to solve in one call, at most the capacity.
        """
        # How many threads there may be is asked only where there is something for them.
        alone = len(chains) == 1 or self.batches_chains or not self._is_worth_threads(chains)
        n_threads = 1 if alone else self.chains_at_once(len(chains))
        if n_threads == 1:
            # Threads may know better what a short call takes, until this one is over.
            self._paces_beside.clear()
            return self.solve_together(chains, params, at_once)
        own, stopped = self.for_threads(), Event()
        tasks = [
            partial(own._beside(stopped, i).solve_together, [chain], params, at_once)
            for i, chain in enumerate(chains)
        ]
        with self.one_blas_thread():
            return [found for [found] in self.threads.run(tasks, n_threads, stopped)]

    @property
    def batches_chains(self) -> bool:
        """Whether chains run as one batch, rather than each in its own thread."""
        return False

    def chains_at_once(self, n_chains: int) -> int:
        """Of so many chains, those that run at the same time."""
        return n_chains if self.batches_chains else min(n_chains, self._threads_allowed())

    @property
    @abstractmethod
    def _is_compiled(self) -> bool:
        """Whether all is compiled that every solve needs: threads would wait for one another."""

    def _is_worth_threads(self, chains: Sequence[Request]) -> bool:
        """Whether each chain should have its own: where they meet leaves no trace."""
        n, weight = chains[0].n_transitions, sum(chains[0].tuning.lengths) / 2
        paces = self._paces, *self._paces_beside.values()
        seconds = min(each["sequential", 1].seconds(n, weight) for each in paces)
        is_long = self.plan.window > 1 or len(chains) * seconds > _THREADS_SECONDS
        return self._is_compiled and is_long

    @property
    def calls_python(self) -> bool:
        """Whether programs call Python code of the model's, which may not bear two threads."""
        return False

    def _threads_allowed(self) -> int:
        """Chains that may run at the same time."""
        if self.calls_python:
            return 1
        return self._spare_cores() if self._cores is None else self._cores

    def _spare_cores(self) -> int:
        """Cores that nobody has to allow: as many as BLAS may have threads here."""
        return min(self.blas_threads(), self._available_cores())

    def _available_cores(self) -> int:
        return available_cores()

    def for_threads(self) -> Self:
        """The same in threads other than the caller's, on the device that the caller is on."""
        return self

    def _beside(self, stopped: Event, i: int) -> Self:
        """The solver of the i-th chain, which runs beside others until `stopped` is set."""
        return self._changed(_stopped=stopped, _paces=self._paces_beside[i])

    def _check_stopped(self) -> None:
        """To be called between calls of compiled code."""
        if self._stopped is not None and self._stopped.is_set():
            raise CancelledError

    def solve_together(
        self, chains: Sequence[Request], params: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """As :meth:`run_together`, in one thread."""
        inputs = (*self._metric_arrays(chains[0].tuning.metric), *params)
        n = len(chains) if self.batches_chains else self.n_in_turn
        batches = [chains[i : i + n] for i in range(0, len(chains), n)]
        with self.one_blas_thread():
            return [found for some in batches for found in self._solve_batch(some, inputs, at_once)]

    def _solve_batch(
        self, chains: Sequence[Request], inputs: Sequence[np.ndarray], at_once: int
    ) -> list[Trajectory]:
        """The chains' trajectories, piece by piece of their tapes, written to where they belong."""
        n, size, dtype = chains[0].n_transitions, self.density.size, self.density.dtype
        # Pieces begin with a stride.
        at_once -= at_once % chains[0].stride
        pieces = [range(first, min(n, first + at_once)) for first in range(0, n, at_once)]
        names = SOLVED if self.fills_all else chains[0].asked
        buffers = [Buffers.empty(n, size, dtype, chain.stride, names) for chain in chains]
        jobs = (self._jobs(*own, pieces) for own in zip(chains, buffers, strict=True))
        found = [self._solve_piece(of_all, inputs) for of_all in zip(*jobs, strict=True)]
        by_chain = zip(buffers, zip(*found, strict=True), strict=True)
        return [filled.trajectory(own) for filled, own in by_chain]

    def _jobs(self, chain: Request, buffers: Buffers, pieces: Sequence[range]) -> Iterator[Job]:
        """The chain's share of each piece, to be solved before the next one is asked for.

        Noise is drawn for one piece at a time, and still in the cache when it is used.
        """
        tuning, dtype = chain.tuning, self.density.dtype
        start = np.ascontiguousarray(chain.start, dtype=dtype)
        for rows, tape in zip(pieces, chain.tapes(pieces), strict=True):
            noise, part = Noise.of(tape, tuning.step_size, dtype), buffers.part(rows)
            yield Job(start, noise, tuning, chain.probe_rng, part)
            start = part.state_before(len(rows))

    def _solve_piece(self, jobs: Sequence[Job], inputs: Sequence[np.ndarray]) -> list[Found]:
        """Fill the buffers; how, for each chain."""
        n = len(jobs[0].noise.log_u)
        if self.plan.window == 1:
            self._sequential(jobs, inputs, [0] * len(jobs))
            done = [(n, 0) for _ in jobs]
        else:
            done = self._windowed(jobs, inputs)
            if left := [(job, k) for job, (k, _) in zip(jobs, done, strict=True) if k < n]:
                jobs_left, firsts = zip(*left, strict=True)
                self._sequential(jobs_left, inputs, firsts)
        return [
            Found(job.noise.n_leapfrog, job.noise.step_sizes, n_sweeps, n - n_done)
            for job, (n_done, n_sweeps) in zip(jobs, done, strict=True)
        ]

    def _metric_arrays(self, metric: Metric) -> tuple[np.ndarray, ...]:
        """In the density's type: the same arrays for the same metric, which JAX sends once."""
        dtype = self.density.dtype
        return self._passed("metric", metric, lambda given: given.astype(dtype).arrays)

    def evaluate(
        self, z: np.ndarray, metric: Metric, params: Sequence[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        """Logp and whitened gradient at z of shape (D,)."""
        return self.evaluate_together([z], metric, params)[0]

    def evaluate_together(
        self, states: Sequence[np.ndarray], metric: Metric, params: Sequence[np.ndarray]
    ) -> list[tuple[float, np.ndarray]]:
        """Logp and whitened gradient at each state, (D,): a transition of step size 0.

        It goes through the programs that run the chain, so nothing more is compiled.
        """
        rng = np.random.default_rng(0)
        # Two transitions, so that the first call of all sees a true batch; 0 is a key as well.
        xi = np.zeros_like(self.draw_momenta(rng, 2, self.density.size))
        tape, tuning = Tape(xi, np.full(2, -np.inf)), Tuning(0.0, 1.0, metric)
        chains = [TapedRequest(z, tape, tuning, rng) for z in states]
        # The ratio is 1 but for rounding where logp is finite; where it is not, it says so.
        return [
            (float(at.logp[0]) if np.isfinite(at.log_alpha[0]) else np.nan, at.dlogp[0])
            for at in self.solve_together(chains, params, min(2, self.plan.capacity))
        ]

    def one_blas_thread(self) -> AbstractContextManager[Any]:
        """See :meth:`Blas.one_thread`."""
        return self._blas.one_thread()

    def blas_threads(self) -> int:
        """Threads that BLAS may use now."""
        return self._blas.n_threads

    def _scalar(self, value: float) -> np.ndarray:
        return np.asarray(value, dtype=self.density.dtype)

    def bytes_per_state(self) -> int:
        """Memory that one more state in a window takes, about."""
        n_arrays = _ARRAYS_PER_STATE + _ARRAYS_PER_PROBE * self.spec.n_probes(self.density.size)
        return n_arrays * self._bytes_of_vector

    @property
    def _bytes_of_vector(self) -> int:
        return self.density.size * np.dtype(self.density.dtype).itemsize

    def most_bytes_per_state(self) -> int:
        """What a state hardly exceeds, known at no cost: results for all pairs of numbers read."""
        pairs = self.density.n_numbers**2 * np.dtype(self.density.dtype).itemsize
        return Solver.bytes_per_state(self) + 4 * pairs

    def free_memory(self) -> float:
        """Bytes free where windows are solved; a cautious guess where the system does not say."""
        return available_memory()

    def batch_gain_bound(self, params: Sequence[np.ndarray]) -> float:
        """How much cheaper a state can be in a batch than alone, at most.

        A compiled loop on a CPU has no call overhead to save, and elementwise work costs the same
        in a batch; a data matrix that is read from memory for each state is read once for a block.
        Threads are not counted: they may have chains of their own.
        """
        largest = max((p.nbytes for p in params if np.ndim(p) > 1), default=0)
        return _MATRIX_GAIN if largest >= _CACHE else _CACHED_GAIN

    @abstractmethod
    def sweep_alone(self, batching: Batching) -> Callable[..., Any]:
        """A sweep over one window, compiled without the loop, from and to NumPy arrays.

        Arguments and results are those of :func:`~pymc_deer.sweep.build_sweep`.
        """

    @abstractmethod
    def _windowed(self, jobs: Sequence[Job], inputs: Sequence[np.ndarray]) -> list[tuple[int, int]]:
        """Fill the buffers by sweeps; (transitions committed, sweeps used) of each chain.

        `inputs` are the metric's arrays and the density's parameters. As below, in calls that the
        pace allows, which must leave no trace.
        """

    @abstractmethod
    def _sequential(
        self, jobs: Sequence[Job], inputs: Sequence[np.ndarray], firsts: Sequence[int]
    ) -> None:
        """Fill the buffers of each from a row on, step by step."""
