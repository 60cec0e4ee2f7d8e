"""Chains beside each other in threads of one process: compiled code lets go of Python's lock."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future, ThreadPoolExecutor, wait
from threading import Event


def available_cores() -> int:
    """Cores that chains may take unasked: 1 in a worker process, whose siblings run chains."""
    return 1 if multiprocessing.parent_process() is not None else existing_cores()


def existing_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class Threads:
    """Threads that stay from one call to the next.

    Those that are started for each call take the time, and memory that the ones before have left.
    """

    def __init__(self) -> None:
        self._pools: dict[int, ThreadPoolExecutor] = {}

    def run[T](self, tasks: Sequence[Callable[[], T]], n_threads: int, stopped: Event) -> list[T]:
        """The results of all tasks.

        Parameters
        ----------
        n_threads
            Tasks that run at the same time.
        stopped
            Is set when one fails, or an interrupt comes: the others should then raise, soon.
        """
        if n_threads not in self._pools:
            self._pools[n_threads] = ThreadPoolExecutor(n_threads)
        runs: list[Future[T]] = []
        try:
            for task in tasks:
                runs.append(self._pools[n_threads].submit(task))
            finished, _ = wait(runs, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
            wait(runs)
        # Of those alone: their error is the one that stopped the others.
        for run in finished:
            run.result()
        return [run.result() for run in runs]

    def close(self) -> None:
        """Have none, until the next call: a process that forks should not."""
        while self._pools:
            _, pool = self._pools.popitem()
            pool.shutdown()
