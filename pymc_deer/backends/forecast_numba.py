"""What Numba makes of :func:`pymc_deer.ops.scan.chain_states`, to be called for forecasts."""

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from pymc_deer.ops.numba_source import compiled_source
from pymc_deer.ops.scan import chain_states


@cache
def compiled_chain_states() -> Callable[..., Any]:
    """It, compiled once in a process."""
    return compiled_source(inspect.getsource(chain_states), chain_states.__name__, Any=Any)
