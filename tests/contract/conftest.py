"""Fixtures of the contract tests."""

from collections.abc import Iterator

import pytest

from tests.random_models.check import quick_compilation


@pytest.fixture(autouse=True)
def quick(request: pytest.FixtureRequest) -> Iterator[None]:
    """PyMC's own functions, of which each chain's trace has one, are not compiled by Numba.

    Backends compile as always. A test marked ``default_mode`` has all as users have it.
    """
    if request.node.get_closest_marker("default_mode"):
        yield
    else:
        with quick_compilation():
            yield
