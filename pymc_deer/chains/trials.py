"""Ways of solving windows, tried on a pilot chain: what each takes, and how long."""

import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.chains.chain import Chain, ChainRecord
from pymc_deer.chains.plan import SHORTEST_CALL, in_windows
from pymc_deer.chains.stretch import Streams
from pymc_deer.duplicate import duplicate
from pymc_deer.jacobian import Rule
from pymc_deer.memory import is_out_of_memory
from pymc_deer.noise import Tape
from pymc_deer.start import Start
from pymc_deer.warmup.adaptation import Warmup

DEFAULT_RULE: Rule = "secant"
DEFAULT_CURVATURE = 1.5

PILOT_DRAWS = 400
"""Warm-up draws of the pilot chain: enough for a metric good to a few per cent, hence for the
number of sweeps that the chains will need."""

_PILOT_SECONDS = 10.0
_TRIAL_SECONDS = 0.5
"""Time for the pilot chain, and for its transitions that are then solved in every way."""

_LOOK_SECONDS = 0.02
"""Time from which the clock can tell what a transition takes, and a call's own cost vanishes."""

_WINDOW_SECONDS = 5.0
"""Time that the transitions of one window may take step by step, for that width to be tried."""

_TRIAL_LENGTHS = (128, 1024)

_CURVATURES: dict[Rule, tuple[float, ...]] = {
    "preconditioned": (1.0, 1.25, 1.5, 2.0, 3.0),
    "secant": (1.0, 1.5),
    "stochastic": (1.0, 1.5, 2.0),
    "exact": (1.0, 1.5),
}

_MEMORY_SHARE = 0.25
"""Share of the memory free that windows which are tried may take."""


@dataclass(frozen=True)
class Trial:
    """One way of solving the pilot's transitions, and what it took.

    Attributes
    ----------
    window, jacobian, curvature, max_sweeps
        The way; `curvature` is the bound that took the fewest sweeps.
    sweeps_per_1000
        Sweeps for 1000 transitions.
    microseconds
        Time for one transition; infinite where no bound c was in time to pay.
    """

    window: int
    jacobian: Rule
    curvature: float
    max_sweeps: int | None
    sweeps_per_1000: float
    microseconds: float

    @property
    def report(self) -> dict[str, object]:
        """Fields by name, in numbers that JSON knows."""
        return {k: None if v == np.inf else v for k, v in asdict(self).items()}


@dataclass(frozen=True)
class Foreseen:
    """What is known of a run before it begins.

    Attributes
    ----------
    n_chains
        Chains that are one batch, if the backend makes one of them: the more there are, the
        narrower are the windows that keep a device busy. Of others, those that may share a call.
    n_draws
        Draws of each chain behind warm-up; None where they are not known.
    """

    n_chains: int = 1
    n_draws: int | None = None


UNKNOWN = Foreseen()
"""One chain, of whatever length."""


@dataclass(frozen=True)
class Pilot:
    """A warmed-up chain to measure on: whitened state (D,), tuning, and parameter values; and the
    transitions that it would take for a draw.
    """

    z: np.ndarray
    tuning: Tuning
    params: Sequence[np.ndarray]
    steps_per_draw: int = 1


def run_pilot(solver: Solver, start: Start, warmup: Warmup, params: Sequence[np.ndarray]) -> Pilot:
    """Warm a chain up from a start, step by step, for as long as there is time."""
    n_draws = sum(stretch.n_draws for stretch in warmup.schedule)
    streams = Streams.spawn(np.random.default_rng(0))
    chain = Chain(solver, ChainRecord(start.x, streams, warmup, n_draws, 0))
    chain.begin(start, params)
    end = time.perf_counter() + _PILOT_SECONDS
    x = start.x
    for _ in range(n_draws):
        x, _ = chain.next_draw(params, tuning=True, alone=True)
        if time.perf_counter() > end:
            break
    chain.record.warmup.finish()
    tuned = chain.record.warmup
    return Pilot(tuned.tuning.metric.to_z(x), tuned.tuning, params, tuned.steps_per_draw)


class Trials:
    """Solves the same pilot transitions in different ways.

    Parameters
    ----------
    solver
        Any solver of the density on the backend. The chains that it makes one batch of are solved
        in one call, each with transitions of its own, and times are of transitions that all of
        them make, side by side.
    pilot
        Where to start, and with which tuning.
    curvatures
        Bounds c to try; None for each rule's own.
    n_draws
        Draws of the run that they are for: no more transitions are solved than it will have. None
        where they are not known.
    """

    def __init__(
        self,
        solver: Solver,
        pilot: Pilot,
        curvatures: Sequence[float] | None = None,
        n_draws: int | None = None,
    ) -> None:
        self.pilot, self.curvatures, self.n_chains = pilot, curvatures, solver.n_together
        self.most = None if n_draws is None else n_draws * pilot.steps_per_draw
        self.solver = in_windows(solver, 1, None)

    @cached_property
    def sequential_seconds(self) -> float:
        """Time of one transition of the sequential chain."""

        def seconds(n: int) -> float:
            return self._solve(self.solver, n, 1.0)[0]

        # Once to compile; and few, where a single one takes long.
        seconds(2)
        n = int(np.clip(2 * _TRIAL_SECONDS / seconds(2), 2, SHORTEST_CALL // 2))
        # As many as a call of the chain has, or as make its own cost vanish.
        n = int(np.clip(_LOOK_SECONDS * n / seconds(n), n, max(n, self.solver.plan.capacity)))
        # A second look where the first was too short for the clock.
        more = int(np.clip(_LOOK_SECONDS / seconds(n), 1, 50))
        return min(seconds(n) for _ in range(more)) / n

    @property
    def sequential(self) -> Trial:
        """The sequential chain, as a trial."""
        seconds = self.sequential_seconds
        return Trial(1, DEFAULT_RULE, DEFAULT_CURVATURE, None, 0.0, 1e6 * seconds)

    def run_seconds(self, trial: Trial) -> float:
        """Time of the run's draws in a trial's way; infinity where their number is not known."""
        return np.inf if self.most is None else 1e-6 * self.most * trial.microseconds

    @cached_property
    def n_transitions(self) -> int:
        """Transitions to solve in each way."""
        return int(np.clip(_TRIAL_SECONDS / self.sequential_seconds, *_TRIAL_LENGTHS))

    def n_windowed(self, window: int) -> int:
        """Transitions to solve in windows of a width: one window at least, if the run has it."""
        n = max(self.n_transitions, window)
        return n if self.most is None else min(n, self.most)

    def fits(self, window: int) -> bool:
        """Whether windows of this width take a modest share of the memory free, and of time."""
        needed = self.n_chains * window * self.solver.bytes_per_state()
        in_memory = needed <= _MEMORY_SHARE * self.solver.free_memory()
        return in_memory and window * self.sequential_seconds <= _WINDOW_SECONDS

    def warm_up(self, window: int, rule: Rule) -> None:
        """Have the windows compiled."""
        tapes = self._rejected(2)
        self._solve_tapes(self._windowed(window, rule, None), tapes, DEFAULT_CURVATURE)

    def compile_together(self, windows: Sequence[int], rule: Rule) -> None:
        """Have windows of all these widths compiled at the same time, on the host's cores."""
        own = duplicate(self, solver=self.solver.for_threads())
        # Here, so that no thread finds or leaves another one's limit.
        with self.solver.one_blas_thread(), ThreadPoolExecutor() as pool:
            for compiled in [pool.submit(own.warm_up, window, rule) for window in windows]:
                error = compiled.exception()
                # Alone, a width may have room that it did not have beside others.
                if error is not None and not is_out_of_memory(error):
                    raise error

    def sweep_seconds(self, window: int, rule: Rule) -> float:
        """Time of one sweep over a window."""
        self.warm_up(window, rule)
        solver, n_sweeps = self._windowed(window, rule, None), 3
        tapes = self._rejected(n_sweeps * window)
        seconds, _, _ = self._solve_tapes(solver, tapes, DEFAULT_CURVATURE)
        more = [
            self._solve_tapes(solver, tapes, DEFAULT_CURVATURE)[0]
            for _ in range(int(np.clip(_TRIAL_SECONDS / seconds, 0, 2)))
        ]
        return min([seconds, *more]) / n_sweeps

    def break_even(self, window: int, rule: Rule) -> float:
        """Sweeps that take as long as the transitions of one window do step by step."""
        return window * self.sequential_seconds / self.sweep_seconds(window, rule)

    def run(self, window: int, rule: Rule, max_sweeps: int | None) -> Trial:
        """The best bound c for one width and rule, in at most so many sweeps a window."""
        solver, n = self._windowed(window, rule, max_sweeps), self.n_windowed(window)
        self._solve(solver, 2, DEFAULT_CURVATURE)
        found = []
        for curvature in self.curvatures or _CURVATURES[rule]:
            seconds, n_swept, n_sweeps = self._solve(solver, n, curvature)
            if n_swept == n:
                found.append((n_sweeps, seconds, curvature))
        if not found:
            return Trial(window, rule, DEFAULT_CURVATURE, max_sweeps, np.inf, np.inf)
        n_sweeps, seconds, curvature = min(found)
        seconds = min(seconds, self._solve(solver, n, curvature)[0])
        return Trial(window, rule, curvature, max_sweeps, 1000 * n_sweeps / n, 1e6 * seconds / n)

    def _windowed(self, window: int, rule: Rule, max_sweeps: int | None) -> Solver:
        return in_windows(self.solver.with_rule(rule), window, max_sweeps)

    def _solve(self, solver: Solver, n: int, curvature: float) -> tuple[float, int, int]:
        """Seconds, and transitions solved in windows and sweeps of the slowest chain, for the first
        n transitions.
        """
        return self._solve_tapes(solver, self._tapes(n), curvature)

    def _rejected(self, n: int) -> list[Tape]:
        """Noise with which nothing is accepted: the first guess is right, one sweep a window."""
        return [replace(tape, log_u=np.full(n, np.inf)) for tape in self._tapes(n)]

    def _tapes(self, n: int) -> list[Tape]:
        """Noise of each chain."""
        size, draw = len(self.pilot.z), self.solver.draw_momenta
        streams = [Streams.spawn(rng) for rng in np.random.default_rng(1).spawn(self.n_chains)]
        return [chain.tape(n, size, self.pilot.tuning, draw) for chain in streams]

    def _solve_tapes(
        self, solver: Solver, tapes: Sequence[Tape], curvature: float
    ) -> tuple[float, int, int]:
        tuning = replace(self.pilot.tuning, curvature=curvature)
        rngs = np.random.default_rng(2).spawn(len(tapes))
        requests = [
            TapedRequest(self.pilot.z, tape, tuning, rng)
            for tape, rng in zip(tapes, rngs, strict=True)
        ]
        start = time.perf_counter()
        solved = solver.run_together(requests, self.pilot.params, solver.plan.capacity)
        seconds = time.perf_counter() - start
        n_swept = min(len(found) - found.n_fallback for found in solved)
        return seconds, n_swept, max(found.n_sweeps for found in solved)
