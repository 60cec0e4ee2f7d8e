"""Calls beside their caller: in order, at most one ahead, and none behind a failure."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import partial

import pytest

from pymc_deer.beside import Beside, InTurn

SECONDS = 60.0


@pytest.fixture
def beside() -> Iterator[Beside]:
    made = Beside()
    yield made
    made.close()


def fail() -> None:
    raise KeyError("lost")


def test_the_caller_goes_on_meanwhile_with_one_call_waiting(beside: Beside) -> None:
    begun, may_end, done = threading.Event(), threading.Event(), []

    def first() -> None:
        begun.set()
        assert may_end.wait(SECONDS)
        done.append("first")

    beside.do(first)
    assert begun.wait(SECONDS)
    assert done == []
    may_end.set()
    beside.do(partial(done.append, "second"))
    assert done[0] == "first", "the one before is over"
    beside.wait()
    assert done == ["first", "second"]


@pytest.mark.parametrize("notice", [lambda b: b.wait(), lambda b: b.do(lambda: None)])
def test_an_error_reaches_the_caller(beside: Beside, notice: Callable[[Beside], None]) -> None:
    beside.do(fail)
    with pytest.raises(KeyError, match="lost"):
        notice(beside)


def test_nothing_is_done_behind_a_failure(beside: Beside) -> None:
    done = []
    beside.do(fail)
    for _ in range(3):
        with pytest.raises(KeyError, match="lost"):
            beside.do(partial(done.append, "later"))
    with pytest.raises(KeyError, match="lost"):
        beside.wait()
    assert done == []


def test_an_interrupt_loses_no_call(beside: Beside) -> None:
    """The user's, which comes to the main thread while it waits for the call before."""

    class Interrupted(Future[None]):
        def result(self, timeout: float | None = None) -> None:
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt

    done = []
    beside._last = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        beside.do(partial(done.append, "kept"))
    beside.wait()
    assert done == ["kept"]


def test_in_turn_each_call_is_made_when_it_is_given() -> None:
    in_turn, threads = InTurn(), []
    in_turn.do(lambda: threads.append(threading.current_thread()))
    assert threads == [threading.main_thread()]
    with pytest.raises(KeyError, match="lost"):
        in_turn.do(fail)
    in_turn.wait()
    in_turn.close()
