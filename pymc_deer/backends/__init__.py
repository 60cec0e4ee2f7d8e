"""Backends: a density graph becomes a compiled solver.

A backend's module is imported when it is first asked for, so that neither Numba nor JAX is needed
by a user of the other.
"""

import importlib.util
import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any

# It watches forks from here on, whether or not JAX ever runs.
import pymc_deer.backends.jax_process  # noqa: F401
from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density
from pymc_deer.noise import NoiseSource
from pymc_deer.options import BackendName, Options
from pymc_deer.status import BackendError, invalid_option
from pymc_deer.sweep import SweepSpec

if TYPE_CHECKING:
    from pymc_deer.backends.mesh import AskedDevices

_INSTALL = {"numba": "pip install numba", "jax": "pip install jax"}
_GPU_MEMORY = (
    "XLA_PYTHON_CLIENT_PREALLOCATE",
    "XLA_PYTHON_CLIENT_ALLOCATOR",
    "XLA_CLIENT_MEM_FRACTION",
    "XLA_PYTHON_CLIENT_MEM_FRACTION",
)
"""Environment variables by which users decide how JAX takes memory."""

_PLUGINS = ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin")


def resolve_backend(name: BackendName) -> BackendName:
    """``auto`` is JAX where it has a GPU to run on, otherwise Numba.

    Raises
    ------
    BackendError
        If the backend is not installed, with the command that installs it.
    """
    if name == "auto":
        name = "jax" if _jax_has_gpu() else "numba"
    if importlib.util.find_spec(name) is None:
        raise BackendError(f"The {name} backend needs {name}: {_INSTALL[name]}")
    return name


def resolve_noise(options: Options, backend: BackendName) -> NoiseSource:
    """Where the momenta are made; ``auto`` is on a GPU where the chains run on one.

    Raises
    ------
    OptionError
        If the backend has no device to make them on.
    """
    if options.noise == "auto":
        return "device" if runs_on_gpu(backend) else "host"
    if options.noise == "device" and backend != "jax":
        expected = f"'host' or 'auto' on {backend}, or write backend='jax'"
        raise invalid_option(options.sampler, "noise", options.noise, expected)
    return options.noise


def runs_on_gpu(backend: BackendName) -> bool:
    """Whether the backend's chains run on a GPU."""
    return backend == "jax" and _jax_has_gpu()


def gpu_name(backend: BackendName) -> str | None:
    """What the GPU is called that the backend's chains run on, if they do."""
    if not runs_on_gpu(backend):
        return None
    from pymc_deer.backends.default_device import default_device

    return str(default_device().device_kind)


def make_solver(
    backend: BackendName, density: Density, spec: SweepSpec, plan: WindowPlan
) -> Solver:
    """A solver of the given backend, ``numba`` or ``jax``; it compiles when first used."""
    if backend == "jax":
        share_gpu_memory()
        from pymc_deer.backends.jax import JaxSolver

        return JaxSolver(density, spec, plan)
    from pymc_deer.backends.numba import NumbaSolver

    return NumbaSolver(density, spec, plan)


def asked_devices(devices: Any) -> "AskedDevices":
    """The devices of JAX that the argument `devices` of `pymc_deer.sample` means."""
    resolve_backend("jax")
    share_gpu_memory()
    from pymc_deer.backends.mesh import AskedDevices

    return AskedDevices.of(devices)


def share_gpu_memory() -> None:
    """Have JAX take a GPU's memory as it needs it, not three quarters when it starts.

    Else there is none left for the chains of other processes. JAX asks the environment once, when
    it starts; here it is only told where nobody but the chains can be meant: in a worker process,
    or where this package is the first to import JAX. What the user has set stands.
    """
    ours = multiprocessing.parent_process() is not None or not _jax_is_imported()
    if ours and not any(name in os.environ for name in _GPU_MEMORY):
        os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"


def _jax_is_imported() -> bool:
    # ArviZ puts a module of that name there which imports it when it is first used.
    return "jax._src" in sys.modules


def _jax_has_gpu() -> bool:
    # Importing JAX starts threads that do not survive a fork: look for a GPU plugin first.
    if not _jax_is_imported() and not any(map(importlib.util.find_spec, _PLUGINS)):
        return False
    if importlib.util.find_spec("jax") is None:
        return False
    share_gpu_memory()
    from pymc_deer.backends.default_device import default_device

    return default_device().platform == "gpu"
