"""Numba implementation of :func:`pymc_deer.forecast.forecast`: the function itself."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from pymc_deer.forecast import forecast
from pymc_deer.numba_source import compiled_source


@cache
def compiled_forecast() -> Callable[..., Any]:
    """It, compiled once in a process."""
    return compiled_source(inspect.getsource(forecast), forecast.__name__, Any=Any)
