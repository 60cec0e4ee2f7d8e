"""Calls of compiled code last as long as an interrupt may wait, whatever a piece of work takes."""

import numpy as np
import pytest

from pymc_deer.backends.pace import CALL_SECONDS, Pace, Unhurried


class Clock:
    """Time that passes only when pieces of work are done."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def lengths(pace: Pace, clock: Clock, n: int, weight: float, seconds: float) -> np.ndarray:
    """Pieces done in each call, where a unit of weight takes `seconds`."""
    found, expected = [], 0
    for first, last in pace.calls(n, weight):
        assert first == expected < last
        expected = last
        found.append(last - first)
        clock.now += (last - first) * weight * seconds
    assert expected == n
    return np.array(found)


@pytest.mark.parametrize("weight", [1, 7])
@pytest.mark.parametrize("seconds", [1e-8, 1e-6, 1.1e-3, 0.011, 0.09, 10.0])
def test_calls_are_short_and_few(seconds: float, weight: int) -> None:
    pace = Pace(clock := Clock())
    n = 5000
    found = lengths(pace, clock, n, weight, seconds)
    assert found[0] == 1, "nothing is known of the first piece"
    assert (found * weight * seconds <= max(CALL_SECONDS, weight * seconds) * 1.001).all()
    # What was learnt stays: the next solve is in as few calls as can be.
    again = lengths(pace, clock, n, weight, seconds)
    most = max(1, int(CALL_SECONDS / (weight * seconds)))
    assert len(again) <= -(-n // most) + 1


def test_weights_are_counted() -> None:
    """Longer paths take longer: fewer of them fit."""
    pace = Pace(clock := Clock())
    lengths(pace, clock, 5000, 1, 1.1e-3)
    assert lengths(pace, clock, 100, 50, 1.1e-3).max() == int(CALL_SECONDS / 55e-3)


def test_time_is_foretold_from_the_last_call() -> None:
    pace = Pace(clock := Clock())
    assert pace.seconds(10, 2) == np.inf, "nothing is known yet"
    lengths(pace, clock, 5000, 1, 1e-3)
    lengths(pace, clock, 7, 3, 1e-5)
    assert pace.seconds(10, 2) == pytest.approx(20e-5)


def test_slower_than_before_is_noticed_after_one_call() -> None:
    pace = Pace(clock := Clock())
    lengths(pace, clock, 5000, 1, 1e-4)
    assert lengths(pace, clock, 5000, 1, 1.1e-2)[1:].max() == int(CALL_SECONDS / 1.1e-2)


def test_what_has_no_clock_is_not_cut() -> None:
    pace = Unhurried(clock := Clock())
    for seconds in (1e-3, 10.0):
        assert lengths(pace, clock, 5000, 7, seconds).tolist() == [5000]


def test_a_pace_that_learns_nothing_would_be_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Pace, "allows", lambda pace, weight: 1000)
    with pytest.raises(AssertionError):
        test_calls_are_short_and_few(0.1, 1)
