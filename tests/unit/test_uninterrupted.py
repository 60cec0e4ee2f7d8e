"""Calls that are over before an interrupt comes out."""

import os
import signal
import threading
import time

import pytest

from pymc_deer.uninterrupted import uninterrupted


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_comes_out_behind_the_call() -> None:
    done = []

    def interrupted() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.2)
        done.append(threading.current_thread())

    with pytest.raises(KeyboardInterrupt):
        uninterrupted(interrupted)
    assert done
    assert done[0] is not threading.main_thread()


def test_what_the_call_returns_or_raises_is_the_callers() -> None:
    assert uninterrupted(lambda: 5) == 5
    with pytest.raises(OSError, match="full"):
        uninterrupted(full)


def full() -> None:
    raise OSError("full")


def test_in_another_thread_the_call_is_made_there() -> None:
    """No interrupt is heard in it."""
    threads = []
    own = threading.Thread(target=lambda: threads.append(uninterrupted(threading.current_thread)))
    own.start()
    own.join()
    assert threads == [own]
