"""The step method whose solver runs all chains of `pymc_deer.sample`."""

import warnings
from dataclasses import replace
from typing import Any

from pymc.model import Model

from pymc_deer.backends import resolve_backend
from pymc_deer.calibration import affordable_window
from pymc_deer.cost_shares import count_gradient
from pymc_deer.hardware import Hardware
from pymc_deer.hmc import DeerHMC
from pymc_deer.mala import DeerMALA
from pymc_deer.settings import Settings
from pymc_deer.status import (
    BackendError,
    ForkError,
    ModelError,
    invalid_option,
    shrunk_window,
)
from pymc_deer.step import DeerStep

KERNELS: dict[str, type[DeerStep]] = {"mala": DeerMALA, "hmc": DeerHMC}

_INDEXED = 2**14
"""Numbers gathered and scattered for a gradient beyond which Numba is the faster on a CPU: XLA
scatters one by one. With fewer JAX is as fast or up to three times faster, as its exponentials and
logarithms are vectorised, and it compiles in seconds."""


def make_step(settings: Settings, model: Model | None, hardware: Hardware) -> DeerStep:
    """The step; it reports all that is wrong with a model.

    The chains are in one process, so that JAX may run them wherever the user leaves that open.
    """
    options = hardware.step_options(settings.options)
    if options.get("backend", "auto") != "auto" or resolve_backend("auto") == "jax":
        return _step(settings.kernel, model, options)
    try:
        step = _step(settings.kernel, model, {**options, "backend": "jax"})
    except (BackendError, ForkError):
        return _step(settings.kernel, model, {**options, "backend": "numba"})
    if count_gradient(step.density).indexing <= _INDEXED:
        return step
    return _step(settings.kernel, model, {**options, "backend": "numba"})


def within_memory(step: DeerStep, settings: Settings, hardware: Hardware) -> DeerStep:
    """The step, or one of narrower windows if those of all chains do not fit at the same time."""
    asked, n_chains = step.calibration.window, settings.chains
    at_once = hardware.chains_at_once(step.solver, n_chains)
    window = asked if asked == 1 else affordable_window(step.solver, asked, at_once)
    if window == asked:
        return step
    warnings.warn(shrunk_window(asked, window, at_once), stacklevel=4)
    options = {**settings.options, "backend": step.backend, "window": window}
    return make_step(replace(settings, options=options), step.model, hardware)


def _step(kernel: str, model: Model | None, options: dict[str, object]) -> DeerStep:
    if kernel not in KERNELS:
        raise invalid_option("sample", "kernel", kernel, f"one of {tuple(KERNELS)}")
    step: Any = KERNELS[kernel](model=model, **options)  # pyright: ignore[reportCallIssue]
    if len(step.vars) < len(step.model.value_vars):
        discrete = [v.name for v in step.model.value_vars if v not in step.vars]
        raise ModelError(
            f"{', '.join(discrete)}: pymc_deer.sample moves all variables itself, and these are "
            f"discrete. Write pm.sample(step={step.options.sampler}([...])) with the continuous "
            "ones, and PyMC picks a step for the rest."
        )
    return step
