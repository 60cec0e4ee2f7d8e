"""Fixtures of the equivalence tests."""

import pytest


@pytest.fixture
def single_threaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows on one thread: the threaded loop takes longer to compile, and has its own test."""
    monkeypatch.setattr("pymc_deer.backends.numba.available_threads", lambda: 1)
