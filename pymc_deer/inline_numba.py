"""Numba functions that become part of their callers."""

from typing import Any

from pytensor.link.numba.dispatch.basic import numba_njit


def inlined(function: Any) -> Any:
    """The same function, for callers to be compiled with its body in place of the call.

    Numba optimises whatever calls a function with all that the function consists of, once more:
    each one on the way down to a model's logp costs half a second. The arguments must be named
    one by one where it is called.
    """
    return numba_njit(function.py_func, inline="always")
