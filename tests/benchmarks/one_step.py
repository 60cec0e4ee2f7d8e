"""What single leapfrog steps can do: ``uv run python -m tests.benchmarks.one_step``.

A posterior with long tails, the horseshoe. Four chains of 1000 draws on Numba with paths of 1 to
256 steps, and with single steps at five acceptance rates, beside nutpie; twice. Figures are those
of the run with more effective draws: where chains do not mix, few of them say how few there are.
The rows go to ``docs/benchmarks/one_step.json``.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pymc as pm

from pymc_deer.examples import horseshoe
from tests.benchmarks.divergences import nutpie, ours
from tests.benchmarks.figures import quality, scalars
from tests.benchmarks.measure import short, take_no_options, write

LENGTHS = (2, 4, 8, 16, 32, 64, 128, 256)
TARGETS = (0.3, 0.45, 0.574, 0.7, 0.85)
SEEDS = (1, 2)


def run(sampler: Callable[[pm.Model, int], Any], model: pm.Model) -> dict[str, object]:
    """What the better of the runs is worth."""
    names = [rv.name for rv in model.free_RVs]
    found = []
    for seed in SEEDS:
        idata = sampler(model, seed)
        r_hat, ess = quality(scalars({n: idata["posterior"][n].to_numpy() for n in names}))
        found.append((ess, r_hat, float(idata["sample_stats"]["n_steps"].sum())))
    ess, r_hat, gradients = max(found)
    return {
        "r_hat": round(r_hat, 3),
        "effective_draws": short(ess),
        "gradients_per_ess": short(gradients / ess),
    }


def rows() -> Iterator[dict[str, object]]:
    """One for each way."""
    model = horseshoe()
    for target in TARGETS:
        sampler = ours(kernel="mala", target_accept=target)
        yield {"sampler": "DeerMALA", "steps": 1, "target": target, **run(sampler, model)}
    for steps in LENGTHS:
        sampler = ours(n_leapfrog=steps)
        yield {"sampler": "DeerHMC", "steps": steps, "target": "auto", **run(sampler, model)}
    yield {"sampler": "nutpie", "steps": None, "target": None, **run(nutpie, model)}


def main() -> None:
    """Measure all of them."""
    take_no_options(__doc__)
    write("one_step", rows())


if __name__ == "__main__":
    main()
