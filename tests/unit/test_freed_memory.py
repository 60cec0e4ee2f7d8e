"""Arrays that are freed and made again do not cost page faults."""

import subprocess
import sys

import pytest

from pymc_deer import DeerMALA
from pymc_deer.backends import numba as numba_backend
from tests.support import ON_GNU, one_variable

ARRAYS = """
import resource
import numpy as np
from pymc_deer.backends.freed_memory import keep_freed_memory

def fill_and_free():
    arrays = [np.ones(100_000) for _ in range(20)]

def page_faults():
    for _ in range(3):
        fill_and_free()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        fill_and_free()
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

print(page_faults())
keep_freed_memory()
print(page_faults())
"""
"""As a gradient has them: 16 MB in arrays of 800 kB, all of which are freed behind it."""


@pytest.mark.skipif(not ON_GNU, reason="other C libraries do as they like")
def test_arrays_are_made_of_memory_that_was_freed() -> None:
    """In a process of its own, since it is the process that learns."""
    pages = 20 * 20 * 800_000 // 4096
    command = [sys.executable, "-c", ARRAYS]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    before, behind = map(int, done.stdout.split())
    assert before > pages / 4
    assert behind < pages / 100


class _KeptError(Exception):
    """Ends what would go on to compile."""


def test_it_is_kept_before_a_chain_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept() -> None:
        raise _KeptError

    monkeypatch.setattr(numba_backend, "keep_freed_memory", kept)
    with one_variable(), pytest.raises(_KeptError):
        DeerMALA(backend="numba", window=1)
