"""What divergences cost: ``uv run python -m tests.benchmarks.divergences``.

Posteriors with places too narrow for the step size that suits the rest of them, and two without.
Four chains of 1000 draws, five times with other seeds: `pymc_deer.sample` on Numba at acceptance
rates that stay and as it comes, where DeerHMC raises them behind divergences, and nutpie. Divergent
draws are the mean of the runs, all else their median; effective draws are those of the worst
variable, by gradient. The rows go to ``docs/benchmarks/divergences.json``.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pymc as pm
from arviz import ess

import pymc_deer
from tests.benchmarks.measure import take_no_options, write
from tests.zoo import MODELS

NARROW = ("eight_schools", "stochastic_volatility", "hsgp_regression", "latent_gp", "horseshoe")
WIDE = ("breast_cancer", "radon_slopes")
SEEDS = range(1, 6)
N_DRAWS, N_CHAINS = 1000, 4
QUIET: dict[str, Any] = {"compute_convergence_checks": False}


def ours(**options: Any) -> Callable[[pm.Model, int], Any]:
    """Runs `pymc_deer.sample` with some options, on Numba if they say nothing else."""

    def run(model: pm.Model, seed: int) -> Any:
        return pymc_deer.sample(
            model=model,
            chains=N_CHAINS,
            random_seed=seed,
            quiet=True,
            **{"draws": N_DRAWS, "backend": "numba", **options, **QUIET},
        )

    return run


def nutpie(model: pm.Model, seed: int) -> Any:
    """The same of nutpie."""
    with model:
        return pm.sample(
            N_DRAWS,
            nuts_sampler="nutpie",
            chains=N_CHAINS,
            random_seed=seed,
            progressbar=False,
            quiet=True,
            **QUIET,
        )


SAMPLERS: dict[str, Callable[[pm.Model, int], Any]] = {
    "DeerHMC, 0.8": ours(target_accept=0.8),
    "DeerHMC": ours(),
    "DeerMALA": ours(kernel="mala"),
    "DeerMALA, 0.85": ours(kernel="mala", target_accept=0.85),
    "nutpie": nutpie,
}


def seen(idata: Any) -> tuple[float, ...]:
    """Divergent draws, bulk and tail ESS for 1000 gradients, and the acceptance rate aimed at."""
    stats = idata["sample_stats"]
    gradients = float(stats["n_steps"].sum())
    least = [
        min(float(values.min()) for values in ess(idata, method=method).data_vars.values())
        for method in ("bulk", "tail")
    ]
    target = stats.attrs.get("deer_target_accept", np.nan)
    return float(stats["diverging"].sum()), *(1000 * n / gradients for n in least), target


def rows() -> Iterator[dict[str, object]]:
    """One for each model and sampler."""
    for name in (*NARROW, *WIDE):
        model = MODELS[name]()
        for sampler, run in SAMPLERS.items():
            runs = np.array([seen(run(model, seed)) for seed in SEEDS])
            _, bulk, tail, target = np.median(runs, axis=0)
            yield {
                "model": name,
                "sampler": sampler,
                "target": None if np.isnan(target) else round(float(target), 2),
                "divergent_draws": round(float(runs[:, 0].mean()), 1),
                "bulk_ess_per_1000_gradients": float(f"{bulk:.3g}"),
                "tail_ess_per_1000_gradients": float(f"{tail:.3g}"),
            }


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    write("divergences", rows())


if __name__ == "__main__":
    main()
