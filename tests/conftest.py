"""What holds for all tests, in this process and in those that they start."""

import multiprocessing
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

import pytest

# Many tests start a Python of their own, whose imports take three times as long without bytecode.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# PyTensor runs the inner graphs of Ops as they are once gcc has compiled each Op in them, seconds
# apiece. No backend does that: without a compiler Python runs them. A rewrite that fails is an
# error here, where PyTensor logs it and goes on with the graph as it was. Nor does it note for each
# variable which lines made it.
_FLAGS = (os.environ.get("PYTENSOR_FLAGS"), "cxx=", "on_opt_error=raise", "traceback__limit=0")
os.environ["PYTENSOR_FLAGS"] = ",".join(filter(None, _FLAGS))

PRELOADED = "tests.contract.test_store"
"""A module with all that processes need of this one, and without JAX, which survives no fork."""


def pytest_configure(config: pytest.Config) -> None:
    """Have JAX keep what it compiles, as PyTensor does for Numba: tests share their models.

    Each worker has its own place, since JAX reads what another process may still be writing.
    """
    worker = f"jax-{os.environ.get('PYTEST_XDIST_WORKER', 'alone')}"
    cache = getattr(config, "cache", None)
    place = tempfile.mkdtemp(worker) if cache is None else cache.mkdir(worker)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = str(place)
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.2"
    if "forkserver" in multiprocessing.get_all_start_methods():
        # What all processes import that tests start so is imported once. Before the first of them.
        multiprocessing.get_context("forkserver").set_forkserver_preload([PRELOADED])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those with a time limit of their own first: one that is begun last has a worker wait."""
    items.sort(key=lambda item: item.get_closest_marker("timeout") is None)


@pytest.fixture
def uncompiled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps are made, and nothing is compiled for them."""
    monkeypatch.setattr("pymc_deer.step.DeerStep._compile", lambda step: None)


@pytest.fixture
def hears_interrupts() -> Iterator[None]:
    """Also where the tests run in the background of a shell, which has them ignore interrupts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
