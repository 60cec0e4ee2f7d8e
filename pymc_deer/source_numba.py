"""Functions for Numba from source, which can name arguments one by one, and their keys on disk."""

from hashlib import sha256
from typing import Any

import numba
import numpy as np
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit


def from_source(
    name: str, source: str, inner: Any, inner_key: str | None, **options: Any
) -> tuple[Any, str | None]:
    """The function `name` of `source`, which calls ``inner``, and its key: what PyTensor asks for.

    Parameters
    ----------
    name
        Of the function in the source.
    source
        Python, which may use ``np``, ``numba`` and ``inner``.
    inner
        What PyTensor compiles an Op or a graph to.
    inner_key
        Its key, None if it cannot be kept on disk. Then this cannot, either.
    options
        Of ``numba.njit``.
    """
    env = {"__name__": __name__, "inner": inner, "np": np, "numba": numba}
    function = numba_njit(compile_numba_function_src(source, name, env), **options)
    return function, inner_key and sha256(f"{name} {inner_key} {source}".encode()).hexdigest()
