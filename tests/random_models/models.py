"""Small models drawn at random: priors, links, likelihoods, shapes and where the data lies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_deer.typing import Tensor

Shape = tuple[int, ...]

REALS: dict[str, Callable[..., Tensor]] = {
    "Normal": lambda name, **kw: pm.Normal(name, 0.5, 1.5, **kw),
    "StudentT": lambda name, **kw: pm.StudentT(name, nu=4, mu=0.0, sigma=1.0, **kw),
    "Laplace": lambda name, **kw: pm.Laplace(name, 0.0, 1.0, **kw),
    "Logistic": lambda name, **kw: pm.Logistic(name, 0.0, 0.7, **kw),
    "Gumbel": lambda name, **kw: pm.Gumbel(name, 0.0, 1.0, **kw),
    "SkewNormal": lambda name, **kw: pm.SkewNormal(name, mu=0, sigma=1, alpha=2, **kw),
    "Cauchy": lambda name, **kw: pm.Cauchy(name, 0.0, 0.5, **kw),
    "Moyal": lambda name, **kw: pm.Moyal(name, 0.0, 0.5, **kw),
    "AsymmetricLaplace": lambda name, **kw: pm.AsymmetricLaplace(name, kappa=2, mu=0, b=1, **kw),
    "ExGaussian": lambda name, **kw: pm.ExGaussian(name, 0.0, 1.0, nu=1.0, **kw),
    "TruncatedNormal": lambda name, **kw: pm.TruncatedNormal(
        name, 0.0, 1.0, lower=-1.0, upper=2.0, **kw
    ),
    "Uniform": lambda name, **kw: pm.Uniform(name, -2.0, 3.0, **kw),
}
"""Priors on the line."""

POSITIVES: dict[str, Callable[..., Tensor]] = {
    "HalfNormal": lambda name, **kw: pm.HalfNormal(name, 1.0, **kw),
    "Exponential": lambda name, **kw: pm.Exponential(name, 1.0, **kw),
    "Gamma": lambda name, **kw: pm.Gamma(name, 2.0, 2.0, **kw),
    "InverseGamma": lambda name, **kw: pm.InverseGamma(name, 3.0, 2.0, **kw),
    "LogNormal": lambda name, **kw: pm.LogNormal(name, 0.0, 0.5, **kw),
    "Weibull": lambda name, **kw: pm.Weibull(name, 1.5, 1.0, **kw),
    "HalfStudentT": lambda name, **kw: pm.HalfStudentT(name, nu=4, sigma=1.0, **kw),
    "HalfCauchy": lambda name, **kw: pm.HalfCauchy(name, 1.0, **kw),
    "Wald": lambda name, **kw: pm.Wald(name, mu=1.0, lam=2.0, **kw),
    "ChiSquared": lambda name, **kw: pm.ChiSquared(name, nu=3, **kw),
    "Pareto": lambda name, **kw: pm.Pareto(name, alpha=3.0, m=0.5, **kw),
    "Uniform": lambda name, **kw: pm.Uniform(name, 0.1, 3.0, **kw),
}
"""Priors on the half line."""

UNITS: dict[str, Callable[..., Tensor]] = {
    "Beta": lambda name, **kw: pm.Beta(name, 2.0, 3.0, **kw),
    "Uniform": lambda name, **kw: pm.Uniform(name, 0.0, 1.0, **kw),
    "Kumaraswamy": lambda name, **kw: pm.Kumaraswamy(name, 2.0, 2.0, **kw),
    "LogitNormal": lambda name, **kw: pm.LogitNormal(name, 0.0, 1.0, **kw),
    "Triangular": lambda name, **kw: pm.Triangular(name, lower=0.0, c=0.4, upper=1.0, **kw),
}
"""Priors on (0, 1)."""


@dataclass
class Draft:
    """A model in the making, and the choices that it was made of."""

    rng: np.random.Generator
    n: int
    choices: list[str] = field(default_factory=list)

    def chosen(self, options: dict[str, Callable[..., Tensor]], kind: str) -> Callable[..., Tensor]:
        """One of the options, written down."""
        name = str(self.rng.choice(sorted(options)))
        self.choices.append(f"{kind}={name}")
        return options[name]

    def positive(self, name: str, shape: Shape = ()) -> Tensor:
        return self.chosen(POSITIVES, name)(name, shape=shape)

    def data(self, name: str, value: np.ndarray) -> Tensor:
        """Where the numbers lie: a constant of the graph, or pm.Data."""
        return pm.Data(name, value) if self.rng.random() < 0.4 else pt.constant(value)


# Effects: terms of the linear predictor, each broadcastable to (n,).


def _scalar(draft: Draft, name: str) -> Tensor:
    return draft.chosen(REALS, name)(name)


def _regression(draft: Draft, name: str) -> Tensor:
    k = int(draft.rng.integers(1, 4))
    features = draft.data(f"{name}_x", draft.rng.normal(size=(draft.n, k)))
    return pt.dot(features, draft.chosen(REALS, name)(name, shape=k))


def _centred_groups(draft: Draft, name: str) -> Tensor:
    k = int(draft.rng.integers(2, 4))
    groups = pm.Normal(name, 0.0, draft.positive(f"{name}_scale"), shape=k)
    return groups[draft.rng.integers(0, k, draft.n)]


def _groups(draft: Draft, name: str) -> Tensor:
    k = int(draft.rng.integers(2, 4))
    standard = draft.chosen(REALS, name)(name, shape=k)
    return (draft.positive(f"{name}_scale") * standard)[draft.rng.integers(0, k, draft.n)]


def _crossed(draft: Draft, name: str) -> Tensor:
    table = draft.chosen(REALS, name)(name, shape=(2, 3))
    return table[draft.rng.integers(0, 2, draft.n), draft.rng.integers(0, 3, draft.n)]


def _random_walk(draft: Draft, name: str) -> Tensor:
    start = pm.Normal.dist(0.0, 1.0)
    return pm.GaussianRandomWalk(name, sigma=0.5, init_dist=start, steps=draft.n - 1)


def _autoregression(draft: Draft, name: str) -> Tensor:
    start = pm.Normal.dist(0.0, 1.0)
    rho = draft.chosen(UNITS, f"{name}_rho")(f"{name}_rho")
    return pm.AR(name, rho=[rho], sigma=0.5, init_dist=start, steps=draft.n - 1)


def _zero_sum(draft: Draft, name: str) -> Tensor:
    return pm.ZeroSumNormal(name, 1.0, shape=draft.n)


def _multivariate(draft: Draft, name: str) -> Tensor:
    root = draft.rng.normal(size=(2, 2))
    slopes = pm.MvNormal(name, np.zeros(2), cov=root @ root.T + np.eye(2))
    return pt.dot(draft.data(f"{name}_x", draft.rng.normal(size=(draft.n, 2))), slopes)


def _correlated(draft: Draft, name: str) -> Tensor:
    factor, _, _ = pm.LKJCholeskyCov(
        name, n=2, eta=2.0, sd_dist=pm.HalfNormal.dist(1.0, shape=2), compute_corr=True
    )
    standard = pm.Normal(f"{name}_z", 0.0, 1.0, shape=(3, 2))
    return pt.dot(standard, factor.T)[draft.rng.integers(0, 3, draft.n), 1]


def _weighted(draft: Draft, name: str) -> Tensor:
    weights = pm.Dirichlet(name, np.array([1.0, 2.0, 3.0]))
    return pt.dot(draft.data(f"{name}_x", draft.rng.normal(size=(draft.n, 3))), weights)


def _monotone(draft: Draft, name: str) -> Tensor:
    levels = pm.Normal(
        name,
        0.0,
        1.0,
        shape=3,
        transform=pm.distributions.transforms.ordered,
        initval=np.array([-1.0, 0.0, 1.0]),
    )
    return levels[draft.rng.integers(0, 3, draft.n)]


def _curve(draft: Draft, name: str) -> Tensor:
    x = np.linspace(-1.0, 1.0, draft.n)
    scale = draft.positive(f"{name}_scale")
    return scale * pt.tanh(x * draft.chosen(REALS, name)(name))


def _gaussian_process(draft: Draft, name: str) -> Tensor:
    x = np.linspace(0.0, 1.0, draft.n)[:, None]
    kernel = draft.positive(f"{name}_scale") ** 2 * pm.gp.cov.ExpQuad(1, ls=0.3)
    return pm.gp.Latent(cov_func=kernel).prior(name, x)


def _imputed(draft: Draft, name: str) -> Tensor:
    values = draft.rng.normal(size=draft.n)
    values[draft.rng.integers(0, draft.n)] = np.nan
    covariate = pm.Normal(name, 0.0, 1.0, observed=np.ma.masked_invalid(values))
    return covariate * pm.Normal(f"{name}_slope", 0.0, 1.0)


EFFECTS: dict[str, Callable[[Draft, str], Tensor]] = {
    "scalar": _scalar,
    "regression": _regression,
    "centred groups": _centred_groups,
    "groups": _groups,
    "crossed": _crossed,
    "random walk": _random_walk,
    "autoregression": _autoregression,
    "zero sum": _zero_sum,
    "multivariate": _multivariate,
    "correlated": _correlated,
    "weighted": _weighted,
    "monotone": _monotone,
    "curve": _curve,
    "gaussian process": _gaussian_process,
    "imputed": _imputed,
}

# Links: from the linear predictor to what a likelihood asks for.

REAL_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "identity": lambda eta: eta,
    "tanh": lambda eta: 3.0 * pt.tanh(eta / 3.0),
    "quadratic": lambda eta: eta + 0.1 * eta**2,
    "sine": lambda eta: eta + 0.3 * pt.sin(eta),
}
POSITIVE_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "exp": lambda eta: pt.exp(pt.clip(eta, -8.0, 8.0)),
    "softplus": lambda eta: 1e-3 + pt.softplus(eta),
    "root": lambda eta: pt.sqrt(1.0 + eta**2),
}
UNIT_LINKS: dict[str, Callable[[Tensor], Tensor]] = {
    "logit": pm.math.invlogit,
    "probit": lambda eta: pt.clip(pm.math.invprobit(eta), 1e-9, 1 - 1e-9),
    "cloglog": lambda eta: pt.clip(1.0 - pt.exp(-pt.exp(pt.clip(eta, -9, 3))), 1e-9, 1 - 1e-9),
}

# Likelihoods: of the linear predictor, shape (n,).


def _gaussian(draft: Draft, eta: Tensor) -> None:
    mu, y = draft.chosen(REAL_LINKS, "link")(eta), draft.rng.normal(0.5, 1.0, draft.n)
    pm.Normal("y", mu, draft.positive("sigma"), observed=draft.data("observed", y))


def _robust(draft: Draft, eta: Tensor) -> None:
    y = draft.rng.standard_t(3, draft.n)
    mu = draft.chosen(REAL_LINKS, "link")(eta)
    pm.StudentT("y", nu=4, mu=mu, sigma=draft.positive("sigma"), observed=y)


def _laplace(draft: Draft, eta: Tensor) -> None:
    y = draft.rng.laplace(size=draft.n)
    pm.Laplace("y", eta, draft.positive("sigma"), observed=draft.data("observed", y))


def _missing(draft: Draft, eta: Tensor) -> None:
    y = draft.rng.normal(size=draft.n)
    y[0] = np.nan
    pm.Normal("y", eta, draft.positive("sigma"), observed=np.ma.masked_invalid(y))


def _censored(draft: Draft, eta: Tensor) -> None:
    y = np.clip(draft.rng.normal(size=draft.n), -1.0, 1.0)
    latent = pm.Normal.dist(eta, draft.positive("sigma"))
    pm.Censored("y", latent, lower=-1.0, upper=1.0, observed=y)


def _poisson(draft: Draft, eta: Tensor) -> None:
    rate, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.poisson(2.0, draft.n)
    pm.Poisson("y", rate, observed=draft.data("observed", y))


def _negative_binomial(draft: Draft, eta: Tensor) -> None:
    mu, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.poisson(3.0, draft.n)
    pm.NegativeBinomial("y", mu=mu, alpha=draft.positive("alpha"), observed=y)


def _zero_inflated(draft: Draft, eta: Tensor) -> None:
    mu, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.poisson(1.0, draft.n)
    pm.ZeroInflatedPoisson("y", psi=draft.chosen(UNITS, "psi")("psi"), mu=mu, observed=y)


def _bernoulli(draft: Draft, eta: Tensor) -> None:
    p, y = draft.chosen(UNIT_LINKS, "link")(eta), draft.rng.binomial(1, 0.5, draft.n)
    pm.Bernoulli("y", p, observed=draft.data("observed", y))


def _binomial(draft: Draft, eta: Tensor) -> None:
    p, y = draft.chosen(UNIT_LINKS, "link")(eta), draft.rng.binomial(6, 0.4, draft.n)
    pm.Binomial("y", n=6, p=p, observed=y)


def _beta_binomial(draft: Draft, eta: Tensor) -> None:
    alpha, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.binomial(6, 0.4, draft.n)
    pm.BetaBinomial("y", alpha=alpha, beta=draft.positive("b"), n=6, observed=y)


def _gamma(draft: Draft, eta: Tensor) -> None:
    mu, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.gamma(2.0, 1.0, draft.n)
    pm.Gamma("y", mu=mu, sigma=draft.positive("sigma"), observed=y)


def _weibull(draft: Draft, eta: Tensor) -> None:
    beta, y = draft.chosen(POSITIVE_LINKS, "link")(eta), draft.rng.weibull(1.5, draft.n)
    pm.Weibull("y", alpha=1.0 + draft.positive("alpha"), beta=beta, observed=y)


def _beta(draft: Draft, eta: Tensor) -> None:
    mu, y = draft.chosen(UNIT_LINKS, "link")(eta), draft.rng.beta(2.0, 2.0, draft.n)
    pm.Beta("y", alpha=0.5 + 4 * mu, beta=0.5 + 4 * (1 - mu), observed=y)


def _von_mises(draft: Draft, eta: Tensor) -> None:
    y = draft.rng.vonmises(0.0, 1.0, draft.n)
    pm.VonMises("y", mu=2 * pt.arctan(eta), kappa=1.0, observed=y)


def _mixture(draft: Draft, eta: Tensor) -> None:
    weights = pm.Dirichlet("weights", np.ones(2))
    mu = pt.stack([eta, eta + 2.0], axis=-1)
    y = draft.rng.normal(size=draft.n)
    pm.NormalMixture("y", w=weights, mu=mu, sigma=draft.positive("sigma"), observed=y)


def _ordinal(draft: Draft, eta: Tensor) -> None:
    y = draft.rng.integers(0, 3, draft.n)
    pm.OrderedLogistic("y", eta=eta, cutpoints=np.array([-1.0, 1.0]), observed=y)


def _categorical(draft: Draft, eta: Tensor) -> None:
    logits = pt.stack([eta, pt.zeros_like(eta), -eta], axis=-1)
    pm.Categorical("y", logit_p=logits, observed=draft.rng.integers(0, 3, draft.n))


def _multinomial(draft: Draft, eta: Tensor) -> None:
    p = pt.special.softmax(pt.stack([eta, pt.zeros_like(eta), -eta], axis=-1), axis=-1)
    pm.Multinomial("y", n=5, p=p, observed=draft.rng.multinomial(5, [0.3, 0.3, 0.4], draft.n))


def _multivariate_normal(draft: Draft, eta: Tensor) -> None:
    factor, _, _ = pm.LKJCholeskyCov(
        "factor", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0, shape=2), compute_corr=True
    )
    y = draft.rng.normal(size=(draft.n, 2))
    pm.MvNormal("y", mu=pt.stack([eta, -eta], axis=-1), chol=factor, observed=y)


def _potential(draft: Draft, eta: Tensor) -> None:
    pm.Potential("y", -pt.sum(pt.log1p((eta - draft.rng.normal(size=draft.n)) ** 2)))


LIKELIHOODS: dict[str, Callable[[Draft, Tensor], None]] = {
    "Normal": _gaussian,
    "StudentT": _robust,
    "Laplace": _laplace,
    "missing": _missing,
    "Censored": _censored,
    "Poisson": _poisson,
    "NegativeBinomial": _negative_binomial,
    "ZeroInflatedPoisson": _zero_inflated,
    "Bernoulli": _bernoulli,
    "Binomial": _binomial,
    "BetaBinomial": _beta_binomial,
    "Gamma": _gamma,
    "Weibull": _weibull,
    "Beta": _beta,
    "VonMises": _von_mises,
    "NormalMixture": _mixture,
    "OrderedLogistic": _ordinal,
    "Categorical": _categorical,
    "Multinomial": _multinomial,
    "MvNormal": _multivariate_normal,
    "Potential": _potential,
}


def random_model(seed: int) -> tuple[pm.Model, str]:
    """The model of this number, and what it is made of."""
    rng = np.random.default_rng([20_250_107, seed])
    draft = Draft(rng, n=int(rng.integers(4, 9)))
    with pm.Model() as model:
        eta = pt.zeros(draft.n)
        for i in range(int(rng.integers(1, 3))):
            eta += draft.chosen(EFFECTS, f"effect_{i}")(draft, f"effect_{i}")
        draft.chosen(LIKELIHOODS, "likelihood")(draft, eta)
    return model, ", ".join(draft.choices)
