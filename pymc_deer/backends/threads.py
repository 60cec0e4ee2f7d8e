"""Chains beside each other in threads of one process: compiled code lets go of Python's lock."""

import multiprocessing
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from threading import Event


def available_cores() -> int:
    """Cores that chains may take unasked: 1 in a worker process, whose siblings run chains."""
    return 1 if multiprocessing.parent_process() is not None else existing_cores()


def existing_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_in_threads[T](tasks: Sequence[Callable[[], T]], n_threads: int, stopped: Event) -> list[T]:
    """The results of all tasks.

    Parameters
    ----------
    n_threads
        Tasks that run at the same time.
    stopped
        Is set when one fails, or an interrupt comes: the others should then raise, soon.
    """
    with ThreadPoolExecutor(n_threads) as pool:
        runs = [pool.submit(task) for task in tasks]
        try:
            finished, _ = wait(runs, return_when=FIRST_EXCEPTION)
        finally:
            stopped.set()
        # Of those alone: their error is the one that stopped the others.
        for run in finished:
            run.result()
    return [run.result() for run in runs]
