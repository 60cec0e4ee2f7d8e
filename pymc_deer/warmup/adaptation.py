"""Warm-up: step size, metric and steps per draw, adapted between stretches of chain.

Within a stretch nothing changes, so that it can be solved in windows. What is decided here follows
from the tape alone, never from timings.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite

import numpy as np

from pymc_deer.acceptance import TargetAccept, acceptance_rates
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.duplicate import duplicate
from pymc_deer.metric import Metric
from pymc_deer.path_length import FIRST_LENGTH, MAX_STEPS, PathLength
from pymc_deer.warmup.angles import Angles
from pymc_deer.warmup.dual_averaging import DualAveraging
from pymc_deer.warmup.path_statistics import TOO_MANY_TRANSITIONS
from pymc_deer.warmup.schedule import Stretch
from pymc_deer.warmup.thinning import affordable_steps, steps_per_draw
from pymc_deer.warmup.window import WarmupWindow

_BATCHES_PER_STRETCH = 2
_ENOUGH_TRANSITIONS = 1000
"""Of all chains, from which a window may shorten paths even if another one follows it."""

_ENOUGH_FOR_DIVERGENCES = 500
"""Transitions of all chains from which a window's metric is good enough for those to count."""

_CERTAIN = 1.5
"""Times of the few transitions behind the last metric may be too short by as much."""


@dataclass(frozen=True)
class Learned:
    """What a window of warm-up teaches, as in :class:`Warmup`: the same for all chains that learn
    together.
    """

    metric: Metric
    path: PathLength
    target: TargetAccept
    steps_per_draw: int
    batch_time: float | None
    rising: bool = False


@dataclass
class Warmup:
    """State of one chain's adaptation; plain numbers and arrays, cheap to copy.

    Attributes
    ----------
    tuning
        What the next stretch is run with.
    steps_per_draw
        Transitions for each recorded draw, now.
    tuned_steps_per_draw
        The same once warm-up is over.
    thinning
        Transitions for a recorded draw, in autocorrelation times of the slowest coordinate.
    white
        Eigenvalues within [1 / white, white] that a ``low_rank`` metric leaves alone.
    path
        How many leapfrog steps a transition takes.
    target
        The acceptance rate to tune the step size to.
    batch_time
        Transitions for an independent draw by batch means, with the metric before this one; None
        where no path length was looked for.
    angles
        Columns of the state that are angles, shape (A,), which may go around.
    rising
        Whether there may be chains on their way to the typical set.
    finished
        Whether the tuned values are fixed.
    window
        What the chains have shown that learn together: the same for all of them.
    """

    tuning: Tuning
    steps_per_draw: int
    tuned_steps_per_draw: int
    schedule: list[Stretch]
    dual_averaging: DualAveraging | None
    adapts_metric: bool
    adapts_steps: bool
    thinning: float
    white: float
    path: PathLength
    target: TargetAccept
    angles: np.ndarray
    batch_time: float | None = None
    rising: bool = True
    finished: bool = False
    done: int = 0
    position: int = 0
    accepted: float = 0.0
    seen: int = 0
    window: WarmupWindow = field(default_factory=WarmupWindow)

    def copy(self) -> "Warmup":
        """One that learns without this one's knowing."""
        return duplicate(
            self, dual_averaging=self.dual_averaging and duplicate(self.dual_averaging)
        )

    @property
    def draws_to_boundary(self) -> int:
        """Draws until something is adapted; 0 once the schedule is through."""
        if self.done == len(self.schedule):
            return 0
        return self.schedule[self.done].n_draws - self.position

    @property
    def _is_new(self) -> bool:
        return self.done == self.position == 0

    @property
    def wants_step_size(self) -> bool:
        """Whether warm-up is about to begin and no step size is known yet."""
        return self.dual_averaging is not None and self._is_new

    def whiten(self, metric: Metric) -> None:
        """Begin warm-up with a metric found to be reasonable."""
        if self.adapts_metric and self.schedule and self._is_new:
            self.tuning = duplicate(self.tuning, metric=metric)

    def begin_at(self, step_size: float) -> None:
        """Begin to average anew, from a step size found to be reasonable."""
        if self.dual_averaging is not None:
            self.dual_averaging = DualAveraging.at(step_size, self.target.rate)
            self.go_on_with(step_size)

    @property
    def stretch(self) -> Stretch:
        """The piece of warm-up that goes on."""
        return self.schedule[self.done]

    def add(self, trajectory: Trajectory, n_draws: int) -> None:
        """Take in a solved stretch of at most ``draws_to_boundary`` draws."""
        self.accepted += float(acceptance_rates(trajectory.log_alpha).sum())
        self.seen += len(trajectory)
        self.position += n_draws

    def extended_window(self, trajectories: Sequence[Trajectory]) -> WarmupWindow:
        """The window behind a solved stretch of each chain that learns together."""
        stretch = self.stretch
        final = not stretch.explores and self.path.adapts
        if not (final or stretch.learns_metric):
            return self.window
        window, metric = self.window, self.tuning.metric
        if len(self.angles):
            window = window.with_angles(self.angles, metric, trajectories)
            trajectories = window.turned_back(metric, trajectories)
        if final:
            return window.with_paths(trajectories)
        batch = -(-stretch.n_draws * self.steps_per_draw // _BATCHES_PER_STRETCH)
        window = window.extended(trajectories, metric, batch)
        looks_for_paths = self.path.adapts and not self._descends
        return window.with_paths(trajectories) if looks_for_paths else window

    def turned_back(self, x: np.ndarray) -> np.ndarray:
        """Draws (n, D) whose angles are all within half a turn of the metric's centre."""
        if not len(self.angles):
            return x
        return Angles.about(self.angles, self.tuning.metric.mu[self.angles]).turned_back_in_x(x)

    def finish(self) -> None:
        """Fix the tuned values for the draws to keep."""
        step_size = self.tuning.step_size
        if self.dual_averaging is not None and self.dual_averaging.count:
            step_size = self.dual_averaging.average
        self.finished = True
        self.done = len(self.schedule)
        self.go_on_with(step_size)
        self.window = WarmupWindow()
        steps = self.tuned_steps_per_draw
        self.steps_per_draw = steps
        if self.adapts_steps:
            self.steps_per_draw = min(steps, affordable_steps(self.tuning.lengths[1]))

    def learn(self) -> Learned | None:
        """What the window teaches if it ends here and has seen anything."""
        if self.done == len(self.schedule) - 1 and not self.stretch.explores:
            steps = self._steps_with_last_metric()
            return Learned(self.tuning.metric, self.path, self.target, steps, self.batch_time)
        if not self.stretch.ends_window or not self.window.halves:
            return None
        apart, n_seen = self.window.has_chains_apart, self.window.n_seen
        window = self.window if apart else self.window.as_one_chain()
        time, path, old = window.autocorrelation_time(), self.path, self.tuning.metric
        metric = window.estimate(old, self.white) if self.adapts_metric else window.centred(old)
        # By how much lengths grow where the metric changes.
        growth, batch_time = float(np.median(old.scales / metric.scales)), None
        if path.adapts and (found := window.best_path(self._shortest_path(growth))):
            length, single, batch_time = found
            # By shorter paths, what is slow is slower than the batches were.
            batch_time *= max(1.0, min(path.length, self._longest_path) / length)
            time = max(single, batch_time)
            least = self._least_length(n_seen, single, growth)
            path = replace(path, length=max(growth * length, least))
        steps = self.tuned_steps_per_draw
        if self.adapts_steps and time is not None and isfinite(time):
            # Chains that do not meet are worth no more if they are thinned.
            steps = steps_per_draw(time * self.thinning, len(old.mu))
            _, n_leapfrog = path.lengths(growth * self.step_size_of_draws, learning=False)
            steps = min(steps, affordable_steps(n_leapfrog))
            steps = min(steps, self.steps_per_draw) if apart else steps
        target = self.target
        rising = self.rising and self.window.has_chains_rising(len(old.mu))
        # On the way to the typical set energies are far larger than there.
        counts = n_seen >= _ENOUGH_FOR_DIVERGENCES and not rising
        if self.dual_averaging is not None and counts:
            target = target.behind(self.window.n_unstable, n_seen / steps)
        return Learned(metric, path, target, steps, batch_time, rising)

    def _steps_with_last_metric(self) -> int:
        """Transitions for a recorded draw, from what single ones show behind the last metric.

        Those of the window before were seen with the metric before it, which in a short warm-up is
        much the worse one. Batches are too short here: what only they have shown stays.
        """
        single = self.window.paths and self.window.paths.as_one_chain().time
        if not self.adapts_steps or self.batch_time is None or single is None:
            return self.tuned_steps_per_draw
        time = max(self.batch_time, _CERTAIN * single)
        steps = steps_per_draw(time * self.thinning, len(self.tuning.metric.mu))
        return min(steps, self.tuned_steps_per_draw)

    @property
    def _longest_path(self) -> float:
        return MAX_STEPS * self.tuning.step_size

    @property
    def step_size_of_draws(self) -> float:
        """What it would be if warm-up ended here."""
        averaging = self.dual_averaging
        return self.tuning.step_size if averaging is None else averaging.average

    def _shortest_path(self, growth: float) -> float:
        """Two steps, by the step size that the draws would have.

        They go no further than the first length does, with a metric in which lengths are that much
        larger.
        """
        return min(2 * self.step_size_of_draws, FIRST_LENGTH / growth)

    def _least_length(self, n_transitions: int, time: float, growth: float) -> float:
        """What a window may shorten paths to, in units of the metric that it teaches.

        Chains that have seen little of the posterior take any path for a long one. And where the
        best one leaves too many transitions to a draw, none that was tried is long enough.

        Parameters
        ----------
        n_transitions
            Of all chains, that the window has seen.
        time
            Of them, those that single ones say are worth a draw.
        growth
            By how much lengths are larger with the metric that it teaches.
        """
        if not any(stretch.learns_metric for stretch in self.schedule[self.done + 1 :]):
            return 0.0
        longer = min(2 * self.path.length, self._longest_path) * growth
        longer = longer if time > TOO_MANY_TRANSITIONS else 0.0
        return max(longer, FIRST_LENGTH if n_transitions < _ENOUGH_TRANSITIONS else 0.0)

    def adapt_step_size(self) -> None:
        """At the end of a stretch."""
        if self.dual_averaging is None:
            return
        rate = self.accepted / self.seen
        if self.stretch.explores:
            self.dual_averaging.seek(rate, self.seen, self.tuning.step_size)
        else:
            self.dual_averaging.update(rate)

    def go_on(self, learned: Learned | None) -> None:
        """To the next stretch, with what a window has taught if one has ended."""
        if learned is not None:
            self.path, self.tuned_steps_per_draw = learned.path, learned.steps_per_draw
            changed = self.adapts_metric and self.stretch.ends_window
            changed = changed or learned.target != self.target or self._has_sought
            was = self.tuning
            is_learnt = self.adapts_metric and learned.metric is not was.metric
            standardized = was.standardized or is_learnt
            self.tuning = duplicate(was, metric=learned.metric, standardized=standardized)
            self.target, self.batch_time = learned.target, learned.batch_time
            self.rising = learned.rising
            if changed and self.dual_averaging is not None:
                self.begin_at(self.dual_averaging.average)
            self.window = self.window.following()
        self.done += 1
        self.position, self.accepted, self.seen = 0, 0.0, 0
        averaging = self.dual_averaging
        self.go_on_with(self.tuning.step_size if averaging is None else averaging.current)

    @property
    def _has_sought(self) -> bool:
        """Whether the last window has ended, and its average may be beside a high target."""
        settles = self.stretch.ends_window and not self.schedule[self.done + 1].explores
        return settles and self.dual_averaging is not None and self.dual_averaging.exaggerates

    @property
    def _descends(self) -> bool:
        """Whether transitions are of a single step, until all chains have found the typical set.

        Longer paths keep the energy that a chain begins with, and lose little of it with each new
        momentum; a single step downhill is accepted whatever it loses. What the user has fixed
        stays so.
        """
        early = self.done < len(self.schedule) and self.stretch.is_early
        return early and self.path.adapts and self.rising

    def go_on_with(self, step_size: float) -> None:
        """Run what comes next with this step size, and paths that go with it."""
        stretch = None if self.done == len(self.schedule) else self.stretch
        learning = stretch is not None and stretch.explores and self.path.adapts
        if self.dual_averaging is not None and not learning:
            step_size = self.path.step_size(step_size)
        lengths = (1, 1) if self._descends else self.path.lengths(step_size, learning=learning)
        self.tuning = duplicate(self.tuning, step_size=step_size, lengths=lengths)


def observe(warmups: Sequence[Warmup], trajectories: Sequence[Trajectory], n_draws: int) -> None:
    """Learn from a stretch of at most ``draws_to_boundary`` draws that each chain has gone.

    Each chain tunes its own step size. Metric, path length and steps per draw are the same for all,
    learnt from the draws of all.
    """
    first = warmups[0]
    if first.done == len(first.schedule):
        return
    window = first.extended_window(trajectories)
    for warmup, trajectory in zip(warmups, trajectories, strict=True):
        warmup.add(trajectory, n_draws)
    is_over = first.draws_to_boundary == 0
    if is_over:
        window = window.at_stretch_end(trajectories)
    for warmup in warmups:
        warmup.window = window
    if is_over:
        # Whatever follows from a step size follows from the one in the middle.
        typical = sorted(warmups, key=lambda warmup: warmup.step_size_of_draws)[len(warmups) // 2]
        learned = typical.learn()
        for warmup in warmups:
            warmup.adapt_step_size()
            warmup.go_on(learned)
