"""A model with a million observations, whose posterior is known."""

from functools import cache

import numpy as np
import pymc as pm

N = 1_000_000
SPREAD = 1e4
"""Standard deviation of an observation: logp is about -1e7 in all, of which float32 knows whole
numbers, and the observations together say as much about x as its prior does."""


@cache
def observations() -> np.ndarray:
    noise = np.random.default_rng(20_250_121).normal(3.0, SPREAD, N)
    return noise.astype("float32")


def one_million() -> pm.Model:
    """Observations of 10 x, in PyMC's precision."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1.0)
        y = pm.Data("y_data", observations())
        pm.Normal("y", 10.0 * x, SPREAD, observed=y)
    return model


def posterior() -> tuple[float, float]:
    """Mean and standard deviation of x given the observations."""
    precision = 1.0 + N * (10.0 / SPREAD) ** 2
    mean = 10.0 * observations().astype(float).sum() / SPREAD**2 / precision
    return mean, precision**-0.5
