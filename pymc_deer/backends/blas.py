"""Threads of the BLAS libraries that NumPy, SciPy and Numba call in this process."""

import sys
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Self

from threadpoolctl import ThreadpoolController


class Blas:
    """The libraries that are loaded when it is first asked; a pickled copy asks anew."""

    def one_thread(self) -> AbstractContextManager[Any]:
        """Where matrices are small: threads would only get in each other's way, and in that of
        other chains. Where PyMC forks, it does not limit them.
        """
        # Where one thread is the limit already, there is no need to set it, which takes longer.
        pools = self._loaded.lib_controllers
        limited = all(pool.num_threads == 1 for pool in pools)
        return nullcontext() if limited else self._loaded.limit(limits=1)

    @property
    def n_threads(self) -> int:
        """Threads that they may use now, by ``pm.sample(blas_cores=...)`` among others."""
        return min((pool.num_threads for pool in self._loaded.lib_controllers), default=sys.maxsize)

    @cached_property
    def _loaded(self) -> ThreadpoolController:
        return ThreadpoolController().select(user_api="blas")

    def __reduce__(self) -> tuple[type[Self], tuple[()]]:
        return type(self), ()
