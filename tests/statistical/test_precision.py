"""A million observations in single precision, logp about -1e7: no bias that one could see."""

import numpy as np
import pytensor
import pytest

from pymc_deer import DeerMALA, density, reference
from pymc_deer.backends import make_solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.metric import identity_metric
from pymc_deer.noise import draw_tape
from pymc_deer.precision import WIDE
from pymc_deer.sweep import SweepSpec
from tests.one_million import one_million, posterior
from tests.statistical.checks import MAX_DEVIATION, check_converged, summarise
from tests.support import BACKENDS, sample

N_TRANSITIONS = 48

LIMIT = 3e-3
"""A million terms of about 10, each rounded to 24 bits, twice."""


def exact_logp_dlogp(x: np.ndarray) -> tuple[float, np.ndarray]:
    mean, sd = posterior()
    z = (x - mean) / sd
    return float(-0.5 * z @ z), -z / sd


def largest_error(backend: str, window: int) -> float:
    """Of the log Metropolis ratios of a float32 chain, beside those of exact arithmetic."""
    with pytensor.config.change_flags(floatX="float32"):
        model = one_million()
        here = build_density(model)
        plan = WindowPlan(window, None, 1e-4, N_TRANSITIONS)
        solver = make_solver(backend, here, SweepSpec("diag"), plan)
        tape = draw_tape(np.random.default_rng(1), np.random.default_rng(2), N_TRANSITIONS, 1)
        start = np.array([posterior()[0]])
        tuning = Tuning(1.0, 1.0, identity_metric("diag", 1))
        params = here.param_values(model.initial_point())
        found = solver.solve(start, tape, tuning, params, np.random.default_rng(3))
    states, log_alpha = reference.sequential(
        exact_logp_dlogp, start, tape.xi, tape.log_u, tuning.step_size
    )
    assert found.z.dtype == np.float32
    if window > 1:
        assert found.n_fallback == 0
    np.testing.assert_allclose(found.z, states, atol=1e-3)
    return float(np.abs(found.log_alpha - log_alpha).max())


@pytest.mark.slow
@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize("backend", BACKENDS)
def test_metropolis_ratios_keep_their_digits(backend: str, window: int) -> None:
    assert largest_error(backend, window) < LIMIT


@pytest.mark.slow
def test_sums_in_single_precision_would_lose_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "added_in_float64", lambda logp: logp.astype(WIDE))
    with pytest.raises(AssertionError):
        test_metropolis_ratios_keep_their_digits("jax", 1)


@pytest.mark.slow
def test_moments() -> None:
    with pytensor.config.change_flags(floatX="float32"):
        model = one_million()
        with model:
            step = DeerMALA(backend="jax", window=1)
        idata = sample(step, draws=500, tune=100, chains=4)
    run = summarise(idata, model)
    check_converged(run)
    mean, sd = posterior()
    row = run.loc["x"]
    assert abs(row["mean"] - mean) < MAX_DEVIATION * row["mcse_mean"]
    assert abs(row["sd"] - sd) < MAX_DEVIATION * row["mcse_sd"]
