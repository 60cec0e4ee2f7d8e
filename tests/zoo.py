"""A zoo of posteriors on which DeerMALA must converge, or say that it did not.

All data is generated, from fixed seeds and the model's own likelihood, or bundled with
scikit-learn. The tractable posteriors are proper, identified and unimodal, so that disagreement
with NUTS can only come from a sampler.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
from pymc.distributions.transforms import ordered
from scipy.special import expit

from pymc_deer import examples


def hierarchical_logistic(
    n_groups: int = 100, n_slopes: int = 5, n_observations: int = 1000
) -> pm.Model:
    """Logistic regression with five slopes varying over 100 groups, non-centred."""
    rng = np.random.default_rng(1)
    group = rng.integers(0, n_groups, n_observations)
    features = rng.normal(size=(n_observations, n_slopes))
    slopes = np.linspace(-1.0, 1.0, n_slopes) + 0.7 * rng.normal(size=(n_groups, n_slopes))
    y = rng.binomial(1, expit(0.3 + (features * slopes[group]).sum(axis=1)))
    features = features.astype(pytensor.config.floatX)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 1.0)
        mu = pm.Normal("mu", 0.0, 1.0, shape=n_slopes)
        tau = pm.HalfNormal("tau", 1.0, shape=n_slopes)
        z = pm.Normal("z", 0.0, 1.0, shape=(n_groups, n_slopes))
        beta = mu + tau * z
        pm.Bernoulli("y", logit_p=intercept + (features * beta[group]).sum(axis=1), observed=y)
    return model


def radon_slopes(n_counties: int = 85, n_homes: int = 919) -> pm.Model:
    """Intercepts and floor effects varying over counties, correlated (LKJ), non-centred."""

    def factor() -> Any:
        sd_dist = pm.HalfNormal.dist(1.0, shape=2)
        return pm.LKJCholeskyCov("chol", n=2, eta=2.0, sd_dist=sd_dist, store_in_trace=False)[0]

    return _varying_slopes(factor, n_counties, n_homes)


def radon_slopes_apart(n_counties: int = 85, n_homes: int = 919) -> pm.Model:
    """The posterior of `radon_slopes` with deviations and correlation as variables of their own.

    Nothing gets narrow here where slopes hardly vary for given intercepts (`last`).
    """

    def factor() -> Any:
        sd = pm.HalfNormal("sd", 1.0, shape=2)
        # LKJ of two dimensions.
        rho = 2 * pm.Beta("half_of_rho", 2.0, 2.0) - 1
        last = pm.Deterministic("last", sd[1] * pt.sqrt(1 - rho**2))
        return pt.stack([pt.stack([sd[0], 0.0]), pt.stack([sd[1] * rho, last])])

    return _varying_slopes(factor, n_counties, n_homes)


def _varying_slopes(factor: Callable[[], Any], n_counties: int, n_homes: int) -> pm.Model:
    """Both of these, given what makes the factor of the effects' covariance."""
    rng = np.random.default_rng(2)
    county = rng.integers(0, n_counties, n_homes)
    floor = rng.binomial(1, 0.3, n_homes)
    covariance = [[0.16, -0.04], [-0.04, 0.09]]
    effects = rng.multivariate_normal([1.4, -0.6], covariance, size=n_counties)
    log_radon = effects[county, 0] + effects[county, 1] * floor + 0.75 * rng.normal(size=n_homes)
    with pm.Model() as model:
        mu = pm.Normal("mu", 0.0, 2.0, shape=2)
        chol = factor()
        z = pm.Normal("z", 0.0, 1.0, shape=(n_counties, 2))
        effect = (mu + pt.dot(z, chol.T))[county]
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", effect[:, 0] + effect[:, 1] * floor, sigma, observed=log_radon)
    return model


def rotated_covariance(n_dim: int = 100, condition: float = 1e4) -> np.ndarray:
    """Covariance matrix of `rotated_gaussian`."""
    rng = np.random.default_rng(3)
    rotation, _ = np.linalg.qr(rng.normal(size=(n_dim, n_dim)))
    return (rotation * np.geomspace(1.0 / condition, 1.0, n_dim)) @ rotation.T


def rotated_gaussian(n_dim: int = 100, condition: float = 1e4) -> pm.Model:
    """Gaussian in 100 dimensions, condition number 1e4, principal axes in random directions."""
    with pm.Model() as model:
        pm.MvNormal("x", mu=np.zeros(n_dim), cov=rotated_covariance(n_dim, condition))
    return model


def student_t_regression(n_observations: int = 500, n_features: int = 5) -> pm.Model:
    """Robust linear regression with unknown degrees of freedom."""
    rng = np.random.default_rng(4)
    features = rng.normal(size=(n_observations, n_features))
    beta_true = np.linspace(-1.0, 1.0, n_features)
    y = 0.5 + features @ beta_true + 0.8 * rng.standard_t(4.0, n_observations)
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        beta = pm.Normal("beta", 0.0, 2.0, shape=n_features)
        sigma = pm.HalfNormal("sigma", 2.0)
        nu = pm.Gamma("nu", 2.0, 0.1)
        pm.StudentT("y", nu=nu, mu=intercept + pt.dot(features, beta), sigma=sigma, observed=y)
    return model


def negative_binomial_regression(n_observations: int = 500, n_features: int = 4) -> pm.Model:
    """Overdispersed counts, log link, unknown dispersion."""
    rng = np.random.default_rng(5)
    features = rng.normal(size=(n_observations, n_features))
    rate = np.exp(1.0 + features @ np.linspace(-0.5, 0.5, n_features))
    y = rng.poisson(rate * rng.gamma(2.0, 1.0 / 2.0, n_observations))
    with pm.Model() as model:
        intercept = pm.Normal("intercept", 0.0, 2.0)
        beta = pm.Normal("beta", 0.0, 1.0, shape=n_features)
        alpha = pm.Gamma("alpha", 2.0, 0.5)
        mu = pt.exp(intercept + pt.dot(features, beta))
        pm.NegativeBinomial("y", mu=mu, alpha=alpha, observed=y)
    return model


def ordered_logistic(n_observations: int = 500) -> pm.Model:
    """Five ordered categories, three predictors, ordered cutpoints."""
    rng = np.random.default_rng(6)
    features = rng.normal(size=(n_observations, 3))
    latent = features @ [1.0, -0.5, 0.2] + rng.logistic(size=n_observations)
    cuts = np.array([-2.0, -0.5, 0.7, 2.0])
    with pm.Model() as model:
        cutpoints = pm.Normal(
            "cutpoints", 0.0, 3.0, shape=4, transform=ordered, initval=np.linspace(-2.0, 2.0, 4)
        )
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.OrderedLogistic(
            "y",
            eta=pt.dot(features, beta),
            cutpoints=cutpoints,
            compute_p=False,
            observed=np.searchsorted(cuts, latent),
        )
    return model


def hsgp_regression(n_observations: int = 200) -> pm.Model:
    """Smooth curve in noise: Gaussian process in 15 basis functions, non-centred."""
    rng = np.random.default_rng(7)
    x = np.sort(rng.uniform(-1.0, 1.0, n_observations))
    y = np.sin(4.0 * x) + 0.5 * x + 0.3 * rng.normal(size=n_observations)
    with pm.Model() as model:
        length = pm.LogNormal("length", np.log(0.5), 0.3)
        scale = pm.HalfNormal("scale", 1.0)
        covariance = scale**2 * pm.gp.cov.ExpQuad(1, ls=length)
        gp = pm.gp.HSGP(m=[15], c=1.5, cov_func=covariance, parametrization="noncentered")
        f = gp.prior("f", X=x[:, None])
        sigma = pm.HalfNormal("sigma", 1.0)
        pm.Normal("y", f, sigma, observed=y)
    return model


def item_response(n_persons: int = 40, n_items: int = 20) -> pm.Model:
    """Two-parameter logistic item response; positive discriminations fix the sign of ability."""
    rng = np.random.default_rng(8)
    ability = rng.normal(size=(n_persons, 1))
    difficulty, slope = rng.normal(size=n_items), rng.lognormal(0.0, 0.4, n_items)
    y = rng.binomial(1, expit(slope * (ability - difficulty)))
    with pm.Model() as model:
        theta = pm.Normal("theta", 0.0, 1.0, shape=n_persons)
        b = pm.Normal("b", 0.0, 1.0, shape=n_items)
        a = pm.LogNormal("a", 0.0, 0.5, shape=n_items)
        pm.Bernoulli("y", logit_p=a * (theta[:, None] - b), observed=y)
    return model


def dirichlet_multinomial(n_groups: int = 12, n_trials: int = 60) -> pm.Model:
    """Counts in six categories, overdispersed between groups."""
    rng = np.random.default_rng(9)
    fractions = np.array([0.3, 0.25, 0.2, 0.12, 0.08, 0.05])
    counts = rng.multinomial(n_trials, rng.dirichlet(20.0 * fractions, size=n_groups))
    with pm.Model() as model:
        fraction = pm.Dirichlet("fraction", np.ones(6))
        concentration = pm.LogNormal("concentration", 3.0, 1.0)
        pm.DirichletMultinomial("y", n=n_trials, a=fraction * concentration, observed=counts)
    return model


def marginal_mixture(n_observations: int = 400) -> pm.Model:
    """Three normal components, assignments summed out, means ordered.

    The components share their sd: with sds of their own, a wide one across two clusters is a mode.
    """
    rng = np.random.default_rng(10)
    component = rng.choice(3, n_observations, p=[0.3, 0.45, 0.25])
    y = rng.normal(np.array([-3.0, 0.0, 3.0])[component], 0.8)
    with pm.Model() as model:
        w = pm.Dirichlet("w", 4.0 * np.ones(3))
        mu = pm.Normal(
            "mu", 0.0, 3.0, shape=3, transform=ordered, initval=np.array([-2.0, 0.0, 2.0])
        )
        sigma = pm.LogNormal("sigma", -0.5, 0.5)
        pm.NormalMixture("y", w=w, mu=mu, sigma=sigma, observed=y)
    return model


def stochastic_volatility(n_days: int = 300) -> pm.Model:
    """Student-t returns whose log-volatility is a Gaussian random walk, in scaled increments."""
    rng = np.random.default_rng(11)
    log_volatility = -0.5 + np.cumsum(0.12 * rng.normal(size=n_days))
    returns = np.exp(log_volatility) * rng.standard_t(8.0, n_days)
    with pm.Model() as model:
        level = pm.Normal("level", 0.0, 1.0)
        step_sd = pm.Exponential("step_sd", 5.0)
        z = pm.Normal("z", 0.0, 1.0, shape=n_days)
        nu = pm.Gamma("nu", 2.0, 0.1)
        volatility = pt.exp(level + step_sd * pt.cumsum(z))
        pm.StudentT("returns", nu=nu, mu=0.0, sigma=volatility, observed=returns)
    return model


def latent_gp(n_observations: int = 60) -> pm.Model:
    """Counts whose log-rate is a latent Gaussian process, non-centred."""
    rng = np.random.default_rng(12)
    x = np.linspace(-1.0, 1.0, n_observations)
    counts = rng.poisson(np.exp(1.0 + np.sin(4.0 * x)))
    with pm.Model() as model:
        mean = pm.Normal("mean", 0.0, 1.0)
        length = pm.LogNormal("length", np.log(0.5), 0.3)
        scale = pm.HalfNormal("scale", 1.0)
        gp = pm.gp.Latent(cov_func=scale**2 * pm.gp.cov.Matern52(1, ls=length))
        f = gp.prior("f", X=x[:, None])
        pm.Poisson("y", pt.exp(mean + f), observed=counts)
    return model


def funnel(n_dim: int = 9) -> pm.Model:
    """Neal's funnel (2003), centred: nine normals whose log-variance is N(0, 3)."""
    with pm.Model() as model:
        v = pm.Normal("v", 0.0, 3.0)
        pm.Normal("x", 0.0, pt.exp(v / 2.0), shape=n_dim)
    return model


def rosenbrock() -> pm.Model:
    """Rosenbrock's density (Goodman and Weare 2010): a narrow parabola, 100 times as long."""
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, np.sqrt(10.0))
        pm.Normal("y", x**2, np.sqrt(0.1))
    return model


def two_modes(size: int) -> pm.Model:
    """Two narrow modes in the first coordinate, which no path connects."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 10.0, shape=size)
        pm.Potential("modes", pt.logaddexp(-2 * (x[0] - 20) ** 2, -2 * (x[0] + 20) ** 2))
    return model


TRACTABLE: dict[str, Callable[[], pm.Model]] = {
    "eight_schools": examples.eight_schools,
    "breast_cancer": examples.breast_cancer,
    "radon": examples.radon,
    "correlated_gaussian": examples.correlated_gaussian,
    "rotated_gaussian": rotated_gaussian,
    "hierarchical_logistic": hierarchical_logistic,
    "radon_slopes": radon_slopes,
    "student_t_regression": student_t_regression,
    "negative_binomial_regression": negative_binomial_regression,
    "ordered_logistic": ordered_logistic,
    "item_response": item_response,
    "dirichlet_multinomial": dirichlet_multinomial,
    "marginal_mixture": marginal_mixture,
}
"""Models on which a run with the defaults must converge to the right moments."""

HARD: dict[str, Callable[[], pm.Model]] = {
    "horseshoe": examples.horseshoe,
    "hsgp_regression": hsgp_regression,
    "stochastic_volatility": stochastic_volatility,
    "latent_gp": latent_gp,
    "funnel": funnel,
    "rosenbrock": rosenbrock,
}
"""Models on which a run may fail to converge, but not in silence."""

MODELS = TRACTABLE | HARD
