"""Fixtures of the contract tests."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
