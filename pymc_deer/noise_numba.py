"""Standard normal numbers by Numba: those of NumPy, in a third of the time.

Half of all numbers change their sign: NumPy's loop branches there, and Numba's does not.
"""

from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np

from pymc_deer.noise import draw_normals as draw_by_numpy
from pymc_deer.ops.numba_source import compiled_source

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
    return compiled_source(_FILL, "fill")
