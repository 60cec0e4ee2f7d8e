"""Memory that this process may still take, as far as the system says, and how states share it."""

import os
from pathlib import Path

CAUTIOUS = 2.0**31
"""Where the system does not say."""

_MOST_NUMBERS = 2**24
"""Numbers in the states of a call, 128 MiB in float64: each chain holds several such arrays."""


def available_memory() -> float:
    """Bytes free to this process: the machine's, or those left to its container."""
    return min(_of_machine(), _of_container())


def is_out_of_memory(error: BaseException) -> bool:
    """Whether it says that memory has no room, the host's or a device's."""
    return isinstance(error, MemoryError) or "RESOURCE_EXHAUSTED" in str(error)


def affordable_rows(size: int) -> int:
    """States of D = `size` numbers that a call may have: a function of the problem alone, so that
    one seed gives one result whatever else runs.

    Examples
    --------
    >>> affordable_rows(1000), affordable_rows(2_000_000)
    (16777, 8)
    """
    return max(1, _MOST_NUMBERS // size)


def _of_machine() -> float:
    # Linux counts what its caches would give back; elsewhere, what lies idle.
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return 1024.0 * int(line.split()[1])
    try:
        return float(os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    except (AttributeError, ValueError, OSError):
        return CAUTIOUS


def _of_container() -> float:
    limits = [line for line in _lines("/sys/fs/cgroup/memory.max") if line.isdigit()]
    taken = [line for line in _lines("/sys/fs/cgroup/memory.stat") if line.startswith("anon ")]
    if not limits or not taken:
        return float("inf")
    return max(0.0, float(limits[0]) - float(taken[0].split()[1]))


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []
