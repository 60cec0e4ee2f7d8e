"""Standard normal numbers by Numba: those of NumPy, in a third of the time.

Half of all numbers change their sign: NumPy's loop branches there, and Numba's does not.
"""

from collections.abc import Callable
from functools import cache
from typing import ClassVar

import numpy as np

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


_WORTH_COMPILING = 2**25
"""Numbers from which NumPy has taken 0.2 s longer, much of what it takes to compile the loop."""


class FasterOnceMany:
    """Draws normals as NumPy does, and by Numba when there have been so many that it pays.

    Numba begins once in a process, for all that draw in it: so they are counted together.

    Parameters
    ----------
    many
        Numbers from which it does, where Numba has not drawn any in this process yet and the loop
        is on disk. Where it is not, they are 2**25 at the least.
    """

    _n_drawn: ClassVar[int] = 0

    def __init__(self, many: int) -> None:
        self._many = many

    def __call__(self, rng: np.random.Generator, n: int, size: int) -> np.ndarray:
        """See :func:`draw_normals`."""
        FasterOnceMany._n_drawn += n * size
        draw = draw_normals if n * size >= _FEW and self._pays() else draw_by_numpy
        return draw(rng, n, size)

    def _pays(self) -> bool:
        if _compiled_fill.cache_info().currsize > 0:
            return True
        return self._n_drawn >= self._many and (
            self._n_drawn >= _WORTH_COMPILING or _is_fill_on_disk()
        )


@cache
def _is_fill_on_disk() -> bool:
    from pymc_deer.ops.numba_source import is_on_disk

    return is_on_disk(_FILL)


@cache
def _compiled_fill() -> Callable[[np.random.Generator, np.ndarray], None]:
    # Users of JAX alone never import Numba, which takes a second.
    from pymc_deer.ops.numba_source import compiled_source

    return compiled_source(_FILL, "fill")
