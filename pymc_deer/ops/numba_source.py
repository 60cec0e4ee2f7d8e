"""Functions that Numba compiles from their source, and their keys on disk."""

from collections.abc import Callable, Mapping
from hashlib import sha256
from importlib.resources import files
from typing import Any

import numpy as np
from pytensor import config
from pytensor.link.numba.cache import NUMBA_CACHE_PATH, compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_deer.ops.self_contained import SelfContained


def _version_of_code() -> int:
    """Of all that Numba compiles of this folder: another number wherever anything in it differs."""
    folder = files(__package__ or "")
    sources = sorted((file.name, file) for file in folder.iterdir() if file.name.endswith(".py"))
    text = b"".join(file.read_bytes() for _, file in sources)
    return int.from_bytes(sha256(text).digest()[:8])


CODE_VERSION = _version_of_code()
"""A part of every key: under one of its own, Numba runs what other code has left on disk."""


def key_of(*parts: str) -> str:
    """On disk, of what these parts make, by the code as it is."""
    return sha256(" ".join([__name__, str(CODE_VERSION), *parts]).encode()).hexdigest()


def compiled_source(source: str, name: str, **names: Any) -> Callable[..., Any]:
    """The function of that name, kept on disk wherever PyTensor keeps what it compiles.

    It computes what is written, to the last bit.

    Parameters
    ----------
    source
        Its definition, which may use ``np``.
    names
        What else the definition uses, which is no part of what is known on disk.
    """
    return compiled_under(_key_of_source(source), source, name, names, fastmath=False)


def is_on_disk(source: str) -> bool:
    """Whether :func:`compiled_source` has left there what it makes of this one."""
    key = _key_of_source(source)
    return key is not None and any(NUMBA_CACHE_PATH.glob(f"*{key}*"))


def _key_of_source(source: str) -> str | None:
    return key_of("nogil exact", source) if config.numba__cache else None


def compiled_under(
    key: str | None, source: str, name: str, names: Mapping[str, Any], **options: Any
) -> Callable[..., Any]:
    """The same under a key of its own on disk, with PyTensor's options for Numba but for these.

    None is the key of what is not to be kept.
    """
    env = {"__name__": __name__, "np": np, **names}
    function = compile_numba_function_src(source, name, env, cache_key=key)
    # Whether code holds Python's lock is part of what is compiled.
    options = {"nogil": True, "pipeline_class": SelfContained, **options}
    return numba_njit(function, final_function=True, cache=key is not None, **options)


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
    import numba

    env = {"__name__": __name__, "inner": inner, "np": np, "numba": numba}
    function = numba_njit(compile_numba_function_src(source, name, env), **options)
    return function, inner_key and key_of(name, inner_key, source)
