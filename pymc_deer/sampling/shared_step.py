"""The step method whose solver runs all chains of `pymc_deer.sample`."""

from dataclasses import replace
from typing import Any

from pymc.model import Model

from pymc_deer.backends import resolve_backend
from pymc_deer.chains.trials import Foreseen
from pymc_deer.hmc import DeerHMC
from pymc_deer.mala import DeerMALA
from pymc_deer.options import OPTIONS, BackendName
from pymc_deer.profiling.cost_shares import count_unequal
from pymc_deer.sampling.hardware import Hardware
from pymc_deer.sampling.settings import Settings
from pymc_deer.status import (
    BackendError,
    ForkError,
    ModelError,
    invalid_option,
    shrunk_window,
    warn_caller,
)
from pymc_deer.step import DeerStep
from pymc_deer.variables import continuous_variables

_INDEXED = 2**16
"""Numbers that a gradient gathers and scatters by arrays of indices, up to which JAX is taken
whatever else it does: a thousand draws may take it up to three times as long as Numba, but no
longer than that takes to compile, which is up to a minute."""

_PER_FUNCTION = 8
"""Such numbers for each exponential, logarithm or the like, beyond which Numba is so much faster on
a CPU that it is worth its compilation: XLA takes them one by one."""

_FACTORED = 2**22
"""Multiplications of a gradient's factorizations and solves, those of a Gaussian process of 94
points, from which Numba is worth its compilation: it calls BLAS, which factors matrices of 60 to
500 rows 1.3 to 1.8 times as fast as XLA does."""


class _InOneProcess(DeerStep):
    """A step whose chains run in this process, so that JAX may run them.

    On a CPU it compiles in seconds.

    Parameters
    ----------
    foreseen
        The chains that a device has, and their draws.
    options
        Of the step.
    """

    def __init__(self, *, foreseen: Foreseen, **options: Any) -> None:
        self._foreseen = foreseen
        super().__init__(**options)

    def _resolved_backend(self, name: BackendName) -> BackendName:
        resolved = super()._resolved_backend(name)
        if name != "auto" or resolved == "jax":
            return resolved
        try:
            resolve_backend("jax")
        except BackendError:
            return resolved
        work = count_unequal(self.density)
        scatters = work.indexed > max(_INDEXED, _PER_FUNCTION * work.functions)
        return resolved if scatters or work.factored > _FACTORED else "jax"


class _MALA(_InOneProcess, DeerMALA):
    __doc__ = DeerMALA.__doc__


class _HMC(_InOneProcess, DeerHMC):
    __doc__ = DeerHMC.__doc__


KERNELS: dict[str, type[DeerStep]] = {"mala": _MALA, "hmc": _HMC}


def make_step(settings: Settings, model: Model, hardware: Hardware) -> DeerStep:
    """The step; it reports all that is wrong with a model."""
    options = hardware.step_options(settings.options)
    foreseen = Foreseen(hardware.chains_on_each(settings.chains), settings.draws)
    try:
        return _step(settings.kernel, model, foreseen, options)
    except (BackendError, ForkError):
        if options.get("backend", "auto") != "auto" or resolve_backend("auto") == "jax":
            raise
        return _step(settings.kernel, model, foreseen, {**options, "backend": "numba"})


def within_memory(step: DeerStep, settings: Settings, hardware: Hardware) -> DeerStep:
    """The step, or one of narrower windows if those of all chains do not fit at the same time."""
    asked = step.calibration.window
    if asked == 1:
        return step
    window, at_once = hardware.affordable_window(step.solver, settings.chains)
    if window == asked:
        return step
    warn_caller(shrunk_window(asked, window, at_once))
    options = {**settings.options, "backend": step.backend, "window": window}
    return make_step(replace(settings, options=options), step.model, hardware)


def _step(kernel: str, model: Model, foreseen: Foreseen, options: dict[str, Any]) -> DeerStep:
    if not isinstance(kernel, str) or kernel not in KERNELS:
        raise invalid_option("sample", "kernel", kernel, f"one of {tuple(KERNELS)}")
    sampler = OPTIONS[kernel].sampler
    moved = continuous_variables(model, sampler)
    if others := [str(v.name) for v in model.value_vars if v not in moved]:
        raise ModelError(
            f"{', '.join(others)}: pymc_deer.sample moves all variables itself, and these are "
            "discrete, or have a step method of their own. Write "
            f"pm.sample(step={sampler}()), and PyMC picks a step for them."
        )
    return KERNELS[kernel](model=model, foreseen=foreseen, **options)  # pyright: ignore[reportCallIssue]
