"""One chain, stretch by stretch: tape, solver and warm-up put together.

A stretch is solved in one call and handed out draw by draw. The chain's own record stays at the
start of the stretch until all its draws are out, so that the record is small and complete: from it
the same stretch can be solved again and taken up in the middle.
"""

from collections.abc import Generator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace

import numpy as np

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.trajectory import REPORTED, SOLVED, Trajectory
from pymc_deer.chains.plan import in_windows
from pymc_deer.chains.stretch import SolvedStretch, Streams, Task
from pymc_deer.duplicate import duplicate
from pymc_deer.lockstep import in_lockstep
from pymc_deer.metric import Metric
from pymc_deer.noise import Tape
from pymc_deer.start import Start
from pymc_deer.status import narrowed_window, slow_mixing
from pymc_deer.warmup.adaptation import Warmup, observe
from pymc_deer.warmup.metric_estimate import first_metric
from pymc_deer.warmup.mixing import BatchMeans

_SLOW = 10.0
"""Autocorrelation time, in draws kept, from which the user is told: 1000 draws are then worth fewer
than the 100 that R-hat and effective sample sizes need of each chain."""

_ENOUGH_DRAWS = 200
"""Draws from which such an autocorrelation time can be told from a lack of draws."""

_LEAST_FILLED = 4
"""Share of a window, one in so many, that a stretch must fill for its sweeps to be worth it: that
of a device which solves wide windows several times as fast as it goes step by step."""

_MOST_PLACES = 100
"""Divergent draws of a chain whose places are found: as many as NUTS in PyMC keeps."""

_STEP_SIZE_TRIALS = 50
"""Halvings or doublings of the first step size: 2^-50 is as good as 0."""


@dataclass
class ChainRecord:
    """All that is needed to go on with a chain; plain arrays and numbers.

    Attributes
    ----------
    x
        State before the current stretch, shape (D,).
    streams
        Generators as they were before the current stretch.
    warmup
        Adaptation as it was before the current stretch.
    n_tune_left, n_draws_left
        Recorded draws still to come, those of the current stretch included.
    stretch_draws, handed_out
        Length of the current stretch in draws, and how many of them are out.
    narrowing
        How many times the window was narrowed because its sweeps ran out.
    warned
        Whether the user has been told that windows were too wide.
    kept
        Batch means of the draws after warm-up.
    divergences
        Draws after warm-up in which a transition diverged.
    ahead
        Most draws to solve ahead, where others have moved the chain or its data; otherwise None.
    z
        x in the coordinates of the metric, as the solver left it, shape (D,); None if only x is
        known. Computed from x it would differ in the last bits, by where stretches end.
    """

    x: np.ndarray
    streams: Streams
    warmup: Warmup
    n_tune_left: int
    n_draws_left: int
    stretch_draws: int = 0
    handed_out: int = 0
    narrowing: int = 0
    warned: bool = False
    kept: BatchMeans = field(default_factory=BatchMeans)
    divergences: int = 0
    ahead: int | None = None
    z: np.ndarray | None = None


def begin_together(
    chains: Sequence["Chain"],
    starts: Sequence[Start],
    metric: Metric,
    params: Sequence[np.ndarray],
) -> None:
    """Put chains at their starts with the same metric, each with a step size of its own."""
    solver = chains[0].solver_for(1)

    def solve(asked: Sequence[TapedRequest]) -> Sequence[Trajectory]:
        return solver.run_together(asked, params, 1)

    pairs = zip(chains, starts, strict=True)
    in_lockstep([chain.trials(start, metric) for chain, start in pairs], solve)


class Chain:
    """Hands out draws of one chain.

    Parameters
    ----------
    solver
        Compiled solver of the chain's density.
    record
        Where the chain stands; taken over, and kept up to date.
    """

    def __init__(self, solver: Solver, record: ChainRecord) -> None:
        self.solver = solver
        self.record = record
        self._solved: SolvedStretch | None = None

    @property
    def position(self) -> np.ndarray:
        """State of the last draw handed out, shape (D,)."""
        record = self.record
        if self._solved is None or record.handed_out == 0:
            return record.x
        return self._solved.draws[record.handed_out - 1]

    def resume(self, params: Sequence[np.ndarray]) -> None:
        """Solve again the stretch that a restored record stands in the middle of."""
        if self._solved is None and self.record.handed_out:
            self._solved = self.task().solve(params)

    def move(self, x: np.ndarray) -> None:
        """Go on from x: draws solved in advance are dropped, and their noise, not seen, is next."""
        self._drop()
        self.record.x, self.record.z = x, None

    def begin(self, start: Start, params: Sequence[np.ndarray]) -> None:
        """Put the chain at its start, with a metric and a step size that suit the place."""
        metric = first_metric(self.solver.spec.metric, [start])
        begin_together([self], [start], metric, params)

    def trials(self, start: Start, metric: Metric) -> Generator[TapedRequest, Trajectory, None]:
        """Put the chain at its start, with this metric and a step size that suits the place.

        What the user fixed stays. The step size is halved or doubled until the acceptance of one
        transition crosses 1/2 (Hoffman and Gelman 2014, algorithm 4): each yields the transition to
        solve, and is sent what was found.
        """
        record = self.record
        record.x, record.z = start.x, None
        record.warmup.whiten(metric)
        if not record.warmup.wants_step_size:
            return
        tuning, rng, x = record.warmup.tuning, record.streams.start, start.x
        noise = Tape(self.solver.draw_momenta(rng, 1, len(x)), np.zeros(1))
        z = self._to_z(x)
        step_size, direction = tuning.step_size, 0.0
        for _ in range(_STEP_SIZE_TRIALS):
            trial = replace(tuning, step_size=step_size)
            found = yield TapedRequest(z, noise, trial, record.streams.probes)
            here = 1.0 if acceptance_rates(found.log_alpha)[0] > 0.5 else -1.0
            if here == -direction:
                # Going up, the last step that was still accepted.
                step_size *= 0.5 if here < 0 else 1.0
                break
            direction = here
            step_size *= 2.0**direction
        record.warmup.begin_at(step_size)

    def next_draw(
        self, params: Sequence[np.ndarray], *, tuning: bool, alone: bool
    ) -> tuple[np.ndarray, dict[str, object]]:
        """The next recorded draw, shape (D,), and its statistics.

        Parameters
        ----------
        params
            Values of the density's parameters; the same for all draws of a stretch.
        tuning
            Whether the draw belongs to warm-up.
        alone
            Whether nothing else moves between draws, so that more than one can be solved ahead.
        """
        # A stretch of one draw is over sooner than BLAS is limited for each part of it; windows ask
        # how many threads it may have.
        is_short = not alone and self.solver.plan.window == 1
        with self.solver.one_blas_thread() if is_short else nullcontext():
            return self._next_draw(params, tuning=tuning, alone=alone)

    def _next_draw(
        self, params: Sequence[np.ndarray], *, tuning: bool, alone: bool
    ) -> tuple[np.ndarray, dict[str, object]]:
        if self._solved is not None and not self._solved.assumes(params):
            self._drop()
        if not tuning:
            self.end_warmup()
        record = self.record
        if self._solved is None:
            if record.stretch_draws == 0:
                record.stretch_draws = self._choose_length(tuning, 1) if alone else 1
            self._solved = self.task(self.stride).solve(params)
        i = record.handed_out
        x = self._solved.draws[i]
        stats = {name: column[i] for name, column in self._solved.statistics.items()}
        stats |= {"tune": tuning, "divergence": None}
        if stats["diverging"] and not tuning and stats["divergences"] <= _MOST_PLACES:
            if self._solved.trajectory.stride > 1:
                # The same once more, with the states between draws.
                self._solved = self.task().solve(params)
            with self.solver.one_blas_thread():
                stats["divergence"] = self._solved.divergence(i)
        # Behind all that takes time: an interrupt before it leaves the draw to come.
        if i + 1 < record.stretch_draws:
            record.handed_out = i + 1
        else:
            self._commit(i + 1)
        stats["warning"] = None if tuning else self.warning()
        return x, stats

    def _drop(self) -> None:
        """Drop the draws that were solved ahead, and for now solve hardly any."""
        self._commit(self.record.handed_out)
        self.record.ahead = 1

    def end_warmup(self) -> None:
        """Fix what was tuned, whether or not all draws of warm-up were asked for."""
        if self.record.n_tune_left:
            self._commit(self.record.handed_out)
            self.record = duplicate(self.record, n_tune_left=0)
        if not self.record.warmup.finished:
            warmup = self.record.warmup.copy()
            warmup.finish()
            self.record = duplicate(self.record, warmup=warmup)

    def take_steps(self, steps_per_draw: int) -> None:
        """Take so many transitions for each of the draws to keep."""
        warmup = duplicate(self.record.warmup, steps_per_draw=steps_per_draw)
        self.record = duplicate(self.record, warmup=warmup)

    def begin_stretch(self, calls: int, *, tuning: bool) -> Task:
        """The next stretch, for a caller that takes all of its draws.

        It is as long as `calls` that each solve :attr:`draws_at_once`, and is solved in such calls:
        so their number leaves no trace in the states.
        """
        n_draws = self._choose_length(tuning, calls)
        self.record = duplicate(self.record, stretch_draws=n_draws)
        return self.task(self.stride)

    @property
    def draws_at_once(self) -> int:
        """Most draws that one call may solve."""
        return max(1, self.solver.plan.capacity // self.record.warmup.steps_per_draw)

    def after(self, solved: SolvedStretch, n: int) -> ChainRecord:
        """The record behind n draws of a stretch; warm-up has yet to learn from them."""
        record = duplicate(self.record, stretch_draws=0, handed_out=0)
        # Copies: views would keep the whole stretch. Draws of warm-up may not be asked for.
        kept = record.warmup.finished
        record.x = (solved.draws[n - 1] if kept else solved.draw(n - 1)).copy()
        record.z = solved.whitened[n - 1].copy()
        record.streams, record.warmup = solved.streams, record.warmup.copy()
        if kept:
            record.divergences = int(solved.columns["divergences"][n - 1])
        if n < self.record.stretch_draws:
            n_used, size = n * solved.steps_per_draw, len(record.x)
            # Probes only shape guesses: those of what is dropped may come again.
            record.streams = self.record.streams.branch(sweeps=False)
            record.streams.tape(n_used, size, solved.tuning, self.solver.draw_momenta)
        elif record.ahead is not None:
            # None of them was in vain.
            record.ahead = 2 * record.ahead if record.ahead < self.draws_at_once else None
        if record.n_tune_left:
            record.n_tune_left = max(0, record.n_tune_left - n)
        else:
            record.n_draws_left -= n
        return record

    def go_on(self, record: ChainRecord, solved: SolvedStretch, n: int) -> None:
        """Go on from a record behind n draws of a stretch.

        The next windows are narrower if those of the stretch did not pay, until the next metric.
        """
        if record.warmup.tuning.metric is not solved.tuning.metric:
            record.narrowing, record.z = 0, None
        elif solved.trajectory.n_fallback and n == self.record.stretch_draws:
            # What is dropped comes again, on the same noise: it may not decide how it is solved.
            record.narrowing += 1
        if record.warmup.finished:
            record.kept = record.kept.copy()
            record.kept.add(record.warmup.turned_back(solved.draws[:n]))
        self.record, self._solved = record, None

    def _choose_length(self, tuning: bool, calls: int) -> int:
        """Draws to solve ahead, at most.

        A function of the record alone but for the number of calls, not of the clock: cutting the
        tape elsewhere would change the states within the tolerance, and one seed gives one result.
        """
        record = self.record
        left = record.n_tune_left if tuning else record.n_draws_left
        if left <= 0:
            return 1
        limits = (left, self.draws_at_once * calls, record.warmup.draws_to_boundary, record.ahead)
        return min(limit for limit in limits if limit)

    @property
    def stride(self) -> int:
        """Of how many states one is kept: behind warm-up, which learns from all, only draws are."""
        warmup = self.record.warmup
        return warmup.steps_per_draw if warmup.finished else 1

    def task(self, stride: int = 1) -> Task:
        """The current stretch, in which one state in every `stride` is kept.

        All are kept where a draw takes more than one call.
        """
        record = self.record
        steps, tuning = record.warmup.steps_per_draw, record.warmup.tuning
        z = self._to_z(record.x) if record.z is None else record.z
        draws, streams = record.stretch_draws, record.streams
        solver = self.solver_for(draws * steps)
        stride = stride if steps <= solver.plan.capacity else 1
        asked, divergences = SOLVED, None
        if record.warmup.finished:
            asked, divergences = REPORTED, record.divergences
        return Task(solver, z, tuning, draws, steps, streams, stride, asked, divergences)

    def _to_z(self, x: np.ndarray) -> np.ndarray:
        with self.solver.one_blas_thread():
            return self.record.warmup.tuning.metric.to_z(x)

    def solver_for(self, n: int) -> Solver:
        """The solver for n transitions: step by step, where most of a window would be empty."""
        solver = self._narrowed_solver
        if solver.sweeps_whole_windows and n < solver.plan.window // _LEAST_FILLED:
            return in_windows(solver, 1, solver.plan.max_sweeps)
        return solver

    @property
    def _narrowed_solver(self) -> Solver:
        """The solver, or one of narrower windows where the sweeps of wider ones ran out."""
        if self.record.narrowing == 0:
            return self.solver
        return self.solver.with_plan(self.solver.plan.narrowed(self.record.narrowing))

    def _commit(self, n: int) -> None:
        """Move the record past n draws of the stretch: all of it or, interrupted, none."""
        solved = self._solved
        if solved is None or n == 0:
            self.record = duplicate(self.record, stretch_draws=0, handed_out=0)
            self._solved = None
            return
        with self.solver.one_blas_thread():
            record = self.after(solved, n)
            observe([record.warmup], [solved.trajectory.first(n * solved.steps_per_draw)], n)
        self.go_on(record, solved, n)

    def warning(self) -> str | None:
        """What the user should know about the draws kept: each thing once."""
        messages = [self.narrowing_warning()]
        if not self.record.n_draws_left:
            messages.append(mixing_warning([self]))
        return " ".join(filter(None, messages)) or None

    def narrowing_warning(self) -> str | None:
        """That windows were too wide, once."""
        record = self.record
        if not record.narrowing or record.warned:
            return None
        record.warned = True
        return narrowed_window(self.solver.plan.window, self._narrowed_solver.plan.window)

    @property
    def few_effective(self) -> float | None:
        """What the draws kept are worth in the slowest direction, where that is too little."""
        kept = self.record.kept
        if kept.count < _ENOUGH_DRAWS:
            return None
        time = kept.autocorrelation_time()
        return kept.count / time if time > _SLOW else None


def mixing_warning(chains: Sequence[Chain]) -> str | None:
    """What the user should know of those among chains of one run that mix slowly, if any."""
    few = [n for chain in chains if (n := chain.few_effective) is not None]
    if not few:
        return None
    record = chains[0].record
    steps, n_leapfrog = record.warmup.steps_per_draw, record.warmup.tuning.lengths[0]
    return slow_mixing(record.kept.count, few, len(chains), steps, n_leapfrog)
