"""The public face of exactness: one seed gives the same draws whatever window, rule and backend."""

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytest

from pymc_deer import DeerHMC, DeerMALA, examples
from pymc_deer.jacobian import RULES
from pymc_deer.step import DeerStep
from tests.support import BACKENDS

TOL = 1e-8
N_DRAWS = 150

# Rough posterior means and variances of the unconstrained eight-schools vector, so that a run
# without warm-up mixes: (mu, log tau, eta).
INITVALS = {"mu": 4.4, "tau": 3.0, "eta": np.zeros(8)}
VARIANCES = np.array([11.0, 1.4, *np.full(8, 0.9)])
COVARIANCE = np.diag(VARIANCES)
"""As a matrix: programs of a dense metric are those that other tests have compiled."""


# What differs between the samplers, and how many leapfrog steps a draw then takes.
SAMPLERS: dict[str, tuple[type[DeerStep], dict[str, Any], int]] = {
    "MALA": (DeerMALA, {"step_size": 0.6, "steps_per_draw": 4}, 4),
    "HMC of one step": (
        DeerHMC,
        {
            **{"step_size": 0.6, "steps_per_draw": 4, "n_leapfrog": 1},
            **{"step_size_jitter": 0.0, "small_steps": 0.0},
        },
        4,
    ),
    "HMC": (DeerHMC, {"step_size": 0.4, "steps_per_draw": 1, "n_leapfrog": 4}, 4),
}


@cache
def _whitened_draws(sampler: str, backend: str, window: int, rule: str) -> np.ndarray:
    """Unconstrained draws in units of the metric, shape (draws, D)."""
    make, options, n_steps = SAMPLERS[sampler]
    with examples.eight_schools():
        step = make(
            backend=backend, window=window, jacobian=rule, metric=COVARIANCE, tol=TOL, **options
        )
        idata = pm.sample(
            step=step,
            draws=N_DRAWS,
            tune=0,
            chains=1,
            cores=1,
            random_seed=42,
            initvals=INITVALS,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert (idata["sample_stats"]["window"] == window).all()
    assert (idata["sample_stats"]["n_steps"] == n_steps).all()
    acceptance = float(idata["sample_stats"]["acceptance_rate"].mean())
    assert 0.5 < acceptance < 0.98, "the draws must see both acceptances and rejections"
    posterior = idata["posterior"]
    columns = [posterior["mu"], np.log(posterior["tau"])]
    draws = np.column_stack([np.ravel(c) for c in columns] + [posterior["eta"].values[0]])
    assert (np.diff(draws[:, 0]) != 0).mean() > 0.5, "the chain must move"
    return draws / np.sqrt(VARIANCES)


REFERENCE = BACKENDS[0]
"""Its single steps are what all others are held against."""

QUICK = {("MALA", "jax", "secant"), ("HMC", "jax", "stochastic")}
"""Windows that are compiled in every run."""


def _cases() -> list[Any]:
    """MALA and HMC by all rules; on Numba, which takes long to compile each, by one."""
    cases = []
    for sampler, backend in product(("MALA", "HMC"), BACKENDS):
        if backend != REFERENCE:
            cases.append(pytest.param(sampler, backend, 1, "auto"))
        for rule in RULES if backend == "jax" else ("secant",):
            marks = [] if (sampler, backend, rule) in QUICK else [pytest.mark.slow]
            cases.append(pytest.param(sampler, backend, 64, rule, marks=marks))
    return cases


@pytest.mark.parametrize(("sampler", "backend", "window", "rule"), _cases())
def test_one_seed_gives_the_same_draws(single_threaded, sampler, backend, window, rule):
    draws = _whitened_draws(sampler, backend, window, rule)
    reference = _whitened_draws(sampler, REFERENCE, 1, "auto")
    assert draws.shape == (N_DRAWS, 10)
    assert np.abs(draws - reference).max() <= 100 * TOL


@pytest.mark.parametrize("backend", BACKENDS)
def test_hmc_of_one_step_draws_what_mala_draws(backend):
    """In single steps; in windows its states are MALA's in test_states."""
    mala, hmc = (
        _whitened_draws(sampler, backend, 1, "auto") for sampler in ("MALA", "HMC of one step")
    )
    assert np.abs(hmc - mala).max() <= 100 * TOL


@pytest.mark.skipif("jax" not in BACKENDS, reason="it compiles windows in seconds")
def test_warmup_learns_the_same_in_windows_and_step_by_step(single_threaded):
    """Of angles as well, whose directions are not those of what a call happens to solve.

    Far from their mode errors grow, hence the tolerance.
    """
    found = []
    for window in (1, 64):
        with pm.Model():
            pm.VonMises("angle", 0.0, 0.5, shape=2)
            pm.Normal("x")
            step = DeerMALA(backend="jax", window=window, jacobian="secant", tol=1e-11)
            idata = pm.sample(
                step=step,
                draws=30,
                tune=1000,
                discard_tuned_samples=False,
                chains=1,
                cores=1,
                random_seed=42,
                progressbar=False,
                compute_convergence_checks=False,
            )
        found.append(idata)
    steps, windows = found
    assert windows["warmup_sample_stats"]["window"].max() == 64
    for name in ("step_size", "n_transitions", "acceptance_rate"):
        expected = steps["sample_stats"][name]
        np.testing.assert_allclose(windows["sample_stats"][name], expected, rtol=1e-4)
    for name in ("angle", "x"):
        np.testing.assert_allclose(windows["posterior"][name], steps["posterior"][name], atol=1e-4)
