"""Memory that compiled code frees with each gradient, and takes again with the next one."""

import numpy as np

_LARGEST = 2**25 - 2**16
"""Bytes of a block just below 32 MiB, the largest that GNU's C library learns from."""


def keep_freed_memory() -> None:
    """Have this process keep up to 64 MiB of what its threads free, each.

    GNU's C library hands large arrays back to the system when they are freed, and each page of the
    next ones is a page fault: of models with arrays of a few hundred kilobytes for observations and
    components or categories, these can take most of a gradient's time. What it keeps follows from
    the largest block that was ever freed (mallopt(3), notes on ``M_MMAP_THRESHOLD``). So one is.

    Other C libraries know no such rule, and where the user has set one of the variables
    ``MALLOC_MMAP_THRESHOLD_``, ``MALLOC_TRIM_THRESHOLD_``, ``MALLOC_TOP_PAD_`` or
    ``MALLOC_MMAP_MAX_``, that is kept. No page of the block is ever touched.
    """
    np.empty(_LARGEST, np.uint8)
