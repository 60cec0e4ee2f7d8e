"""Shares of kicks in paths: ``uv run python -m tests.benchmarks.two_stage``.

``pymc_deer.sample``, four chains of 1000 draws, with what the first step of a path may give of its
kick at its start: half, which makes paths of leapfrog steps; the fixed share that is best for steps
of 1; and the default, which follows the step size (see :mod:`pymc_deer.leapfrog`). Gradients for an
effective draw, of the worst variable, are geometric means of several runs; step sizes, steps and
acceptance rates their means. The rows go to ``docs/benchmarks/two_stage.json``.
"""

from collections.abc import Callable, Iterator
from unittest.mock import patch

import numpy as np
import pymc as pm
import pytensor.tensor as pt

import pymc_deer
from pymc_deer import jacobian, leapfrog
from pymc_deer.leapfrog import Path
from pymc_deer.typing import Tensor
from tests.benchmarks.cases import CASES
from tests.benchmarks.divergences import QUIET
from tests.benchmarks.figures import quality, scalars
from tests.benchmarks.measure import take_no_options, write


def normals() -> pm.Model:
    """Ten thousand standard normals."""
    with pm.Model() as model:
        pm.Normal("x", shape=10_000)
    return model


_CASES = ("eight_schools", "german_credit", "breast_cancer", "radon", "stochastic_volatility")
MODELS: dict[str, Callable[[], pm.Model]] = {
    **{name: CASES[name].build for name in _CASES},
    "normals_10k": normals,
}
RUNS = 5


def always(share: float) -> Callable[[Path], Tensor]:
    """The same share in all paths."""
    return lambda path: pt.full_like(path.step_size, share)


SHARES = {"half": always(0.5), "0.4236": always(0.4236), "by step size": leapfrog.first_share}


def run(model: pm.Model, seed: int) -> tuple[float, float, float, float]:
    """Gradients for an effective draw, step size, steps and acceptance rate of one run."""
    idata = pymc_deer.sample(model=model, backend="jax", random_seed=seed, quiet=True, **QUIET)
    stats, attrs = idata["sample_stats"].dataset, idata["sample_stats"].attrs
    posterior = idata["posterior"].dataset
    draws = {rv.name: posterior[rv.name].to_numpy() for rv in model.free_RVs}
    _, ess = quality(scalars(draws))
    return (
        float(stats["n_steps"].sum()) / ess,
        float(np.mean(attrs["deer_step_size"])),
        float(attrs["deer_n_leapfrog"]),
        float(stats["acceptance_rate"].mean()),
    )


def rows() -> Iterator[dict[str, object]]:
    """A row for each model and share."""
    for name, build in MODELS.items():
        model = build()
        for share, first_share in SHARES.items():
            with (
                patch.object(leapfrog, "first_share", first_share),
                patch.object(jacobian, "first_share", first_share),
            ):
                runs = np.array([run(model, seed) for seed in range(RUNS)])
            _, step_size, steps, rate = runs.mean(axis=0)
            yield {
                "model": name,
                "share": share,
                "gradients_per_ess": float(f"{np.exp(np.log(runs[:, 0]).mean()):.3g}"),
                "step_size": round(float(step_size), 3),
                "steps": round(float(steps), 1),
                "acceptance_rate": round(float(rate), 2),
            }


def main() -> None:
    """Measure all."""
    take_no_options(__doc__)
    write("two_stage", rows())


if __name__ == "__main__":
    main()
