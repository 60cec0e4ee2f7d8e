"""Models for the demonstration, the tests and the benchmarks; all data is bundled or generated."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt

from pymc_deer.status import BackendError


def eight_schools() -> pm.Model:
    """Eight schools, non-centred (Rubin 1981; Gelman et al., BDA3, section 5.5)."""
    y = np.array([28.0, 8.0, -3.0, 7.0, -1.0, 1.0, 18.0, 12.0])
    sigma = np.array([15.0, 10.0, 16.0, 11.0, 9.0, 11.0, 10.0, 18.0])
    with pm.Model(coords={"school": list("ABCDEFGH")}) as model:
        mu = pm.Normal("mu", 0.0, 5.0)
        tau = pm.HalfCauchy("tau", 5.0)
        eta = pm.Normal("eta", 0.0, 1.0, dims="school")
        theta = pm.Deterministic("theta", mu + tau * eta, dims="school")
        pm.Normal("y", theta, sigma, observed=y, dims="school")
    return model


def breast_cancer() -> pm.Model:
    """Logistic regression, N(0, 1) priors, on 569 x 30 standardised, correlated features."""
    features, target = _breast_cancer_data()
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 1.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=features.shape[1])
        pm.Bernoulli("y", logit_p=intercept + pt.dot(features, beta), observed=target)
    return model


def horseshoe() -> pm.Model:
    """Horseshoe-like logistic regression on the breast-cancer data: long-tailed log-scales."""
    features, target = _breast_cancer_data()
    n_features = features.shape[1]
    with pm.Model() as model:
        tau = pm.Gamma("tau", 0.5, 0.5)
        lam = pm.Gamma("lam", 0.5, 0.5, shape=n_features)
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_features)
        pm.Bernoulli("y", logit_p=pt.dot(features, tau * lam * beta), observed=target)
    return model


def radon(n_counties: int = 85, n_homes: int = 919, seed: int = 0) -> pm.Model:
    """Varying intercepts with a county-level predictor, non-centred, on generated data."""
    rng = np.random.default_rng(seed)
    county = rng.integers(0, n_counties, n_homes)
    floor = rng.binomial(1, 0.17, n_homes)
    uranium = rng.normal(size=n_counties)
    intercepts = 1.4 + 0.35 * uranium + rng.normal(0.0, 0.3, n_counties)
    log_radon = intercepts[county] - 0.6 * floor + rng.normal(0.0, 0.75, n_homes)
    with pm.Model() as model:
        gamma = pm.Normal("gamma", 0.0, 1.0, shape=2)
        sigma_alpha = pm.HalfNormal("sigma_alpha", 1.0)
        z = pm.Normal("z", 0.0, 1.0, shape=n_counties)
        beta_floor = pm.Normal("beta_floor", 0.0, 1.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        alpha = gamma[0] + gamma[1] * uranium + sigma_alpha * z
        pm.Normal("y", alpha[county] + beta_floor * floor, sigma, observed=log_radon)
    return model


def correlated_logistic(
    n_observations: int = 1000, n_features: int = 25, correlation: float = 0.5, seed: int = 0
) -> pm.Model:
    """Logistic regression, N(0, 1) priors, equicorrelated features, on generated data."""
    features, y = correlated_logistic_data(n_observations, n_features, correlation, seed)
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_features)
        pm.Bernoulli("y", logit_p=pt.dot(_in_floatx(features), beta), observed=y)
    return model


def correlated_logistic_data(
    n_observations: int = 1000, n_features: int = 25, correlation: float = 0.5, seed: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Features (N, K) and outcomes (N,) of :func:`correlated_logistic`."""
    rng = np.random.default_rng(seed)
    covariance = correlation + (1.0 - correlation) * np.eye(n_features)
    features = rng.normal(size=(n_observations, n_features)) @ np.linalg.cholesky(covariance).T
    beta_true = 0.5 * rng.normal(size=n_features)
    return features, rng.binomial(1, 1.0 / (1.0 + np.exp(-features @ beta_true)))


def correlated_gaussian(n_dim: int = 50, correlation: float = 0.9) -> pm.Model:
    """Gaussian with AR(1) correlation and standard deviations from 0.1 to 10."""
    lags = np.abs(np.subtract.outer(np.arange(n_dim), np.arange(n_dim)))
    sd = np.geomspace(0.1, 10.0, n_dim)
    with pm.Model() as model:
        pm.MvNormal("x", mu=np.zeros(n_dim), cov=correlation**lags * np.outer(sd, sd))
    return model


def _breast_cancer_data() -> tuple[np.ndarray, np.ndarray]:
    try:
        from sklearn.datasets import load_breast_cancer
    except ImportError as error:
        raise BackendError(
            "The breast-cancer data comes with scikit-learn: pip install scikit-learn"
        ) from error
    features, target = map(np.asarray, load_breast_cancer(return_X_y=True))
    return _in_floatx((features - features.mean(axis=0)) / features.std(axis=0)), target


def _in_floatx(values: np.ndarray) -> np.ndarray:
    """In PyMC's precision: arrays written into a model keep their own."""
    return values.astype(pytensor.config.floatX)


EXAMPLES: dict[str, Callable[[], pm.Model]] = {
    "breast-cancer": breast_cancer,
    "eight-schools": eight_schools,
    "radon": radon,
    "horseshoe": horseshoe,
}
"""Models that ``python -m pymc_deer --model NAME`` knows."""
