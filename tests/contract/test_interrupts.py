"""Interrupts: what was drawn is kept, soon, and a chain can go on as if there had been none."""

import os
import signal
import threading
import time
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal

import pymc_deer.chains.chain
import pymc_deer.chains.plan
from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.backends.pace import Pace
from pymc_deer.chains.chain import Chain
from pymc_deer.step import DeerStep
from pymc_deer.warmup.adaptation import Warmup
from tests.support import BACKENDS, sample

pytestmark = pytest.mark.usefixtures("hears_interrupts")

NAMES = ("mu", "x")
WINDOWS = (1, 16)


@cache
def compiled_step(backend: str, window: int = 1) -> DeerStep:
    with pm.Model(), pytest.MonkeyPatch.context() as patch:
        pm.Normal("x", pm.Normal("mu"), 1.0, shape=3)
        # So that short runs have several stretches.
        patch.setattr(pymc_deer.chains.plan, "_LONGEST_CALL", 1)
        fixed = {"jacobian": "secant", "curvature": 1.5, "metric": "diag"}
        step = DeerMALA(backend=backend, window=window, **fixed)
    assert isinstance(step, DeerStep)
    return step


def draws_of(idata: Any) -> dict[str, np.ndarray]:
    return {name: idata["posterior"][name].to_numpy() for name in NAMES}


def assert_beginning(kept: Any, whole: Any, n: int) -> None:
    """`kept` holds the first n draws of `whole`, bit for bit."""
    for name, values in draws_of(kept).items():
        assert values.shape[1] == n
        assert_array_equal(values, draws_of(whole)[name][: len(values), :n])


def send_interrupt() -> None:
    """SIGINT to this process, from another thread, as a user's Ctrl-C comes from outside."""
    thread = threading.Thread(target=os.kill, args=(os.getpid(), signal.SIGINT))
    thread.start()
    thread.join()


class InterruptedPace(Pace):
    """Calls of one piece each, and an interrupt in the n-th from now on."""

    n_calls = 0
    interrupt_at = 0

    @classmethod
    def arm(cls, n: int) -> None:
        cls.n_calls, cls.interrupt_at = 0, n

    def allows(self, weight: float) -> int:
        cls = InterruptedPace
        cls.n_calls += 1
        if cls.n_calls == cls.interrupt_at:
            send_interrupt()
        return 1


def paced(step: DeerStep, monkeypatch: pytest.MonkeyPatch) -> None:
    paces = step.solver._paces
    for key in list(paces):
        monkeypatch.setitem(paces, key, InterruptedPace())
    InterruptedPace.arm(0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_interrupt_in_the_middle_of_a_solve_keeps_the_finished_draws(
    backend: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = compiled_step(backend, window)
    options: dict[str, Any] = {"chains": 1, "tune": 20, "draws": 150}
    whole = sample(step, **options)
    paced(step, monkeypatch)
    solves, task = [], Chain.task

    def counted(chain: Chain, *stride: int) -> Any:
        # Of the draws that are kept: the first stretch is over, and the second in its third call.
        # Where a draw diverges its stretch is solved once more.
        left = chain.record.n_draws_left
        if chain.record.n_tune_left == 0 and solves[-1:] != [left]:
            solves.append(left)
            if len(solves) == 2:
                InterruptedPace.arm(3)
        return task(chain, *stride)

    monkeypatch.setattr(Chain, "task", counted)
    kept = sample(step, **options)
    n_left = 150 - kept["posterior"].sizes["draw"]
    assert solves == [150, n_left], "the second stretch was asked for, and no other"
    assert 0 < n_left < 150
    assert InterruptedPace.n_calls == 3, "no call after the one that was interrupted"
    assert_beginning(kept, whole, 150 - n_left)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
def test_a_chain_goes_on_after_an_interrupt_as_if_there_had_been_none(
    backend: str, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = compiled_step(backend, window)

    def run(n_calls: int | None) -> list[np.ndarray]:
        """Draws of a chain interrupted in every n-th call, and after it from its stored state."""
        step.setup_chain(np.random.default_rng(3), 12, 60)
        point, points = step.model.initial_point(), []
        for i in range(40):
            if i == 12:
                step.stop_tuning()
            # The very first draw also finds a start and a step size, which are not kept.
            InterruptedPace.arm(n_calls if n_calls and i else 0)
            try:
                point, _ = step.step(point)
            except KeyboardInterrupt:
                interrupted.append(i)
                InterruptedPace.arm(0)
                step.sampling_state = step.sampling_state
                point, _ = step.step(point)
            points.append(point)
        return [np.concatenate([np.ravel(v) for v in p.values()]) for p in points]

    interrupted: list[int] = []
    paced(step, monkeypatch)
    expected = run(None)
    assert interrupted == []
    for n_calls in (1, 4):
        assert_array_equal(run(n_calls), expected)
    assert len(interrupted) >= 6


def check_commit_is_whole(step: DeerStep, monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain interrupted whenever warm-up learns goes on as if it had not been."""
    observe = pymc_deer.chains.chain.observe

    def interrupted(*arguments: Any) -> None:
        observe(*arguments)
        raise KeyboardInterrupt

    def run(observing: Callable[..., None]) -> list[float]:
        step.setup_chain(np.random.default_rng(3), 12, 10)
        point, mu = step.model.initial_point(), []
        for i in range(12):
            try:
                with monkeypatch.context() as patch:
                    patch.setattr(pymc_deer.chains.chain, "observe", observing if i else observe)
                    point, _ = step.step(point)
            except KeyboardInterrupt:
                step.sampling_state = step.sampling_state
                point, _ = step.step(point)
            mu.append(float(point["mu"]))
        return mu

    assert run(interrupted) == run(observe)


def test_an_interrupt_while_warm_up_learns_leaves_the_chain_whole(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    check_commit_is_whole(compiled_step(BACKENDS[-1]), monkeypatch)


def test_that_check_finds_a_commit_in_place(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Warmup, "copy", lambda warmup: warmup)
    with pytest.raises(AssertionError):
        check_commit_is_whole(compiled_step(BACKENDS[-1]), monkeypatch)


@pytest.mark.parametrize("backend", BACKENDS)
def test_keyboard_interrupt_in_a_callback_keeps_the_draws_before_it(backend: str) -> None:
    step = compiled_step(backend)

    def callback(trace: Any, draw: Any) -> None:
        if draw.draw_idx == 39:
            raise KeyboardInterrupt

    whole = sample(step)
    # PyMC ends the chain that is interrupted, and goes on with the next.
    kept = sample(step, callback=callback)
    assert_beginning(kept, whole, 10)
    assert kept["posterior"].sizes["chain"] == 2
    for name, values in draws_of(sample(step)).items():
        assert_array_equal(values, draws_of(whole)[name])


@pytest.mark.parametrize("backend", BACKENDS)
def test_error_in_a_callback_comes_out_and_leaves_the_trace(backend: str) -> None:
    step = compiled_step(backend)
    traces = []

    def callback(trace: Any, draw: Any) -> None:
        traces.append(trace)
        if draw.draw_idx == 39:
            raise ValueError("enough")

    whole = sample(step)
    with pytest.raises(ValueError, match="enough"):
        sample(step, callback=callback)
    assert len(traces[-1]) == 40
    assert_array_equal(traces[-1].get_values("mu")[30:], draws_of(whole)["mu"][0, :10])
    for name, values in draws_of(sample(step)).items():
        assert_array_equal(values, draws_of(whole)[name])


WATCHDOG = 60.0
"""Seconds that a sampler may take to stop: what it is stopped in would take minutes."""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("backend", BACKENDS)
def test_interrupt_in_a_long_solve_ends_it(backend: str) -> None:
    """The clock itself decides the calls here: two million rows, read 256 times a transition."""
    y = np.random.default_rng(0).standard_t(4, size=2_000_000)
    with pm.Model():
        mu = pm.Normal("mu")
        pm.StudentT("y", 4.0, mu, sigma=1.0, observed=y)
        step = DeerHMC(
            backend=backend,
            window=1,
            n_leapfrog=256,
            step_size=1e-6,
            metric=np.ones(1),
            steps_per_draw=1,
        )
    assert isinstance(step, DeerStep)
    sent = []

    def interrupt() -> None:
        # By now the first draw of the chain is out, and a stretch of 256 is being solved.
        time.sleep(3.0)
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    def callback(trace: Any, draw: Any) -> None:
        if draw.draw_idx == 0:
            threading.Thread(target=interrupt).start()

    kept = sample(step, chains=1, tune=1, draws=256, callback=callback, discard_tuned_samples=False)
    assert time.monotonic() - sent[0] < WATCHDOG
    assert kept["warmup_posterior"].sizes["draw"] == 1
