"""Choosing a window: the fastest of what was measured, and no measurement that cannot matter."""

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import LEAST_SWEEPS, WindowPlan
from pymc_deer.chains import calibration
from pymc_deer.chains.calibration import (
    Calibration,
    choose_curvature,
    choose_window,
    rule_windows_out,
)
from pymc_deer.chains.trials import Pilot, Trial, Trials
from pymc_deer.jacobian import RULES, Rule
from pymc_deer.metric import identity_metric
from pymc_deer.noise import draw_normals
from pymc_deer.status import BackendError

SEQUENTIAL = 10.0


NO_PRODUCTS = BackendError("no Hessian-vector products")


class ScriptedTrials:
    """Trials whose times are given: microseconds for one transition by width and rule."""

    def __init__(
        self,
        times: dict[int, float],
        *,
        stochastic: float | Exception = NO_PRODUCTS,
        sweeps: float = 100.0,
        memory: int = 10**9,
        n_draws: float = np.inf,
    ) -> None:
        self.n_draws = n_draws
        self.times, self.stochastic, self.sweeps, self.memory = times, stochastic, sweeps, memory
        self.tried: list[tuple[int, str]] = []
        self.compiled: list[int] = []
        self.n_chains = 1

    @property
    def sequential(self) -> Trial:
        return Trial(1, "preconditioned", 1.5, None, 0.0, SEQUENTIAL)

    def run_seconds(self, trial: Trial) -> float:
        return 1e-6 * self.n_draws * trial.microseconds

    def fits(self, window: int) -> bool:
        return window <= self.memory

    def compile_together(self, windows: Sequence[int], rule: Rule) -> None:
        self.compiled += windows

    def break_even(self, window: int, rule: Rule) -> float:
        return 20.0 * SEQUENTIAL / self.times[window]

    def run(self, window: int, rule: Rule, max_sweeps: int | None) -> Trial:
        self.tried.append((window, rule))
        time = self.times[window]
        if rule == "stochastic":
            if isinstance(self.stochastic, Exception):
                raise self.stochastic
            time = self.stochastic
        return Trial(window, rule, 1.25, max_sweeps, self.sweeps, time)


def chosen(trials: ScriptedTrials, device: str = "cpu") -> Calibration:
    return choose_window(cast(Any, trials), ("preconditioned", "stochastic"), device)


@pytest.mark.parametrize("best", [16, 64, 256, 1024])
def test_the_fastest_width_is_found(best: int) -> None:
    times = {w: 1.0 + abs(np.log(w / best)) for w in (16, 64, 256, 1024)}
    calibration = chosen(ScriptedTrials(times))
    assert (calibration.window, calibration.jacobian, calibration.curvature) == (
        best,
        "preconditioned",
        1.25,
    )
    assert "10.0 times as fast" in calibration.reason
    assert calibration.max_sweeps is not None
    assert calibration.max_sweeps <= best


def test_widths_are_no_longer_tried_once_they_get_slower() -> None:
    trials = ScriptedTrials({16: 9.0, 64: 5.0, 256: 2.0, 1024: 3.0})
    chosen(trials)
    assert [w for w, rule in trials.tried if rule == "preconditioned"] == [256, 1024, 64]
    # Once they got faster one way, they are not tried the other way.
    trials = ScriptedTrials({16: 9.0, 64: 5.0, 256: 2.0, 1024: 1.0})
    chosen(trials)
    assert [w for w, rule in trials.tried if rule == "preconditioned"] == [256, 1024]


def test_a_gpu_goes_on_to_wider_windows() -> None:
    times = {64: 3.0, 256: 1.0, 1024: 0.5, 4096: 0.2, 16384: 0.1}
    assert chosen(ScriptedTrials(times), "gpu").window == 16384
    assert chosen(ScriptedTrials(times, memory=5000), "gpu").window == 4096


def test_a_run_that_is_over_before_windows_are_compiled_has_none() -> None:
    times = {64: 3.0, 256: 1.0, 1024: 0.5, 4096: 0.2, 16384: 0.1}
    short, long = (ScriptedTrials(times, n_draws=1e5 * seconds) for seconds in (9.0, 210.0))
    found = chosen(short, "gpu")
    assert (found.window, len(found.trials)) == (1, 1)
    assert (short.tried, short.compiled) == ([], [])
    assert "9.0 seconds" in found.reason
    assert chosen(long, "gpu").window == 16384


def test_a_run_that_is_over_before_others_are_compiled_has_the_first_windows() -> None:
    """Neither wider ones, nor another rule, could make up for their compilation."""
    times = {64: 3.0, 256: 1.0, 1024: 0.5, 4096: 0.2, 16384: 0.1}
    trials = ScriptedTrials(times, n_draws=1e5 * 190.0, stochastic=0.1, sweeps=500.0)
    found = chosen(trials, "gpu")
    assert (found.window, found.jacobian, len(found.trials)) == (1024, "preconditioned", 2)
    assert (trials.tried, trials.compiled) == ([(1024, "preconditioned")], [])


def test_a_run_that_is_over_before_another_rule_is_compiled_has_the_first() -> None:
    for n_draws, rule in ((1e6, "preconditioned"), (1e7, "stochastic")):
        trials = ScriptedTrials({64: 8.0}, stochastic=4.0, sweeps=500.0, n_draws=n_draws)
        rules: Sequence[Rule] = ("preconditioned", "stochastic")
        assert choose_curvature(cast(Any, trials), 64, rules, None).jacobian == rule


def test_sequential_stays_where_windows_gain_less_than_the_clock_sees() -> None:
    calibration = chosen(ScriptedTrials({16: 9.6, 64: 9.5, 256: 9.4, 1024: 9.6}))
    assert calibration.window == 1
    assert len(calibration.trials) == 4


def test_a_batch_that_is_too_dear_is_not_solved() -> None:
    trials = ScriptedTrials(dict.fromkeys((16, 64, 256, 1024), 5 * SEQUENTIAL))
    assert chosen(trials).window == 1
    assert trials.tried == []


def test_narrow_windows_may_take_fewer_sweeps_than_wide_ones_at_least() -> None:
    trials = ScriptedTrials({16: 100.0, 64: 100.0}, memory=64)
    assert trials.break_even(64, "secant") < LEAST_SWEEPS
    chosen(trials)
    assert [window for window, _ in trials.tried] == [64, 16]


def test_no_window_fits() -> None:
    assert chosen(ScriptedTrials({}, memory=1)).window == 1


def test_the_other_rule_is_taken_where_it_is_faster() -> None:
    times = dict.fromkeys((16, 64, 256, 1024), 2.0)
    assert chosen(ScriptedTrials(times, stochastic=1.0)).jacobian == "stochastic"
    assert chosen(ScriptedTrials(times, stochastic=3.0)).jacobian == "preconditioned"
    assert chosen(ScriptedTrials(times)).jacobian == "preconditioned"


def test_a_rule_that_memory_has_no_room_for_is_left_out() -> None:
    """Whatever was estimated; what else goes wrong is told."""
    full, other = RuntimeError("RESOURCE_EXHAUSTED: Out of memory"), RuntimeError("Something else")
    times = dict.fromkeys((16, 64, 256, 1024), 2.0)
    assert chosen(ScriptedTrials(times, stochastic=full)).jacobian == "preconditioned"
    with pytest.raises(RuntimeError, match="Something else"):
        chosen(ScriptedTrials(times, stochastic=other))


def test_the_other_rule_is_not_tried_where_sweeps_are_few() -> None:
    trials = ScriptedTrials(dict.fromkeys((16, 64, 256, 1024), 2.0), sweeps=20.0, stochastic=1.0)
    assert chosen(trials).jacobian == "preconditioned"
    assert {rule for _, rule in trials.tried} == {"preconditioned"}


def test_a_fixed_window_stays() -> None:
    trials = ScriptedTrials({64: 30.0}, stochastic=20.0, sweeps=500.0)
    calibration = choose_curvature(cast(Any, trials), 64, ("preconditioned", "stochastic"), 40)
    assert (calibration.window, calibration.jacobian) == (64, "stochastic")
    assert calibration.max_sweeps == 40


def test_a_window_that_never_converged_is_said_so() -> None:
    calibration = choose_curvature(
        cast(Any, ScriptedTrials({64: np.inf})), 64, ("preconditioned",), None
    )
    assert "With no bound c" in calibration.reason
    attrs = calibration.attrs
    assert json.loads(str(attrs["deer_trials"]))[1]["microseconds"] is None
    assert attrs["deer_max_sweeps"] == -1
    assert all(isinstance(value, str | int | float) for value in attrs.values())


class Bounded:
    """A solver that knows what its batches can gain at most."""

    def __init__(self, gain: float) -> None:
        self.gain = gain

    def batch_gain_bound(self, params: object) -> float:
        return self.gain


def test_nothing_is_measured_where_no_batch_could_pay() -> None:
    ruled_out = rule_windows_out(cast(Any, Bounded(4.0)), ())
    assert ruled_out is not None
    assert ruled_out.window == 1
    assert "at most 4 times cheaper" in ruled_out.reason
    assert rule_windows_out(cast(Any, Bounded(np.inf)), ()) is None


def test_trials_is_what_the_script_stands_for() -> None:
    for name in ("sequential", "fits", "compile_together", "break_even", "run", "run_seconds"):
        assert hasattr(Trials, name)
    assert of_chains(1).n_chains == ScriptedTrials({}).n_chains


@dataclass
class Clock:
    """What the machine has computed, in seconds."""

    now: float = 0.0

    def perf_counter(self) -> float:
        return self.now


@dataclass
class Solved:
    """As much of a trajectory as trials look at."""

    n: int
    n_sweeps: int
    n_fallback: int = 0

    def __len__(self) -> int:
        return self.n


@dataclass
class Device:
    """A solver on a device that computes a hundred states as fast as one.

    Wider windows take more sweeps, and each chain one more than the chain before.
    """

    clock: Clock
    n_together: int = 1
    plan: WindowPlan = field(default_factory=lambda: WindowPlan(1, None, 1e-6, 100_000))
    density: Any = field(default_factory=lambda: SimpleNamespace(size=1, n_numbers=1))
    draw_momenta: Any = draw_normals
    gradient_seconds: float = 1e-4
    call_seconds: float = 0.0

    def with_plan(self, plan: WindowPlan) -> "Device":
        return replace(self, plan=plan)

    def with_rule(self, rule: Rule) -> "Device":
        return self

    def for_threads(self) -> "Device":
        return self

    def one_blas_thread(self) -> AbstractContextManager[None]:
        return nullcontext()

    def bytes_per_state(self) -> int:
        return 10

    def free_memory(self) -> float:
        return 1e6

    def run_together(
        self, chains: Sequence[TapedRequest], params: object, at_once: int
    ) -> list[Solved]:
        window, n = self.plan.window, len(chains[0].tape)
        assert len({chain.tape.xi.tobytes() for chain in chains}) == len(chains)
        rejected = np.isinf(chains[0].tape.log_u).all()
        per_window = 1 if rejected else 5 + int(np.log2(window))
        calls = n if window == 1 else -(-n // window) * per_window
        self.clock.now += self.gradient_seconds * calls * max(1.0, len(chains) * window / 100)
        self.clock.now += self.call_seconds * -(-n // at_once)
        return [Solved(n, calls + i) for i in range(len(chains))]


def of_chains(n: int, clock: Clock | None = None, n_draws: int | None = None) -> Trials:
    """Trials of so many chains on that device, of a run with so many draws of two transitions."""
    tuning = Tuning(0.5, 1.0, identity_metric("diag", 1))
    pilot = Pilot(np.zeros(1), tuning, (), steps_per_draw=2)
    return Trials(cast(Any, Device(clock or Clock(), n)), pilot, n_draws=n_draws)


@pytest.mark.parametrize(("gradient", "most"), [(1e-7, 1.5e-7), (1e-5, 1.02e-5), (0.1, 0.11)])
def test_what_a_call_costs_counts_for_as_little_as_in_a_chain(
    gradient: float, most: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    pilot = Pilot(np.zeros(1), Tuning(0.5, 1.0, identity_metric("diag", 1)), ())
    device = Device(clock, gradient_seconds=gradient, call_seconds=2e-4)
    found = Trials(cast(Any, device), pilot).sequential_seconds
    assert gradient < found <= most
    assert clock.now < 2.0


@pytest.mark.parametrize(("n_chains", "window"), [(1, 256), (4, 64), (16, 1), (200, 1)])
def test_more_chains_in_a_batch_leave_less_room_for_windows(
    n_chains: int, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    chosen = choose_window(of_chains(n_chains, clock), ("secant",), "gpu")
    assert chosen.window == window
    assert ("of 4 chains in one batch" in chosen.reason) == (n_chains == 4)


@pytest.mark.parametrize("together", [False, True], ids=["alone", "beside others"])
def test_a_width_that_memory_has_no_room_for_is_left_out(
    together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever was estimated; what else goes wrong is told."""
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    monkeypatch.setattr(calibration, "_FIRST_WIDTH", {"gpu": 64})
    run, told = Device.run_together, "RESOURCE_EXHAUSTED: Out of memory"

    def full(self: Device, chains: Any, *arguments: Any) -> list[Solved]:
        is_one_of_several = len(chains[0].tape) == 2
        if self.plan.window >= 256 and is_one_of_several is together:
            raise RuntimeError(told)
        return run(self, chains, *arguments)

    monkeypatch.setattr(Device, "run_together", full)
    assert choose_window(of_chains(1, clock), ("secant",), "gpu").window == 64
    told = "Something else"
    with pytest.raises(RuntimeError, match=told):
        choose_window(of_chains(1, clock), ("secant",), "gpu")


def test_windows_have_the_sweeps_that_were_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    chosen = choose_window(of_chains(1, clock), ("secant",), "gpu", 77)
    assert chosen.window > 1
    assert chosen.max_sweeps == 77
    assert {trial.max_sweeps for trial in chosen.trials[1:]} == {77}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_that_was_asked_for_is_tried(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    chosen = choose_window(of_chains(1, clock), (rule,), "gpu")
    assert (chosen.window, chosen.jacobian) == (256, rule)
    assert chosen.curvature >= 1


def test_a_run_is_given_no_windows_wider_than_pay_for_its_length(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    monkeypatch.setattr(calibration, "_FIRST_WIDTH", {"gpu": 256})
    monkeypatch.setattr(calibration, "_COMPILATION", 0.0)
    windows = [choose_window(of_chains(1, clock, n), ("secant",), "gpu").window for n in (25, 1000)]
    assert windows == [64, 256]
    assert of_chains(1, clock, 25).n_windowed(256) == 50
    assert of_chains(1, clock).n_windowed(4096) == 4096
    short, unknown = of_chains(1, clock, 25), of_chains(1, clock)
    assert short.run_seconds(short.sequential) == pytest.approx(50 * 1e-4)
    assert unknown.run_seconds(unknown.sequential) == np.inf


def test_a_gpus_windows_are_compiled_at_the_same_time() -> None:
    trials = ScriptedTrials({64: 3.0, 256: 1.0, 1024: 0.5, 4096: 0.2, 16384: 0.1})
    chosen(trials, "gpu")
    assert trials.compiled == [4096, 16384]
    chosen(trials := ScriptedTrials({16: 9.0, 64: 5.0, 256: 2.0, 1024: 3.0}))
    assert trials.compiled == []


def test_widths_compiled_together_are_solved_once_each() -> None:
    solved: list[int] = []
    trials = of_chains(1)
    trials.warm_up = lambda window, rule: solved.append(window)
    trials.compile_together([64, 256, 1024], "secant")
    assert sorted(solved) == [64, 256, 1024]


def test_errors_of_widths_that_are_compiled_together_are_told() -> None:
    """But for those of memory, of which there may be enough for one alone."""

    def failing(window: int, rule: Rule) -> None:
        if window == 256:
            raise error

    trials = of_chains(1)
    trials.warm_up = failing
    error = RuntimeError("RESOURCE_EXHAUSTED: Out of memory")
    trials.compile_together([64, 256, 1024], "secant")
    error = RuntimeError("Something else")
    with pytest.raises(RuntimeError, match="Something else"):
        trials.compile_together([64, 256, 1024], "secant")


def test_a_bound_with_which_sweeps_run_out_is_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """However fast, and be it of one chain alone: windows would be narrowed."""
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    run = Device.run_together

    def run_out(self: Device, chains: Any, *arguments: Any) -> list[Solved]:
        solved = run(self, chains, *arguments)
        if chains[0].tuning.curvature in failing:
            solved[-1] = replace(solved[-1], n_sweeps=1, n_fallback=1)
        return solved

    monkeypatch.setattr(Device, "run_together", run_out)
    failing = {1.0}
    for n in (1, 2):
        failing = {1.0}
        assert of_chains(n, clock).run(64, "secant", None).curvature == 1.5
        failing = {1.0, 1.5}
        assert of_chains(n, clock).run(64, "secant", None).microseconds == np.inf


def test_chains_in_a_batch_share_the_memory_and_wait_for_the_slowest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock()
    monkeypatch.setattr("pymc_deer.chains.trials.time", clock)
    one, four = (of_chains(n, clock) for n in (1, 4))
    assert one.fits(16384)
    assert four.fits(4096)
    assert not four.fits(16384)
    trials = [trials.run(64, "secant", None) for trials in (one, four)]
    n = one.n_transitions
    assert 1e-3 * n * (trials[1].sweeps_per_1000 - trials[0].sweeps_per_1000) == pytest.approx(3)
