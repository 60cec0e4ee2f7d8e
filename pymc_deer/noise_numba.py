"""Standard normal numbers by Numba: those of NumPy, in a third of the time.

Half of all numbers change their sign: NumPy's loop branches there, and Numba's does not.
"""

from collections.abc import Callable
from functools import cache
from hashlib import sha256
from typing import ClassVar

import numpy as np
from pytensor import config
from pytensor.link.numba.cache import compile_numba_function_src
from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_deer.noise import draw_normals as draw_by_numpy

_FILL = """
def fill(rng, numbers):
    for i in range(len(numbers)):
        numbers[i] = rng.standard_normal()
"""


def draw_normals(rng: np.random.Generator, n: int, size: int) -> np.ndarray:
    """The next n rows of momenta, shape (n, D): bit by bit NumPy's."""
    rows = np.empty((n, size))
    if n:
        _compiled_fill()(rng, rows.reshape(-1))
    return rows


_FEW = 4096
"""Numbers of a call below which NumPy is faster: to hand over a generator takes 20 microseconds."""


class FasterOnceMany:
    """Draws normals as NumPy does, and by Numba when there have been so many that it pays.

    Numba begins once in a process, for all that draw in it: so they are counted together.

    Parameters
    ----------
    many
        Numbers from which it does, where Numba has not drawn any in this process yet.
    """

    _n_drawn: ClassVar[int] = 0

    def __init__(self, many: int) -> None:
        self._many = many

    def __call__(self, rng: np.random.Generator, n: int, size: int) -> np.ndarray:
        """See :func:`draw_normals`."""
        FasterOnceMany._n_drawn += n * size
        is_ready = self._n_drawn >= self._many or _compiled_fill.cache_info().currsize > 0
        draw = draw_normals if is_ready and n * size >= _FEW else draw_by_numpy
        return draw(rng, n, size)


@cache
def _compiled_fill() -> Callable[[np.random.Generator, np.ndarray], None]:
    # Chains run in threads; whether code holds Python's lock is part of what is compiled.
    key = sha256(f"nogil {_FILL}".encode()).hexdigest() if config.numba__cache else None
    fill = compile_numba_function_src(_FILL, "fill", {"__name__": __name__}, cache_key=key)
    return numba_njit(fill, final_function=True, cache=key is not None, nogil=True, fastmath=False)
