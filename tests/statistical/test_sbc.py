"""Simulation-based calibration (Talts et al. 2018, "Validating Bayesian inference algorithms").

Parameters from the prior and data from the parameters: the rank of the true value among posterior
draws is then uniform, for every quantity. No reference run is needed, and nothing but the
posterior passes. Each replication has its own data and its own warm-up; the program is compiled
once.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from scipy.stats import bernoulli, chisquare, norm

from pymc_deer import DeerHMC, DeerMALA, kernel, leapfrog
from pymc_deer.options import BackendName
from pymc_deer.step import DeerStep
from tests.support import BACKENDS

N_REPLICATIONS = 204
TUNE = 50
N_RANKED = 47
N_BINS = 12

LEVEL = 0.01
"""Chance that a right sampler fails one test, all of its quantities together (Bonferroni)."""

SEED = 20_251_128

Values = dict[str, np.ndarray]


@dataclass(frozen=True)
class Target:
    """A model whose data are drawn anew.

    Attributes
    ----------
    build
        The model; its data are the pm.Data `y`.
    parameters
        Names of its free variables; those transformed are positive.
    quantities
        What is ranked, (n, Q), from parameters with n rows each and the y of one replication. The
        likelihood of the data is among it: it sees errors that no parameter does (Modrak et al.
        2023, "Simulation-based calibration checking with test quantities that depend on the
        data").
    """

    build: Callable[[], pm.Model]
    parameters: tuple[str, ...]
    quantities: Callable[[Values, np.ndarray], np.ndarray]

    def constrained(self, points: list[Values]) -> Values:
        """Parameters of many points, a row for each."""
        columns = {}
        for name in self.parameters:
            log = f"{name}_log__"
            is_log = log in points[0]
            column = np.array([point[log if is_log else name] for point in points])
            columns[name] = np.exp(column) if is_log else column
        return columns


ERRORS = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])


def eight_schools() -> pm.Model:
    """Non-centred, with a proper prior of the spread that does not give schools of 1000 points."""
    with pm.Model() as model:
        y = pm.Data("y", np.zeros(8))
        mu, tau = pm.Normal("mu", 0.0, 10.0), pm.HalfNormal("tau", 10.0)
        eta = pm.Normal("eta", 0.0, 1.0, shape=8)
        pm.Normal("observed", mu + tau * eta, ERRORS, observed=y)
    return model


def of_schools(values: Values, y: np.ndarray) -> np.ndarray:
    theta = values["mu"][:, None] + values["tau"][:, None] * values["eta"]
    likelihood = norm.logpdf(y, theta, ERRORS).sum(axis=1)
    return np.column_stack([values["mu"], values["tau"], theta, likelihood])


FEATURES = np.random.default_rng(SEED).normal(size=(30, 3)) @ np.array(
    [[1.0, 0.7, 0.0], [0.0, 0.7, 0.3], [0.0, 0.0, 1.0]]
)


def logistic() -> pm.Model:
    """Logistic regression on correlated features."""
    with pm.Model() as model:
        y = pm.Data("y", np.zeros(len(FEATURES), dtype=int))
        intercept, slopes = pm.Normal("intercept", 0.0, 1.0), pm.Normal("slopes", 0, 1, shape=3)
        pm.Bernoulli("observed", logit_p=intercept + pt.dot(FEATURES, slopes), observed=y)
    return model


def of_logistic(values: Values, y: np.ndarray) -> np.ndarray:
    logit = values["intercept"][:, None] + values["slopes"] @ FEATURES.T
    likelihood = bernoulli.logpmf(y, 1.0 / (1.0 + np.exp(-logit))).sum(axis=1)
    return np.column_stack([values["intercept"], values["slopes"], likelihood])


TARGETS = {
    "eight schools": Target(eight_schools, ("mu", "tau", "eta"), of_schools),
    "logistic": Target(logistic, ("intercept", "slopes"), of_logistic),
}

SAMPLERS: dict[str, tuple[type[DeerStep], dict[str, Any]]] = {
    "DeerMALA": (DeerMALA, {"steps_per_draw": 25}),
    "DeerHMC": (DeerHMC, {"steps_per_draw": 8}),
    "DeerHMC of fixed paths": (DeerHMC, {"steps_per_draw": 8, "n_leapfrog": 3}),
}
"""With as many transitions a draw as make the draws about independent, as ranks ask of them."""


@cache
def truths(name: str) -> Values:
    """Parameters from the prior and data from them, a row for each replication."""
    target = TARGETS[name]
    with target.build():
        prior = pm.sample_prior_predictive(
            N_REPLICATIONS, random_seed=SEED, compile_kwargs={"mode": "FAST_COMPILE"}
        )
    drawn = {p: prior["prior"][p].values[0] for p in target.parameters}
    return drawn | {"y": prior["prior_predictive"]["observed"].values[0]}


def posterior_points(step: DeerStep, start: Values, seed: int) -> list[Values]:
    """Draws given the data that the model has now."""
    step.setup_chain(np.random.default_rng([SEED, seed]), TUNE, N_RANKED)
    point, points = start, []
    for i in range(TUNE + N_RANKED):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        points.append(point)
    return points[TUNE:]


def ranks(
    name: str, sampler: str, backend: BackendName, window: int, n: int = N_REPLICATIONS
) -> np.ndarray:
    """Ranks of the true quantities among the draws, (n, Q), each from 0 to N_RANKED."""
    target, true, found = TARGETS[name], truths(name), []
    make, options = SAMPLERS[sampler]
    with target.build() as model:
        step = make(backend=backend, window=window, **options)
        start = model.initial_point()
        for i in range(n):
            y = true["y"][i]
            pm.set_data({"y": y})
            draws = target.constrained(posterior_points(step, start, i))
            here = {p: true[p][i : i + 1] for p in target.parameters}
            below = target.quantities(draws, y) < target.quantities(here, y)
            found.append(below.sum(axis=0))
    return np.array(found)


def check_uniform(ranks: np.ndarray) -> None:
    """Chi-square test of each quantity's ranks, in bins of equal width."""
    counts = np.apply_along_axis(np.bincount, 0, ranks * N_BINS // (N_RANKED + 1), minlength=N_BINS)
    p_values = chisquare(counts, axis=0).pvalue
    assert p_values.min() > LEVEL / len(p_values), f"p-values {p_values}, counts\n{counts.T}"


SLOW = pytest.mark.slow


SAMPLER_OF: dict[tuple[str, BackendName], str] = {
    ("eight schools", "jax"): "DeerHMC",
    ("eight schools", "numba"): "DeerMALA",
    ("logistic", "jax"): "DeerHMC of fixed paths",
}
"""Each target and each sampler: states agree between backends (``tests/equivalence``)."""

IN_WINDOWS = {("logistic", "jax")}
"""Those also run in windows, whose states are those of single steps (``tests/equivalence``)."""


def _runs() -> list[Any]:
    """All of it step by step, one quick; and one in windows."""
    return [
        pytest.param(
            target,
            sampler,
            backend,
            window,
            marks=() if (sampler, window) == ("DeerHMC", 1) else SLOW,
            id=f"{target}-{sampler}-{backend}-{window}",
        )
        for (target, backend), sampler in SAMPLER_OF.items()
        for window in (1, 16)
        if backend in BACKENDS and (window == 1 or (target, backend) in IN_WINDOWS)
    ]


@pytest.mark.parametrize(("target", "sampler", "backend", "window"), _runs())
def test_ranks_are_uniform(target: str, sampler: str, backend: BackendName, window: int) -> None:
    check_uniform(ranks(target, sampler, backend, window))


@SLOW
@pytest.mark.parametrize("sampler", ["DeerMALA", "DeerHMC"])
def test_an_acceptance_without_kinetic_energy_is_caught(
    sampler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_kinetic_energy(density, start, path, tangent):
        end, moved = leapfrog.leapfrog(density, start, path, tangent)
        return end._replace(momentum=start.momentum), moved

    monkeypatch.setattr(kernel, "leapfrog", without_kinetic_energy)
    # A quarter of the replications: the more so by all of them.
    found = ranks("eight schools", sampler, BACKENDS[-1], 1, N_REPLICATIONS // 4)
    with pytest.raises(AssertionError, match="p-values"):
        check_uniform(found)
