"""Several processes on one GPU: JAX is told not to take it all, where it is ours to tell."""

import multiprocessing
import os
import subprocess
import sys

import pytest

from pymc_deer.backends import share_gpu_memory

PREALLOCATE = "XLA_PYTHON_CLIENT_PREALLOCATE"
SETTINGS = {
    PREALLOCATE: "true",
    "XLA_PYTHON_CLIENT_ALLOCATOR": "platform",
    "XLA_CLIENT_MEM_FRACTION": ".5",
    "XLA_PYTHON_CLIENT_MEM_FRACTION": ".5",
}


@pytest.fixture(autouse=True)
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in SETTINGS:
        # Set first, so that what the code sets is undone as well.
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)


@pytest.fixture(params=["worker", "first"])
def ours(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker process, whose JAX may be imported already; or a process without JAX so far."""
    if request.param == "worker":
        monkeypatch.setitem(sys.modules, "jax._src", object())  # type: ignore[arg-type]
        monkeypatch.setattr(multiprocessing, "parent_process", object)
    else:
        # As behind `import arviz`, which has it imported when it is used.
        monkeypatch.setitem(sys.modules, "jax", object())  # type: ignore[arg-type]
        monkeypatch.delitem(sys.modules, "jax._src", raising=False)
        monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)


def test_memory_is_shared(ours: None) -> None:
    share_gpu_memory()
    assert os.environ[PREALLOCATE] == "false"


@pytest.mark.parametrize("name", SETTINGS)
def test_what_the_user_set_stands(ours: None, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, SETTINGS[name])
    share_gpu_memory()
    assert {n: os.environ[n] for n in SETTINGS if n in os.environ} == {name: SETTINGS[name]}


def test_a_process_that_uses_jax_otherwise_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jax._src", object())  # type: ignore[arg-type]
    monkeypatch.setattr(multiprocessing, "parent_process", lambda: None)
    share_gpu_memory()
    assert PREALLOCATE not in os.environ


def test_who_imports_arviz_has_not_imported_jax() -> None:
    code = (
        "import arviz, sys, pymc_deer.backends as backends; backends._PLUGINS = (); "
        "print(backends.resolve_backend('auto'), 'jax._src' in sys.modules)"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    assert printed.split() == ["numba", "False"]


def test_jax_knows_these_names() -> None:
    """Of the version installed: a new name would be a setting that we override."""
    import inspect

    from jaxlib import xla_client

    source = inspect.getsource(xla_client)
    assert all(name in source for name in SETTINGS)
