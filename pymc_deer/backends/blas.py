"""Threads of the BLAS libraries that NumPy, SciPy and Numba call in this process."""

import sys
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cached_property
from threading import Lock
from typing import Any, Protocol
from weakref import WeakSet

from threadpoolctl import ThreadpoolController


class Pool(Protocol):
    """A library's threads, as threadpoolctl has them."""

    filepath: str

    @property
    def num_threads(self) -> int: ...
    def set_num_threads(self, num_threads: int, /) -> object: ...


class Blas:
    """The libraries that are loaded when it is first asked."""

    def one_thread(self) -> AbstractContextManager[None]:
        """Where matrices are small: threads would only get in each other's way, and in that of
        other chains. Where PyMC forks, it does not limit them.
        """
        # Where PyMC has limited them already, there is nothing to undo.
        limited = not _LIMIT.holds and all(pool.num_threads == 1 for pool in self._pools)
        return nullcontext() if limited else _LIMIT.held(self._pools)

    @property
    def n_threads(self) -> int:
        """Threads that they may use now, by ``pm.sample(blas_cores=...)`` among others."""
        return min((pool.num_threads for pool in self._pools), default=sys.maxsize)

    @cached_property
    def _pools(self) -> Sequence[Pool]:
        found: Any = ThreadpoolController().select(user_api="blas")
        return found.lib_controllers


class _Holder:
    """Someone who needs the limit."""


class _Limit:
    """One thread for the process's libraries, from the first who needs it until the last is done.

    Those who need it may be in several threads. threadpoolctl's limit is undone by whoever made
    it, in whatever order, to what it was when that one came.
    """

    def __init__(self) -> None:
        self._lock = Lock()
        # One whom an interrupt has kept from saying that it is done is gone all the same.
        self._holders: WeakSet[_Holder] = WeakSet()
        self._before: dict[str, tuple[Pool, int]] = {}

    @property
    def holds(self) -> bool:
        """Whether there is someone."""
        return bool(self._before)

    @contextmanager
    def held(self, pools: Sequence[Pool]) -> Iterator[None]:
        """While what is within needs it."""
        holder = _Holder()
        try:
            with self._lock:
                self._holders.add(holder)
                for pool in pools:
                    self._limit(pool)
            yield
        finally:
            with self._lock:
                self._holders.discard(holder)
                if not self._holders:
                    self._undo()

    def _limit(self, pool: Pool) -> None:
        if pool.filepath in self._before:
            return
        # What is to be undone is known before it is done.
        self._before[pool.filepath] = pool, pool.num_threads
        pool.set_num_threads(1)
        if pool.num_threads > 1:
            # Another thread has limited it, and with OpenBLAS no other may meanwhile.
            del self._before[pool.filepath]

    def _undo(self) -> None:
        if not self._before:
            return
        _, (pool, n) = self._before.popitem()
        try:
            _let_any_thread_set(pool)
            pool.set_num_threads(n)
            _let_any_thread_set(pool)
        finally:
            self._undo()


def _let_any_thread_set(pool: Pool) -> None:
    """From threadpoolctl 3.8 on, the thread that limits OpenBLAS first is the only one that may."""
    if clear := getattr(pool, "clear_controlling_thread", None):
        clear(force=True)


_LIMIT = _Limit()
