"""Chains in different modes: ``uv run python -m tests.benchmarks.modes``.

Gradients for a recorded draw of `pymc_deer.sample` where chains stay in modes that no path
connects: of four chains that warm up together, of one chain (the median of four runs), and of
nutpie, each of whose chains learns alone. Defaults, 1000 draws. The rows go to
``docs/benchmarks/modes.json``.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm

import pymc_deer
from tests.benchmarks.measure import take_no_options, write
from tests.zoo import two_modes

N_CHAINS = 4
SEED = 20_261_125
QUIET: dict[str, Any] = {"quiet": True, "compute_convergence_checks": False}


def mixture(n_components: int) -> pm.Model:
    """A mixture of normals whose labels are not told apart."""
    rng = np.random.default_rng(0)
    y = np.concatenate([rng.normal(4.0 * i, 1.0, 300) for i in range(n_components)])
    with pm.Model() as model:
        weights = pm.Dirichlet("weights", np.ones(n_components))
        mu = pm.Normal("mu", y.mean(), 6.0, shape=n_components)
        sigma = pm.HalfNormal("sigma", 2.0, shape=n_components)
        pm.NormalMixture("y", weights, mu, sigma, observed=y)
    return model


MODELS: dict[str, Callable[[], pm.Model]] = {
    "two modes": lambda: two_modes(5),
    "mixture of 3": lambda: mixture(3),
    "mixture of 5": lambda: mixture(5),
}


def ours(model: pm.Model, kernel: str, chains: int, seed: int) -> float:
    """Gradients for a recorded draw."""
    idata: Any = pymc_deer.sample(
        model=model, kernel=kernel, chains=chains, random_seed=seed, **QUIET
    )
    return float(idata["sample_stats"]["n_steps"].mean())


def nutpie(model: pm.Model) -> float:
    """The same of nutpie."""
    with model:
        idata: Any = pm.sample(
            nuts_sampler="nutpie",
            chains=N_CHAINS,
            random_seed=SEED,
            progressbar=False,
            **QUIET,
        )
    return float(idata["sample_stats"]["n_steps"].mean())


def rows() -> Iterator[dict[str, object]]:
    """One for each model and kernel."""
    for name, build in MODELS.items():
        model = build()
        theirs = nutpie(model)
        for kernel in ("hmc", "mala"):
            alone = [ours(model, kernel, 1, SEED + i) for i in range(N_CHAINS)]
            yield {
                "model": name,
                "kernel": kernel,
                "gradients_per_draw_together": round(ours(model, kernel, N_CHAINS, SEED), 1),
                "gradients_per_draw_alone": round(float(np.median(alone)), 1),
                "gradients_per_draw_nutpie": round(theirs, 1),
            }


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    write("modes", rows())


if __name__ == "__main__":
    main()
