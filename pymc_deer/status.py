"""Exceptions of the package: what happened, and what to write instead."""

import numpy as np
from pymc.exceptions import SamplingError


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
    """logp or its gradient is not finite where the chain starts."""


def invalid_option(name: str, value: object, expected: str) -> OptionError:
    """The one form in which a wrong argument is reported."""
    shown = f"array of shape {value.shape}" if isinstance(value, np.ndarray) else repr(value)
    return OptionError(f"DeerMALA({name}={shown}): {name} must be {expected}.")
