"""The statistical checks pass exact draws and fail wrong ones."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest

from tests.statistical.checks import (
    check_converged,
    check_moments,
    deviations,
    load_reference,
    summarise,
)
from tests.statistical.reference import MODELS

N_CHAINS, N_DRAWS, N_DIM = 4, 1000, 5
TRUTH = pd.DataFrame(
    {"mean": 0.0, "sd": 1.0, "mcse_mean": 0.0, "mcse_sd": 0.0},
    index=[f"x[{i}]" for i in range(N_DIM)],
)


def summary_of(draws: np.ndarray) -> pd.DataFrame:
    """Table of a run that produced these draws of x, shape (chain, draw, D)."""
    with pm.Model() as model:
        pm.Normal("x", shape=draws.shape[-1])
    return summarise(az.from_dict({"posterior": {"x": draws}}), model)


@pytest.fixture
def draws() -> np.ndarray:
    """Independent standard normal draws."""
    return np.random.default_rng(0).normal(size=(N_CHAINS, N_DRAWS, N_DIM))


def test_exact_draws_pass(draws: np.ndarray) -> None:
    run = summary_of(draws)
    check_converged(run)
    check_moments(run, TRUTH)


def test_one_wrong_mean_fails(draws: np.ndarray) -> None:
    draws[..., 2] += 10 / np.sqrt(N_CHAINS * N_DRAWS)
    with pytest.raises(AssertionError, match=r"x\[2\]"):
        check_moments(summary_of(draws), TRUTH)


def test_one_wrong_sd_fails(draws: np.ndarray) -> None:
    draws[..., 3] *= 1.2
    with pytest.raises(AssertionError, match=r"x\[3\]"):
        check_moments(summary_of(draws), TRUTH)


def test_one_chain_elsewhere_fails(draws: np.ndarray) -> None:
    draws[0, :, 1] += 0.5
    with pytest.raises(AssertionError, match=r"x\[1\]"):
        check_converged(summary_of(draws))


@pytest.mark.parametrize("check", [check_converged, lambda run: check_moments(run, TRUTH)])
def test_nan_draws_fail(check, draws: np.ndarray) -> None:
    draws[..., 0] = np.nan
    with pytest.raises(AssertionError):
        check(summary_of(draws))


def test_missing_scalar_fails(draws: np.ndarray) -> None:
    run = summary_of(draws)
    with pytest.raises(AssertionError, match=r"x\[4\]"):
        check_moments(run.iloc[:-1], TRUTH)
    with pytest.raises(AssertionError, match=r"x\[4\]"):
        check_moments(run, TRUTH.iloc[:-1])


def test_deviation_is_in_combined_errors() -> None:
    run = pd.DataFrame({"mean": [1.0], "sd": [2.0], "mcse_mean": [0.3], "mcse_sd": [0.0]})
    reference = pd.DataFrame({"mean": [0.0], "sd": [1.0], "mcse_mean": [0.4], "mcse_sd": [0.5]})
    np.testing.assert_allclose(deviations(run, reference), [[2.0, 2.0]])


@pytest.mark.parametrize("name", MODELS)
def test_reference_covers_the_model(name: str) -> None:
    """Labels and count of the stored scalars are those of the model's free variables."""
    model = MODELS[name]()
    point = model.initial_point()
    n_scalars = sum(point[model.rvs_to_values[rv].name].size for rv in model.free_RVs)
    reference = load_reference(name)
    assert len(reference) == n_scalars
    assert np.isfinite(reference).all(axis=None)
    assert (reference > 0).all()[["sd", "mcse_mean", "mcse_sd"]].all()
