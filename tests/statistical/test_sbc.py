"""Simulation-based calibration (Talts et al. 2018, "Validating Bayesian inference algorithms").

Parameters from the prior and data from the parameters: the rank of the true value among posterior
draws is then uniform, for every quantity. No reference run is needed, and nothing but the
posterior passes. Each replication has its own data and its own warm-up; the program is compiled
once.
"""

from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytest
from scipy.stats import chisquare, norm

from pymc_deer import DeerHMC, DeerMALA, kernel, leapfrog
from pymc_deer.step import DeerStep
from tests.support import BACKENDS

N_GROUPS, N_OBSERVATIONS = 3, 4
N_REPLICATIONS = 240
TUNE = 60
N_RANKED = 59
N_BINS = 12

LEVEL = 0.01
"""Chance that a right sampler fails one test, all of its quantities together (Bonferroni)."""

SEED = 20_250_105

START = {"mu": np.array(0.0), "tau_log__": np.array(0.0), "z": np.zeros(N_GROUPS)}

SAMPLERS: dict[str, tuple[type[DeerStep], dict[str, Any]]] = {
    "DeerMALA": (DeerMALA, {"steps_per_draw": 40}),
    "DeerHMC": (DeerHMC, {"steps_per_draw": 10}),
    "DeerHMC of fixed paths": (DeerHMC, {"steps_per_draw": 10, "n_leapfrog": 3}),
}
"""With as many transitions a draw as make the draws about independent, as ranks ask of them."""


def hierarchical() -> pm.Model:
    """Three groups of normal observations, their means and the spread of these unknown."""
    with pm.Model() as model:
        y = pm.Data("y", np.zeros((N_GROUPS, N_OBSERVATIONS)))
        mu = pm.Normal("mu", 0.0, 1.0)
        tau = pm.HalfNormal("tau", 1.0)
        z = pm.Normal("z", 0.0, 1.0, shape=N_GROUPS)
        pm.Normal("observed", (mu + tau * z)[:, None], 1.0, observed=y)
    return model


@cache
def truths() -> dict[str, np.ndarray]:
    """Parameters from the prior and data from them, a row for each replication."""
    with hierarchical():
        prior = pm.sample_prior_predictive(N_REPLICATIONS, random_seed=SEED)
    drawn = {name: prior["prior"][name].values[0] for name in ("mu", "tau", "z")}
    return drawn | {"y": prior["prior_predictive"]["observed"].values[0]}


def quantities(mu, tau, z, y) -> np.ndarray:
    """What is ranked, (n, Q); mu and tau are (n,), z is (n, groups), y that of one replication.

    The likelihood of the data is among it: it sees errors that no parameter does (Modrak et al.
    2023, "Simulation-based calibration checking with test quantities that depend on the data").
    """
    theta = mu[:, None] + tau[:, None] * z
    likelihood = norm.logpdf(y, theta[..., None], 1.0).sum(axis=(1, 2))
    return np.column_stack([mu, tau, theta, likelihood])


def posterior_draws(step: DeerStep, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws of mu, tau and z, given the data that the model has now."""
    step.setup_chain(np.random.default_rng([SEED, seed]), TUNE, N_RANKED)
    point, points = START, []
    for i in range(TUNE + N_RANKED):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        points.append(point)
    kept = points[TUNE:]
    columns = {name: np.array([p[name] for p in kept]) for name in ("mu", "tau_log__", "z")}
    return columns["mu"], np.exp(columns["tau_log__"]), columns["z"]


def ranks(sampler: str, backend: str, window: int) -> np.ndarray:
    """Ranks of the true quantities among the draws, (replications, Q), each from 0 to N_RANKED."""
    make, options = SAMPLERS[sampler]
    true, found = truths(), []
    with hierarchical():
        step = make(backend=backend, window=window, **options)
        for i in range(N_REPLICATIONS):
            y = true["y"][i]
            pm.set_data({"y": y})
            draws = quantities(*posterior_draws(step, i), y)
            row = slice(i, i + 1)
            here = quantities(true["mu"][row], true["tau"][row], true["z"][row], y)
            found.append((draws < here).sum(axis=0))
    return np.array(found)


def check_uniform(ranks: np.ndarray) -> None:
    """Chi-square test of each quantity's ranks, in bins of equal width."""
    counts = np.apply_along_axis(np.bincount, 0, ranks * N_BINS // (N_RANKED + 1), minlength=N_BINS)
    p_values = chisquare(counts, axis=0).pvalue
    assert p_values.min() > LEVEL / len(p_values), f"p-values {p_values}, counts\n{counts.T}"


SLOW = pytest.mark.slow


# Backends agree state by state (``tests/equivalence``): one will do.
@pytest.mark.parametrize("window", [pytest.param(1, marks=SLOW), 16])
@pytest.mark.parametrize(
    "sampler",
    [
        pytest.param("DeerMALA", marks=SLOW),
        "DeerHMC",
        pytest.param("DeerHMC of fixed paths", marks=SLOW),
    ],
)
def test_ranks_are_uniform(sampler: str, window: int) -> None:
    check_uniform(ranks(sampler, BACKENDS[-1], window))


@pytest.mark.parametrize("sampler", [pytest.param("DeerMALA", marks=SLOW), "DeerHMC"])
def test_an_acceptance_without_kinetic_energy_is_caught(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_kinetic_energy(density, start, path, tangent):
        end, moved = leapfrog.leapfrog(density, start, path, tangent)
        return end._replace(momentum=start.momentum), moved

    monkeypatch.setattr(kernel, "leapfrog", without_kinetic_energy)
    found = ranks(sampler, BACKENDS[-1], 1)
    with pytest.raises(AssertionError, match="p-values"):
        check_uniform(found)
