"""Fixtures of the unit tests."""

from collections.abc import Iterator

import pytest

from tests.random_models.check import quick_compilation


@pytest.fixture
def pymc_in_python() -> Iterator[None]:
    """PyMC's own functions are not compiled by Numba."""
    with quick_compilation():
        yield
