"""Windows leave no chain where its density is 0, however near the edge its states are."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_deer import sweep
from pymc_deer.backends import make_solver
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.metric import Metric
from pymc_deer.noise import draw_tape
from pymc_deer.sweep import SweepSpec
from tests.support import BACKENDS, quick_xla

SIZE, N = 10, 8000

TOL = 1e-2
"""Wide, so that guesses within it are often on the other side."""


def check_support(backend: Any) -> None:
    """Of a normal distribution that ends at 0 in each direction, whose chain is often there."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=SIZE, initval=np.ones(SIZE))
        pm.Potential("edge", pt.switch(pt.any(x < 0), -np.inf, 0.0))
    density = build_density(model)
    solver = make_solver(
        backend, density, SweepSpec("diag", "secant"), WindowPlan(64, None, TOL, N)
    )
    metric, rng = Metric(np.full(SIZE, 0.8), np.full(SIZE, 0.6)), np.random.default_rng(0)
    tape, start = draw_tape(rng, rng, N, SIZE), metric.to_z(np.ones(SIZE))
    request = TapedRequest(start, tape, Tuning(0.45, 1.5, metric), rng)
    found = solver.run(request, density.param_values({}))
    assert np.isfinite(found.logp).all()
    assert np.isfinite(found.dlogp).all()
    assert (metric.to_x(found.z) >= 0).all()
    assert 0.3 < np.mean(found.log_alpha > tape.log_u) < 0.5
    assert found.n_fallback == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_state_lies_beyond_an_edge(backend: str) -> None:
    check_support(backend)


def test_a_guess_that_is_trusted_beyond_the_edge_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "_is_sound", lambda logp, dlogp: pt.ones_like(logp, dtype=bool))
    with quick_xla(), pytest.raises(AssertionError):
        check_support(BACKENDS[-1])
