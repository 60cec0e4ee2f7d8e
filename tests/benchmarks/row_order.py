"""The order of data with groups: ``uv run python -m tests.benchmarks.row_order``.

Regressions on N observations that lie sorted by group or at random, step by step on one core: a
transition with the rows in an order of the sampler's own, and with them as they are given, in
interleaved pairs of the same noise. The rows go to ``docs/benchmarks/row_order.json``.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Literal
from unittest.mock import patch

import numpy as np
import pymc as pm

from pymc_deer.density import build_density
from tests.benchmarks.measure import (
    Warmed,
    chain_of,
    paired_chains,
    take_no_options,
    warm_up,
    write,
)

SIZES: tuple[tuple[tuple[int, int], Literal["sorted", "random"]], ...] = (
    *((size, "sorted") for size in ((1000, 10), (1000, 100), (10_000, 100), (100_000, 1000))),
    *((size, "random") for size in ((100_000, 20_000), (500_000, 100_000))),
)
"""Observations and groups, and how the observations lie."""


def regression(
    n_rows: int, n_groups: int, likelihood: str, order: Literal["sorted", "random"] = "sorted"
) -> pm.Model:
    """Intercepts and slopes of groups."""
    rng = np.random.default_rng(0)
    group = rng.integers(0, n_groups, n_rows)
    group = np.sort(group) if order == "sorted" else group
    feature, noise = rng.normal(size=(2, n_rows))
    y = rng.normal(size=n_groups)[group] + feature + noise
    with pm.Model() as model:
        mean = pm.Normal("mean")
        spread = pm.HalfNormal("spread")
        intercept = mean + spread * pm.Normal("z", shape=n_groups)
        slope = pm.Normal("slope", shape=n_groups)
        eta = intercept[group] + slope[group] * feature
        if likelihood == "normal":
            pm.Normal("y", eta, pm.HalfNormal("sigma"), observed=y)
        else:
            pm.Bernoulli("y", logit_p=eta, observed=y > 0)
    return model


def as_given(case: Warmed) -> Warmed:
    """The same with rows in the order of the data."""
    with patch("pymc_deer.density.in_fast_order", lambda outputs, values: (outputs, {})):
        density = build_density(case.model)
    return replace(case, density=density, params=density.param_values({}))


def rows() -> Iterator[dict[str, object]]:
    """Each size, likelihood and backend."""
    for (n_rows, n_groups), order in SIZES:
        for likelihood in ("normal", "bernoulli"):
            ours = warm_up(regression(n_rows, n_groups, likelihood, order), n_draws=200)
            given = as_given(ours)
            for backend in ("numba", "jax"):
                chains = chain_of(given, backend), chain_of(ours, backend)
                ratio, before, now = paired_chains(*chains)
                yield {
                    "observations": n_rows,
                    "groups": n_groups,
                    "order": order,
                    "likelihood": likelihood,
                    "backend": backend,
                    "microseconds_as_given": float(f"{1e6 * before:.3g}"),
                    "microseconds": float(f"{1e6 * now:.3g}"),
                    "speed_up": round(ratio, 2),
                }


def main() -> None:
    """Measure every size."""
    take_no_options(__doc__)
    write("row_order", rows())


if __name__ == "__main__":
    main()
