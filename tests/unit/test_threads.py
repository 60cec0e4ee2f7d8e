"""Threads that run chains beside each other."""

from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import closing
from threading import Event
from typing import Any

import pytest

from pymc_deer.backends.spares import Spares
from pymc_deer.backends.threads import Threads


def test_an_interrupt_before_all_have_begun_stops_those_that_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    submit, begun = ThreadPoolExecutor.submit, []

    def interrupted(pool: ThreadPoolExecutor, task: Any) -> Any:
        if begun:
            raise KeyboardInterrupt
        begun.append(submit(pool, task))
        return begun[0]

    stopped = Event()
    monkeypatch.setattr(ThreadPoolExecutor, "submit", interrupted)
    with closing(Threads()) as threads, pytest.raises(KeyboardInterrupt):
        threads.run([lambda: stopped.wait(20)] * 2, 2, stopped)
    assert begun[0].result(), "was told to stop"


@pytest.mark.parametrize("fails_first", [True, False])
def test_a_failure_stops_the_others_and_is_told(fails_first: bool) -> None:
    """Not what they raise when they are stopped, though they may come before it."""
    stopped, told = Event(), []

    def fail() -> None:
        raise ZeroDivisionError

    def go_on() -> None:
        told.append(stopped.wait(20))
        raise CancelledError

    tasks = [fail, go_on] if fails_first else [go_on, fail]
    with closing(Threads()) as threads, pytest.raises(ZeroDivisionError):
        threads.run(tasks, 2, stopped)
    assert told == [True], "was told to stop"


def test_what_another_thread_takes_first_is_made_anew() -> None:
    class TakenMeanwhile(list):
        def __len__(self) -> int:
            return 1

    spares = Spares()
    spares._kept[3,] = TakenMeanwhile()
    assert spares.take((3,), lambda: "made") == "made"
    spares.keep((3,), "kept")
    assert spares.take((3,), lambda: "made") == "kept"
