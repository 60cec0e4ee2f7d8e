"""What smaller steps are good for: ``uv run python -m tests.benchmarks.small_steps``.

`pymc_deer.sample`, four chains of 1000 draws, with several shares of transitions that take smaller
steps. Where a posterior has a narrow place: root mean square errors over 40 runs of three
expectations there, beside nutpie's. The posterior is that of radon with correlated slopes; narrow
is where slopes hardly vary for given intercepts, at deviations below their quantiles of 0.01 and
0.05. Their true values are from a long run in coordinates in which nothing is narrow. Where a
posterior has none: effective draws for 1000 gradients, of the worst variable, medians of five runs.
The rows go to ``docs/benchmarks/small_steps.json``.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pymc as pm

import pymc_deer
from tests.benchmarks.divergences import QUIET, nutpie, ours, seen
from tests.benchmarks.measure import take_no_options, write
from tests.zoo import MODELS, radon_slopes, radon_slopes_apart

SHARES = (0.0, 0.05, 0.1, 0.2)
RUNS = 40
WIDE = ("breast_cancer", "correlated_gaussian", "radon", "hierarchical_logistic")
WIDE_RUNS = 5
QUANTILES = (0.01, 0.05)


def of_share(share: float) -> Callable[[pm.Model, int], Any]:
    """Runs ours with that share of smaller steps, on JAX: there all models compile in seconds."""
    return ours(backend="jax", small_steps=share)


@dataclass(frozen=True)
class Truth:
    """Quantiles of the logarithm of the deviation of slopes for given intercepts, and its mean."""

    quantiles: np.ndarray
    mean: float

    @classmethod
    def of(cls, log_deviations: np.ndarray) -> "Truth":
        """From draws enough."""
        return cls(np.quantile(log_deviations, QUANTILES), float(log_deviations.mean()))

    def errors(self, log_deviations: np.ndarray) -> np.ndarray:
        """Errors of the probabilities of both quantiles, and of the mean, by draws (C, n)."""
        below = [(log_deviations < q).mean() for q in self.quantiles]
        return np.array([*np.subtract(below, QUANTILES), log_deviations.mean() - self.mean])


def narrow_rows() -> Iterator[dict[str, object]]:
    """Errors in a narrow place."""
    apart: Any = pymc_deer.sample(
        20_000,
        model=radon_slopes_apart(),
        backend="jax",
        random_seed=1,
        var_names=["last"],
        quiet=True,
        **QUIET,
    )
    truth = Truth.of(np.log(apart["posterior"]["last"].to_numpy()))
    model = radon_slopes()
    samplers = {"nutpie": nutpie, **{f"DeerHMC, {share}": of_share(share) for share in SHARES}}
    for name, run in samplers.items():
        errors, gradients = [], []
        for seed in range(RUNS):
            idata = run(model, seed)
            last = idata["posterior"]["chol"].to_numpy()[..., -1]
            errors.append(truth.errors(np.log(last)))
            gradients.append(int(idata["sample_stats"]["n_steps"].sum()))
        of_1, of_5, of_mean = np.sqrt(np.mean(np.square(errors), axis=0))
        yield {
            "model": "radon_slopes",
            "sampler": name,
            "gradients": round(float(np.mean(gradients))),
            "error_of_0.01": round(float(of_1), 4),
            "error_of_0.05": round(float(of_5), 4),
            "error_of_mean": round(float(of_mean), 3),
        }


def wide_rows() -> Iterator[dict[str, object]]:
    """What it costs elsewhere."""
    for name in WIDE:
        model = MODELS[name]()
        for share in SHARES:
            runs = [seen(of_share(share)(model, seed)) for seed in range(WIDE_RUNS)]
            _, bulk, *_ = np.median(runs, axis=0)
            yield {
                "model": name,
                "sampler": f"DeerHMC, {share}",
                "ess_per_1000_gradients": float(f"{bulk:.3g}"),
            }


def rows() -> Iterator[dict[str, object]]:
    """Of both kinds of places."""
    yield from narrow_rows()
    yield from wide_rows()


def main() -> None:
    """Measure all."""
    take_no_options(__doc__)
    write("small_steps", rows())


if __name__ == "__main__":
    main()
