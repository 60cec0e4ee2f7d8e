"""Models of the suite, with the runs that each device is given time for."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import pymc as pm

from pymc_deer.examples import (
    breast_cancer,
    correlated_logistic,
    eight_schools,
    horseshoe,
    radon,
)
from tests.zoo import hierarchical_logistic, latent_gp, stochastic_volatility

_FEW, _FEW_TUNE = 300, 500
"""Draws for runs on a GPU, and of warm-up."""


@dataclass(frozen=True)
class Case:
    """A model and the runs of it, the same for all samplers.

    Attributes
    ----------
    build
        Makes the model.
    draws, chains
        Recorded draws of each chain, and number of chains.
    tune
        Draws of warm-up; None for each sampler's own default.
    repeats
        Interleaved runs of each sampler.
    limit
        Seconds after which a run is given up.
    most_draws
        Of runs on a GPU, as fill its windows.
    """

    build: Callable[[], pm.Model]
    draws: int = 1000
    tune: int | None = None
    chains: int = 4
    repeats: int = 3
    limit: float = 100.0
    most_draws: int = 4000

    @property
    def sizes(self) -> dict[str, int | None]:
        """What a run of a sampler is asked for."""
        return {"draws": self.draws, "tune": self.tune, "chains": self.chains}

    def many_draws(self) -> "Case":
        """As many as fill a GPU's windows, of a model that is not large."""
        return self if self.draws < _FEW else replace(self, draws=self.most_draws, tune=None)

    def few_draws(self) -> "Case":
        """As few as tell what a draw is worth, behind a warm-up that suffices."""
        return self if self.draws < _FEW else replace(self, draws=_FEW, tune=_FEW_TUNE)

    def quick(self) -> "Case":
        """A short run, which shows that everything works."""
        return replace(self, draws=200, tune=200, repeats=1, limit=90.0)


def four_gaussians() -> pm.Model:
    """Four Gaussians of unit variance on a square of side 4, as in Zoltowski et al. (2025).

    The density is the product of a mixture of two in each of the two coordinates.
    """
    with pm.Model() as model:
        pm.NormalMixture("x", w=[0.5, 0.5], mu=[-2.0, 2.0], sigma=1.0, shape=2)
    return model


def hierarchical(n_groups: int) -> pm.Model:
    """Hierarchical logistic regression, one slope and five observations a group."""
    return hierarchical_logistic(n_groups, n_slopes=1, n_observations=5 * n_groups)


german_credit = correlated_logistic
"""As many observations and correlated features, and the prior, as the German credit data has in the
paper; generated, because nothing is downloaded."""


def logistic(n_observations: int) -> Callable[[], pm.Model]:
    """Logistic regression on 50 correlated features."""
    return partial(correlated_logistic, n_observations, 50)


CASES: dict[str, Case] = {
    # A thousand draws of these take a few milliseconds, in which threads hardly wake up.
    "eight_schools": Case(eight_schools, draws=10_000),
    "four_gaussians": Case(four_gaussians, draws=10_000),
    "german_credit": Case(german_credit),
    "breast_cancer": Case(breast_cancer),
    "radon": Case(radon),
    # Hundreds of leapfrog steps for a draw.
    "horseshoe": Case(horseshoe, repeats=1, most_draws=1000),
    "stochastic_volatility": Case(stochastic_volatility),
    "hierarchical_100": Case(hierarchical_logistic, repeats=1),
    "logistic_10k": Case(logistic(10_000), repeats=1, limit=250.0),
    "hierarchical_10k": Case(
        partial(hierarchical, 10_000), draws=100, tune=200, chains=2, repeats=1
    ),
    "logistic_100k": Case(logistic(100_000), draws=60, tune=100, chains=2, repeats=1, limit=200.0),
    "latent_gp_500": Case(
        partial(latent_gp, 500), draws=50, tune=100, chains=2, repeats=1, limit=400.0
    ),
    "hierarchical_100k": Case(partial(hierarchical, 100_000), draws=100, tune=200, repeats=1),
}

CPU = tuple(name for name in CASES if name != "hierarchical_100k")
LARGE = ("hierarchical_10k", "logistic_100k", "latent_gp_500")
"""Of which a CPU takes milliseconds for a gradient: fewer samplers take part."""
CPU_QUICK = ("eight_schools", "german_credit")
GPU = ("horseshoe", "logistic_10k", "german_credit", "hierarchical_100k")
SMALL = tuple(name for name in GPU if name != "hierarchical_100k")
"""Of which a GPU holds hundreds of chains, and a matrix of D x D."""
GPU_QUICK = ("german_credit",)
