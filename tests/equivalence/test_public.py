"""The public face of exactness: one seed gives the same draws whatever window, rule and backend."""

from functools import cache

import numpy as np
import pymc as pm
import pytest

from pymc_deer import DeerMALA, examples
from pymc_deer.jacobian import RULES
from tests.support import BACKENDS

TOL = 1e-8
N_DRAWS = 150

# Rough posterior means and variances of the unconstrained eight-schools vector, so that a run
# without warm-up mixes: (mu, log tau, eta).
INITVALS = {"mu": 4.4, "tau": 3.0, "eta": np.zeros(8)}
VARIANCES = np.array([11.0, 1.4, *np.full(8, 0.9)])


@cache
def _whitened_draws(backend: str, window: int, rule: str) -> np.ndarray:
    """Unconstrained draws in units of the metric, shape (draws, D)."""
    with examples.eight_schools():
        step = DeerMALA(
            backend=backend,  # type: ignore[arg-type]
            window=window,
            jacobian=rule,
            step_size=0.6,
            metric=VARIANCES,
            steps_per_draw=4,
            tol=TOL,
        )
        idata = pm.sample(
            step=step,
            draws=N_DRAWS,
            tune=0,
            chains=1,
            cores=1,
            random_seed=42,
            initvals=INITVALS,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert (idata["sample_stats"]["window"] == window).all()
    acceptance = float(idata["sample_stats"]["acceptance_rate"].mean())
    assert 0.5 < acceptance < 0.98, "the draws must see both acceptances and rejections"
    posterior = idata["posterior"]
    columns = [posterior["mu"], np.log(posterior["tau"])]
    draws = np.column_stack([np.ravel(c) for c in columns] + [posterior["eta"].values[0]])
    assert (np.diff(draws[:, 0]) != 0).mean() > 0.5, "the chain must move"
    return draws / np.sqrt(VARIANCES)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("window", "rule"), [(1, "auto"), *((64, rule) for rule in RULES)], ids=lambda v: str(v)
)
def test_one_seed_gives_the_same_draws(single_threaded, backend, window, rule):
    draws = _whitened_draws(backend, window, rule)
    reference = _whitened_draws(BACKENDS[0], 1, "auto")
    assert draws.shape == (N_DRAWS, 10)
    assert np.abs(draws - reference).max() <= 100 * TOL
