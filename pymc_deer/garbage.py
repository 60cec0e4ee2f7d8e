"""Python's garbage collector, which compilers give much to look at and little to collect."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Without the collector, which takes a tenth of the time that PyTensor and Numba do to compile.

    What they leave behind in circles, tens of megabytes, is collected afterwards.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
