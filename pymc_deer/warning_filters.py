"""Filters of warnings, set by one thread at a time."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import RLock

_FILTERS = RLock()
"""Filters are the process's own: threads that put them back must not overlap."""


@contextmanager
def own_filters() -> Iterator[None]:
    """Within it filters may be set, which are gone behind it."""
    with _FILTERS, warnings.catch_warnings():
        yield
