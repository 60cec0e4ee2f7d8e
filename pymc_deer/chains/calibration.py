"""Choosing how windows are solved: their width, the Jacobian rule, the curvature bound c.

None of it changes the states by more than the tolerance, so it may follow the clock. It is decided
once, before the chains, on a pilot chain with noise of a fixed seed: a run that is given the values
found repeats the run that found them to the last bit.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import LEAST_SWEEPS
from pymc_deer.chains.trials import DEFAULT_CURVATURE, DEFAULT_RULE, Trial, Trials
from pymc_deer.jacobian import Rule
from pymc_deer.memory import is_out_of_memory
from pymc_deer.status import BackendError

_LEAST_WORK = 2 * LEAST_SWEEPS
"""Gradients that a window evaluates for one of the sequential chain, at least: two a sweep."""

_PATIENCE = 1.5
"""Sweeps allowed to a window, in units of those at which it no longer pays."""

WORTH_LEAVING = 1.1
"""Speed over the sequential chain from which windows are used: below it lies the clock's noise."""

_COMPILATION = 10.0
"""Seconds that windows of a width take to compile with a rule, about. A run that takes no longer
step by step has none, and one that takes no longer with those that are compiled has no others."""

_WIDTHS = {"cpu": (16, 64, 256, 1024), "gpu": (64, 256, 1024, 4096, 16384)}
_FIRST_WIDTH = {"cpu": 256, "gpu": 1024}
"""Widths that may be tried, and the first one that is. A GPU takes hardly longer for a sweep over
1024 states of a small model than for one over 64."""
_SLOW_START = 64
"""Widths up to it may converge in fewer than the least sweeps of wide ones."""


@dataclass(frozen=True)
class Calibration:
    """How the chains' windows are solved, and why.

    Attributes
    ----------
    window, jacobian, curvature, max_sweeps
        Values for the arguments of the same names, `max_sweeps` None for its default; with them a
        run repeats itself.
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


def rule_windows_out(solver: Solver, params: Sequence[np.ndarray]) -> Calibration | None:
    """The sequential chain, where no measurement could favour anything else; otherwise None."""
    gain = solver.batch_gain_bound(params)
    if gain >= _LEAST_WORK:
        return None
    reason = (
        f"Wide windows evaluate at least {_LEAST_WORK} times the gradients of the sequential "
        f"chain, and here a batch of this model can be at most {gain:.0f} times cheaper a state."
    )
    return _step_by_step(reason)


def choose_window(
    trials: Trials, rules: Sequence[Rule], device: str, max_sweeps: int | None = None
) -> Calibration:
    """The width, rule and c with the most transitions a second, the sequential chain included.

    That is the one of a run that takes less time than windows take to compile.

    Parameters
    ----------
    rules
        Rules allowed; the first one chooses the width.
    device
        ``cpu`` or ``gpu``.
    max_sweeps
        Sweeps allowed to each window; None for some more than those with which it pays.
    """
    sequential = trials.sequential
    if _is_short(trials, sequential):
        reason = (
            f"Step by step the draws take {trials.run_seconds(sequential):.1f} seconds, and "
            "windows take longer to compile."
        )
        return _step_by_step(reason, sequential)
    widths = [w for w in _WIDTHS[device] if trials.fits(w)]
    found = _search(trials, widths, rules[0], device, max_sweeps)
    best = min([sequential, *found], key=_time)
    if WORTH_LEAVING * best.microseconds > sequential.microseconds:
        reason = "No window was faster than the sequential chain."
        return _step_by_step(reason, sequential, *found)
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


def _step_by_step(reason: str, *trials: Trial) -> Calibration:
    """With the defaults of what only windows have."""
    return Calibration(1, DEFAULT_RULE, DEFAULT_CURVATURE, None, reason, trials)


def _search(
    trials: Trials, widths: Sequence[int], rule: Rule, device: str, max_sweeps: int | None
) -> list[Trial]:
    """Trials from a middle width outwards, one way and then the other, until they get slower."""
    middle = max((i for i, width in enumerate(widths) if width <= _FIRST_WIDTH[device]), default=-1)
    if middle < 0:
        return []
    first = _tried(trials, widths[middle], rule, max_sweeps)
    if first is None:
        return [Trial(widths[middle], rule, DEFAULT_CURVATURE, None, np.inf, np.inf)]
    found, wider, narrower = [first], widths[middle + 1 :], widths[:middle][::-1]
    if _is_short(trials, first):
        return found
    if device == "gpu":
        trials.compile_together(wider, rule)
    for path in (wider, narrower):
        for width in path:
            trial = _tried(trials, width, rule, max_sweeps)
            if trial is None:
                break
            found.append(trial)
            if trial is not min(found, key=_time):
                break
        if first is not min(found, key=_time):
            break
    return found


def _tried(trials: Trials, width: int, rule: Rule, max_sweeps: int | None) -> Trial | None:
    """Windows of a width; None if they take too long for any number of sweeps to pay, or more
    memory than there is.
    """
    try:
        break_even = trials.break_even(width, rule)
        if break_even < LEAST_SWEEPS and width > _SLOW_START:
            return None
        allowed = max_sweeps or min(width, int(np.ceil(_PATIENCE * break_even)))
        return trials.run(width, rule, allowed)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return None


def _is_short(trials: Trials, trial: Trial) -> bool:
    """Whether a run in a trial's way is over before another program is compiled."""
    return trials.run_seconds(trial) < _COMPILATION


def _best_rule(
    trials: Trials, first: Trial, rules: Sequence[Rule]
) -> tuple[Trial, tuple[Trial, ...]]:
    """The fastest of a trial and of the other rules, which are tried where sweeps are many."""
    few = first.sweeps_per_1000 * first.window <= 2000 * LEAST_SWEEPS
    if few or _is_short(trials, first):
        return first, ()
    others = []
    for rule in rules:
        try:
            others.append(trials.run(first.window, rule, first.max_sweeps))
        except Exception as error:
            # The rule is not for a model whose Hessian-vector products the backend does not have,
            # or memory has no room for.
            if not (isinstance(error, BackendError) or is_out_of_memory(error)):
                raise
    return min([first, *others], key=_time), tuple(others)


def _calibration(best: Trial, reason: str, trials: tuple[Trial, ...]) -> Calibration:
    rule = best.jacobian
    return Calibration(best.window, rule, best.curvature, best.max_sweeps, reason, trials)


def _time(trial: Trial) -> float:
    return trial.microseconds
