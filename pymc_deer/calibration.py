"""Choosing how windows are solved: their width, the Jacobian rule, the curvature bound c.

None of it changes the states by more than the tolerance, so it may follow the clock. It is decided
once, before the chains, on a pilot chain whose noise no chain shares: a run that is given the
values found repeats the run that found them to the last bit.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property

import numpy as np

from pymc_deer.adaptation import Warmup
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.chain import Chain, ChainRecord
from pymc_deer.jacobian import Rule
from pymc_deer.noise import Tape
from pymc_deer.plan import SHORTEST_CALL, window_plan
from pymc_deer.start import Start
from pymc_deer.status import BackendError
from pymc_deer.stretch import Streams

DEFAULT_RULE: Rule = "secant"
DEFAULT_CURVATURE = 1.5

PILOT_DRAWS = 400
"""Warm-up draws of the pilot chain: enough for a metric good to a few per cent, hence for the
number of sweeps that the chains will need."""

_PILOT_SECONDS = 10.0
_TRIAL_SECONDS = 0.5
"""Time for the pilot chain, and for its transitions that are then solved in every way."""

_WINDOW_SECONDS = 5.0
"""Time that the transitions of one window may take step by step, for that width to be tried."""

_TRIAL_LENGTHS = (128, 1024)

_CURVATURES: dict[Rule, tuple[float, ...]] = {
    "preconditioned": (1.0, 1.25, 1.5, 2.0, 3.0),
    "secant": (1.0, 1.5),
    "stochastic": (1.0, 1.5, 2.0),
}
_LEAST_SWEEPS = 6
"""Wide windows take no fewer sweeps than this, even in perfect whitening."""

_LEAST_WORK = 2 * _LEAST_SWEEPS
"""Gradients that a window evaluates for one of the sequential chain, at least: two a sweep."""

_PATIENCE = 1.5
"""Sweeps allowed to a window, in units of those at which it no longer pays."""

WORTH_LEAVING = 1.1
"""Speed over the sequential chain from which windows are used: below it lies the clock's noise."""

_MEMORY_SHARE = 0.25
"""Share of the memory free that windows which are tried may take."""

_WIDTHS = {"cpu": (16, 64, 256, 1024), "gpu": (64, 256, 1024, 4096, 16384)}
_FIRST_WIDTH = 256
_SLOW_START = 64
"""Widths up to it may converge in fewer than the least sweeps of wide ones."""


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
class Calibration:
    """How the chains' windows are solved, and why.

    Attributes
    ----------
    window, jacobian, curvature, max_sweeps
        Values for the arguments of the same names; with them a run repeats itself.
    reason
        Why, in words.
    trials
        The measurements, the sequential chain's first; empty if nothing had to be measured.
    """

    window: int
    jacobian: Rule
    curvature: float
    max_sweeps: int | None
    reason: str
    trials: tuple[Trial, ...] = ()

    @property
    def attrs(self) -> dict[str, str | int | float]:
        """As attributes of InferenceData: numbers and strings, the measurements in JSON."""
        return {
            "deer_window": self.window,
            "deer_jacobian": self.jacobian,
            "deer_curvature": self.curvature,
            "deer_max_sweeps": -1 if self.max_sweeps is None else self.max_sweeps,
            "deer_reason": self.reason,
            "deer_trials": json.dumps([trial.report for trial in self.trials]),
        }


@dataclass(frozen=True)
class Pilot:
    """A warmed-up chain to measure on: whitened state (D,), tuning, and parameter values."""

    z: np.ndarray
    tuning: Tuning
    params: Sequence[np.ndarray]


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
    tuning = chain.record.warmup.tuning
    return Pilot(tuning.metric.to_z(x), tuning, params)


class Trials:
    """Solves the same pilot transitions in different ways.

    Parameters
    ----------
    solver
        Any solver of the density on the backend.
    pilot
        Where to start, and with which tuning.
    curvatures
        Bounds c to try; None for each rule's own.
    n_chains
        Chains that are solved in one call, each with transitions of its own. Times are of
        transitions that all of them make, side by side.
    """

    def __init__(
        self,
        solver: Solver,
        pilot: Pilot,
        curvatures: Sequence[float] | None = None,
        n_chains: int = 1,
    ) -> None:
        self.pilot, self.curvatures, self.n_chains = pilot, curvatures, n_chains
        plan = replace(solver.plan, window=1, max_sweeps=None)
        self.solver = solver.with_plan(plan)

    @cached_property
    def sequential_seconds(self) -> float:
        """Time of one transition of the sequential chain."""
        # Few, where a single one takes long.
        self._solve(self.solver, 2, 1.0)
        of_two, _, _ = self._solve(self.solver, 2, 1.0)
        n = int(np.clip(2 * _TRIAL_SECONDS / of_two, 2, SHORTEST_CALL // 2))
        seconds, _, _ = self._solve(self.solver, n, 1.0)
        # A second look where the first was too short for the clock.
        more = int(np.clip(0.02 / seconds, 1, 50))
        return min(self._solve(self.solver, n, 1.0)[0] for _ in range(more)) / n

    @property
    def sequential(self) -> Trial:
        """The sequential chain, as a trial."""
        seconds = self.sequential_seconds
        return Trial(1, DEFAULT_RULE, DEFAULT_CURVATURE, None, 0.0, 1e6 * seconds)

    @cached_property
    def n_transitions(self) -> int:
        """Transitions to solve in each way."""
        return int(np.clip(_TRIAL_SECONDS / self.sequential_seconds, *_TRIAL_LENGTHS))

    def fits(self, window: int) -> bool:
        """Whether windows of this width take a modest share of the memory free, and of time."""
        needed = self.n_chains * window * self.solver.bytes_per_state()
        in_memory = needed <= _MEMORY_SHARE * self.solver.free_memory()
        return in_memory and window * self.sequential_seconds <= _WINDOW_SECONDS

    def warm_up(self, window: int, rule: Rule) -> None:
        """Have the windows compiled."""
        tapes = self._rejected(2)
        self._solve_tapes(self._windowed(window, rule, None), tapes, DEFAULT_CURVATURE)

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
        solver, n = self._windowed(window, rule, max_sweeps), max(self.n_transitions, window)
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
        plan = window_plan(window, max_sweeps, self.solver.plan.tol, self.solver.density)
        return self.solver.with_rule(rule).with_plan(plan)

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


def rule_windows_out(solver: Solver, params: Sequence[np.ndarray]) -> Calibration | None:
    """The sequential chain, where no measurement could favour anything else; otherwise None."""
    gain = solver.batch_gain_bound(params)
    if gain >= _LEAST_WORK:
        return None
    reason = (
        f"Windows evaluate at least {_LEAST_WORK} times the gradients of the sequential chain, and "
        f"here a batch of this model can be at most {gain:.0f} times cheaper a state."
    )
    return Calibration(1, DEFAULT_RULE, DEFAULT_CURVATURE, None, reason)


def choose_window(trials: Trials, rules: Sequence[Rule], device: str) -> Calibration:
    """The width, rule and c with the most transitions a second, the sequential chain included.

    Parameters
    ----------
    rules
        Rules allowed; the first one chooses the width.
    device
        ``cpu`` or ``gpu``.
    """
    sequential = trials.sequential
    widths = [w for w in _WIDTHS[device] if trials.fits(w)]
    found = _search(trials, widths, rules[0])
    best = min([sequential, *found], key=_time)
    if WORTH_LEAVING * best.microseconds > sequential.microseconds:
        reason = "No window was faster than the sequential chain."
        return Calibration(1, rules[0], DEFAULT_CURVATURE, None, reason, (sequential, *found))
    best, others = _best_rule(trials, best, rules[1:])
    speed = sequential.microseconds / best.microseconds
    reason = f"Windows of {best.window} were {speed:.1f} times as fast as the sequential chain."
    if trials.n_chains > 1:
        reason += f" This is of {trials.n_chains} chains in one batch."
    return _calibration(best, reason, (sequential, *found, *others))


def choose_curvature(
    trials: Trials, window: int, rules: Sequence[Rule], max_sweeps: int | None
) -> Calibration:
    """The rule and c with the most transitions a second for windows of a given width."""
    first = trials.run(window, rules[0], max_sweeps)
    best, others = _best_rule(trials, first, rules[1:])
    reason = f"The fastest rule and bound c for windows of {window}."
    if not np.isfinite(best.microseconds):
        reason = f"With no bound c did windows of {window} converge in the sweeps allowed."
    return _calibration(best, reason, (trials.sequential, first, *others))


def _search(trials: Trials, widths: Sequence[int], rule: Rule) -> list[Trial]:
    """Trials from the middle width outwards, each way for as long as they get faster."""
    middle = max((i for i, width in enumerate(widths) if width <= _FIRST_WIDTH), default=None)
    if middle is None:
        return []
    found: list[Trial] = []
    for path in (widths[middle:], widths[:middle][::-1]):
        for width in path:
            break_even = trials.break_even(width, rule)
            if break_even < _LEAST_SWEEPS and width > _SLOW_START:
                if not found:
                    return [Trial(width, rule, DEFAULT_CURVATURE, None, np.inf, np.inf)]
                break
            limit = min(width, int(np.ceil(_PATIENCE * break_even)))
            found.append(trials.run(width, rule, limit))
            if found[-1] is not min(found, key=_time):
                break
    return found


def _best_rule(
    trials: Trials, first: Trial, rules: Sequence[Rule]
) -> tuple[Trial, tuple[Trial, ...]]:
    """The fastest of a trial and of the other rules, which are tried where sweeps are many."""
    others = []
    for rule in rules:
        if first.sweeps_per_1000 * first.window <= 2000 * _LEAST_SWEEPS:
            break
        try:
            others.append(trials.run(first.window, rule, first.max_sweeps))
        except BackendError:
            # The backend has no Hessian-vector products for this model: the rule is not for it.
            continue
    return min([first, *others], key=_time), tuple(others)


def _calibration(best: Trial, reason: str, trials: tuple[Trial, ...]) -> Calibration:
    rule = best.jacobian
    return Calibration(best.window, rule, best.curvature, best.max_sweeps, reason, trials)


def _time(trial: Trial) -> float:
    return trial.microseconds
