"""Functions of several numbers at once: ``uv run python -m tests.benchmarks.vector_math``.

Models step by step on Numba, whose loops call the C library's exponentials, logarithms and the like
for several numbers at once, are long, and are compiled so that LLVM takes several elements at once;
and the same transitions in PyTensor's loops, which call them for one. Interleaved pairs, noise
drawn beforehand; then normals as NumPy and as Numba draws them. The rows go to
``docs/benchmarks/vector_math.json``.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from unittest.mock import patch

import numpy as np
import pymc as pm
import pytensor.tensor as pt

from pymc_deer import noise, noise_numba
from pymc_deer.backends import numba_mode
from pymc_deer.graphs import short_axes
from pymc_deer.ops import groups
from tests.benchmarks.measure import (
    chain_of,
    paired_chains,
    paired_ratio,
    take_no_options,
    warm_up,
    write,
)
from tests.benchmarks.row_order import regression
from tests.benchmarks.windows import BUILDS

NAMES = (
    *("eight_schools", "radon", "stochastic_volatility", "german_credit", "horseshoe"),
    *("item_response", "student_t_regression", "negative_binomial_regression", "hsgp_regression"),
    *("ordered_logistic", "marginal_mixture", "logistic_10k", "hierarchical_logistic"),
)


def categorical() -> pm.Model:
    """5000 outcomes, each one of four, by five covariates."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(5000, 5)), rng.integers(0, 4, 5000)
    with pm.Model() as model:
        slopes = pm.Normal("slopes", shape=(5, 3))
        eta = pt.concatenate([pt.zeros((len(x), 1)), pt.dot(x, slopes)], axis=1)
        pm.Categorical("y", logit_p=eta, observed=y)
    return model


MODELS = {name: BUILDS[name] for name in NAMES} | {
    "logistic, 100 groups": partial(regression, 10_000, 100, "bernoulli"),
    "categorical": categorical,
}
NORMALS = (4096, 10)


@contextmanager
def pytensors_loops() -> Iterator[None]:
    """What is compiled meanwhile has the functions and the loops that PyTensor gives it."""
    with (
        patch.object(numba_mode, "has_variants", lambda name: False),
        patch.object(numba_mode, "keeps_scalar", lambda node: False),
        patch.object(groups, "_is_function", lambda node: False),
        patch.object(short_axes, "_ends_short", lambda shape: False),
        patch.object(short_axes, "_OWN_FUNCTIONS", ()),
    ):
        yield


def rows() -> Iterator[dict[str, object]]:
    """Each model; then normals."""
    for name, build in MODELS.items():
        case = warm_up(build())
        vectors = chain_of(case, "numba")
        with pytensors_loops():
            scalars = chain_of(case, "numba")
        yield row(name, 1, *paired_chains(scalars, vectors))
    rng = np.random.default_rng(0)
    times = paired_ratio(
        lambda: noise.draw_normals(rng, *NORMALS),
        lambda: noise_numba.draw_normals(rng, *NORMALS),
        900,
    )
    yield row("a normal number", int(np.prod(NORMALS)), *times)


def row(what: str, n: int, ratio: float, before: float, now: float) -> dict[str, object]:
    """Of a transition, or of n numbers."""
    return {
        "what": what,
        "microseconds_one_by_one": float(f"{1e6 * before / n:.3g}"),
        "microseconds": float(f"{1e6 * now / n:.3g}"),
        "speed_up": round(ratio, 2),
    }


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    write("vector_math", rows())


if __name__ == "__main__":
    main()
