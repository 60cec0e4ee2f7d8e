"""What all test layers share."""

import os
from typing import Any

import numpy as np
import pymc as pm
from xarray import DataTree

from pymc_deer import DeerMALA

BACKENDS = tuple(os.environ.get("PYMC_DEER_TEST_BACKENDS", "numba,jax").split(","))
"""Backends under test: all of them, unless the environment names fewer."""

SEED = 20_250_103


def sample(step: DeerMALA, **changes: Any) -> DataTree:
    """A short, silent run of the step's model in one process; `changes` go to `pm.sample`."""
    options: dict[str, Any] = {
        "draws": 20,
        "tune": 30,
        "chains": 2,
        "cores": 1,
        "random_seed": SEED,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with step.model:
        return pm.sample(step=step, **(options | changes))


def autoregressive(phi: float, n: int, seed: int = 0) -> np.ndarray:
    """AR(1) with unit variance, whose integrated autocorrelation time is (1 + phi)/(1 - phi)."""
    noise = np.random.default_rng(seed).normal(0.0, np.sqrt(1 - phi**2), n)
    chain = np.empty(n)
    chain[0] = noise[0] / np.sqrt(1 - phi**2)
    for t in range(1, n):
        chain[t] = phi * chain[t - 1] + noise[t]
    return chain
