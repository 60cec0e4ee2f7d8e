"""The time of a run, by what it was spent on."""

from contextlib import suppress
from types import SimpleNamespace

import pytest

from pymc_deer.sampling import phases
from pymc_deer.sampling.phases import Phases


def test_the_total_is_of_all_but_compilation() -> None:
    """It is what PyMC calls the sampling time."""
    before = {"compile": 16.0, "warmup": 1.0, "sampling": 2.0, "recording": 4.0}
    assert Phases(before).total == 7.0


def test_a_run_that_goes_on_adds_to_what_it_has_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """What was interrupted has taken time as well."""
    clock = SimpleNamespace(perf_counter=iter([100.0, 104.0]).__next__)
    monkeypatch.setattr(phases, "time", clock)
    found = Phases({"warmup": 1.0})
    with suppress(KeyboardInterrupt), found.of("warmup"):
        raise KeyboardInterrupt
    assert found.seconds == {"compile": 0.0, "warmup": 5.0, "sampling": 0.0, "recording": 0.0}
