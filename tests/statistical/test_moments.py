"""DeerMALA's posteriors against the moments of a long NUTS run.

Convergence and agreement are judged on PyMC's own terms: `pm.sample` with its defaults, four chains
and arviz's diagnostics.
"""

import logging
from typing import Any

import pandas as pd
import pymc as pm
import pytest

from pymc_deer import DeerMALA, examples
from tests.statistical.checks import (
    MAX_R_HAT,
    check_converged,
    check_moments,
    load_reference,
    summarise,
)
from tests.statistical.reference import MODELS
from tests.support import BACKENDS

SEED = 20_250_102


def sample(model: pm.Model, **deer_options: Any) -> pd.DataFrame:
    """Summary of a run with the defaults of `DeerMALA`, but for `deer_options`."""
    with model:
        idata = pm.sample(
            step=DeerMALA(**deer_options),
            draws=1000,
            chains=4,
            cores=1,
            random_seed=SEED,
            progressbar=False,
        )
    return summarise(idata, model)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", MODELS)
def test_posterior_agrees_with_nuts(name: str, backend: str) -> None:
    run = sample(MODELS[name](), backend=backend)
    check_converged(run)
    check_moments(run, load_reference(name))


@pytest.mark.parametrize("backend", BACKENDS)
def test_posterior_of_windowed_run_agrees_with_nuts(backend: str) -> None:
    run = sample(examples.eight_schools(), backend=backend, window=64)
    check_converged(run)
    reference = load_reference("eight_schools")
    check_moments(run, reference)

    # The same run must fail against a reference as wrong as a wrong sampler would make it.
    shifted = reference.assign(mean=reference["mean"] + 10 * run["mcse_mean"])
    with pytest.raises(AssertionError, match="MCSE"):
        check_moments(run, shifted)
    with pytest.raises(AssertionError, match="MCSE"):
        check_moments(run, reference.assign(sd=1.2 * reference["sd"]))


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_horseshoe_is_reported_as_not_converged(
    backend: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pymc"):
        run = sample(examples.horseshoe(), backend=backend)
    r_hat, ess = run["r_hat"].to_numpy(), run["ess_bulk"].to_numpy()
    # PyMC's own bounds: 100 effective draws for each of the four chains.
    assert r_hat.max() > MAX_R_HAT or ess.min() < 400
    assert "rhat statistic is larger" in caplog.text or "effective sample size" in caplog.text
