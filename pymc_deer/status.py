"""Exceptions of the package: what happened, and what to write instead."""

import functools
import os
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pymc
from pymc.exceptions import SamplingError

_BETWEEN = (
    *(f"{Path(file).parent}{os.sep}" for file in (__file__, pymc.__file__, np.__file__)),
    # CPython compares a name without its last letter.
    functools.__file__.removesuffix(".py"),
)
"""Beginnings of the files whose functions lie between a caller's and a warning: those of this
package and of PyMC, and decorators of NumPy's and Python's."""

_LONGEST = 80
"""Characters of a wrong value that a message shows."""

_LONGEST_REASON = 300
"""Characters that it shows of another package's message: all of it is in the error behind."""


class DeerError(Exception):
    """Base class of every error that pymc_deer raises on purpose."""


class OptionError(DeerError, ValueError):
    """An argument has a value that the sampler does not accept."""


class ModelError(DeerError, ValueError):
    """The model (or the chosen variables) cannot be sampled by a gradient method."""


class BackendError(DeerError, RuntimeError):
    """The backend is not installed, or cannot run the model."""


class ForkError(DeerError, RuntimeError):
    """A JAX program was about to run in a forked process, where it may hang."""


class StartError(DeerError, SamplingError):
    """logp or its gradient is not finite where a chain starts, or a start has the wrong shape."""


def warn_caller(message: str) -> None:
    """Warn of what a user's call leads to, in the line that it is in."""
    warnings.warn(message, skip_file_prefixes=_BETWEEN)


def invalid_option(sampler: str, name: str, value: object, expected: str) -> OptionError:
    """The one form in which a wrong argument is reported."""
    return OptionError(f"{sampler}({name}={_shown(value)}): {name} must be {expected}.")


def _shown(value: object) -> str:
    if isinstance(value, np.ndarray):
        return f"array of shape {value.shape}"
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - Python refuses to write out an integer of 5000 digits
        text = f"<{type(value).__name__}>"
    return _cut(text, _LONGEST)


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 3]}..."


def cannot_compile(compiler: str, error: Exception | None, other: str) -> BackendError:
    """What to say of a model that a backend makes no program of; the `other` one may."""
    # Both go on with programs and places, over pages.
    reason = _cut(str(error).strip().partition("\n")[0], _LONGEST_REASON)
    what = f"{compiler} cannot compile this model"
    return BackendError(f"{what} ({reason}). Write backend={other!r}.")


def _reason(error: BaseException) -> str:
    """The error's class and first line."""
    line = f"{type(error).__name__}: {error}".removesuffix(": ").partition("\n")[0]
    return _cut(line, _LONGEST_REASON)


def not_checked(error: BaseException) -> str:
    """What to say where PyMC's convergence checks fail of finished draws."""
    return (
        f"The draws are returned without a check of their convergence ({_reason(error)}). Look at "
        "arviz.summary of the variables that you need."
    )


def terms_failed(names: Sequence[str], error: BaseException) -> str:
    """What to say where terms of the log-density cannot be computed of finished draws."""
    what, reason = " and ".join(names), _reason(error)
    calls = " and ".join(f"pm.compute_{name}(idata, model=model)" for name in names)
    return f"The draws are returned without {what} ({reason}). To see where it fails, call {calls}."


def shrunk_window(asked: int, window: int, n_chains: int = 1) -> str:
    """What to say when memory has no room for a window of so many chains at the same time."""
    whose = "" if n_chains == 1 else f" of {n_chains} chains"
    how = "the chain runs step by step" if window == 1 else f"windows are {window} wide"
    return f"Windows of {asked} transitions{whose} do not fit in the memory that is free, so {how}."


def narrowed_window(window: int, narrowed: int) -> str:
    """What to say when the sweeps of a window ran out."""
    how = "step by step" if narrowed == 1 else f"in windows of {narrowed}"
    return (
        f"Windows of {window} transitions took more sweeps than they are allowed, so the chain "
        f"goes on {how}. The draws are right, but slower to come by. Try a smaller window, "
        "window=16, or none, window=1; a larger curvature bound, curvature=2; or a non-centred "
        "form of the model, which whitens better."
    )


def slow_mixing(
    n_draws: int, effective: Sequence[float], n_chains: int, steps_per_draw: int, n_leapfrog: int
) -> str:
    """What to say when draws are worth far fewer independent ones, in some chains of a run."""
    remedy = "DeerHMC() or NUTS, pm.sample(), whose transitions are longer"
    if n_leapfrog > 1:
        remedy = "NUTS, pm.sample(), which finds the length of each path anew"
    whose = "this chain" if n_chains == 1 else f"{len(effective)} of {n_chains} chains"
    least, most = f"{min(effective):.0f}", f"{max(effective):.0f}"
    worth = least if least == most else f"{least} to {most}"
    return (
        f"The {n_draws} draws of {whose} are worth about {worth} independent ones in the slowest "
        f"direction, although each is {steps_per_draw} transitions from the one before: too few "
        f"to trust. Try a non-centred form of the model, or {remedy}."
    )
