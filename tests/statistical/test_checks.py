"""The statistical checks pass exact draws and fail wrong ones."""

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm
import pytest

from tests.statistical.checks import (
    MIN_ESS,
    check_converged,
    check_effective_draws,
    check_moments,
    check_run,
    check_run_or_warning,
    deviations,
    load_reference,
    max_deviation,
    summarise,
)
from tests.statistical.reference import EXACT
from tests.zoo import MODELS

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
    check_run(run, TRUTH)


def test_the_bound_grows_with_what_is_compared() -> None:
    assert max_deviation(2) == pytest.approx(4.06, abs=0.01)
    assert max_deviation(600) == pytest.approx(5.23, abs=0.01)
    errors = np.random.default_rng(1).normal(size=(20_000, 10))
    assert (np.abs(errors) > max_deviation(10)).any(axis=1).mean() < 5e-4


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


def test_few_effective_draws_fail(draws: np.ndarray) -> None:
    few = MIN_ESS // N_CHAINS // 2
    draws[..., 2] = np.repeat(draws[:, :few, 2], N_DRAWS // few, axis=1)
    with pytest.raises(AssertionError, match=r"x\[2\]"):
        check_effective_draws(summary_of(draws))


def test_wrong_draws_pass_only_with_a_warning(draws: np.ndarray) -> None:
    """Nothing that a hard model's run gets wrong may go unsaid."""
    check_run_or_warning(summary_of(draws), TRUTH, log="")
    draws[..., 3] *= 1.2
    wrong = summary_of(draws)
    check_run_or_warning(wrong, TRUTH, log="The rhat statistic is larger than 1.01")
    for log in ("", "Sampling 4 chains took 3 seconds."):
        with pytest.raises(AssertionError, match=r"(?s)Nothing was said.*x\[3\]"):
            check_run_or_warning(wrong, TRUTH, log)


@pytest.mark.parametrize(("shift", "stretch"), [(1.5, 1.0), (0.0, 4.0), (0.0, 0.2)])
def test_a_warning_does_not_excuse_another_posterior(
    draws: np.ndarray, shift: float, stretch: float
) -> None:
    mean, sd = TRUTH.iloc[3][["mean", "sd"]]
    draws[..., 3] = mean + sd * shift + stretch * (draws[..., 3] - mean)
    with pytest.raises(AssertionError, match=r"(?s)Elsewhere than.*x\[3\]"):
        check_run_or_warning(summary_of(draws), TRUTH, "The rhat statistic is larger than 1.01")


@pytest.mark.parametrize("draw", [0.0, np.nan])
def test_scalar_without_reference_must_still_converge(draws: np.ndarray, draw: float) -> None:
    check_run_or_warning(summary_of(draws), TRUTH.iloc[:-1], log="")
    draws[0, :, 4] = draw
    with pytest.raises(AssertionError, match=r"x\[4\]"):
        check_run_or_warning(summary_of(draws), TRUTH.iloc[:-1], log="")


@pytest.mark.parametrize(
    "check", [check_converged, check_effective_draws, lambda run: check_moments(run, TRUTH)]
)
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
    reference = load_reference(name)
    assert np.isfinite(reference).all(axis=None)
    if name in EXACT:
        pd.testing.assert_frame_equal(reference, EXACT[name], rtol=1e-5)
        return
    shapes = model.eval_rv_shapes()
    n_scalars = sum(int(np.prod(shapes[rv.name])) for rv in model.free_RVs)
    assert len(reference) == n_scalars
    assert (reference > 0).all()[["sd", "mcse_mean", "mcse_sd"]].all()
