"""Calls that an interrupt must not break off."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor


def uninterrupted[T](call: Callable[[], T]) -> T:
    """Make a call in a thread in which Python hears no interrupt, and wait until it is over.

    An interrupt comes out behind it. What may be broken off at any place may leave a lock taken for
    ever: that of numcodecs' Blosc, with which Zarr 2 packs rows, is.

    Examples
    --------
    >>> uninterrupted(lambda: threading.current_thread() is threading.main_thread())
    False
    """
    if threading.current_thread() is not threading.main_thread():
        return call()
    with ThreadPoolExecutor(1) as pool:
        # Interrupted as it starts, the thread would not be waited for: it does so with nothing.
        pool.submit(int).result()
        return pool.submit(call).result()
