"""How many steps a sweep commits."""

import numpy as np
import pymc as pm
import pytensor
from numpy.testing import assert_allclose

from pymc_deer.density import build_density
from pymc_deer.metric import identity_metric
from pymc_deer.sweep import SweepSpec, build_sweep
from tests.support import SEED

W, D = 12, 2


def test_steps_are_committed_up_to_the_first_error_and_never_more_than_there_are() -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=D)
    density = build_density(model)
    spec = SweepSpec("diag", "preconditioned")
    program = build_sweep(density, spec, "vectorized")
    sweep = pytensor.function(
        program.inputs, program.outputs, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    rng = np.random.default_rng(SEED)
    xi, log_u = rng.normal(size=(W, D)), np.log(rng.random(W))
    metric = identity_metric("diag", D)

    def swept(guess: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
        memory, probes = np.empty((W, 0)), np.empty((W, spec.n_probes(D), D))
        next_guess, _, states, *_, committed = sweep(
            *(guess, memory, np.zeros(D), xi, log_u, probes, np.full(W, 0.9)),
            *(np.ones(W, dtype="int64"), np.zeros(W), 1.0, 1e-9, np.asarray(W)),
            *(metric.mu, metric.factor),
            *density.param_values(model.initial_point()),
        )
        return next_guess, states, int(committed)

    guess = exact = np.zeros((W, D))
    for _ in range(W):
        guess, exact, _ = swept(guess)
    _, again, committed = swept(exact)
    assert_allclose(again, exact, atol=1e-12)
    assert committed == W
    for first_wrong in range(W):
        guess = exact.copy()
        guess[first_wrong] += 1.0
        # The step with a wrong guess is itself made from an exact one.
        assert swept(guess)[-1] == first_wrong + 1
    guess = exact.copy()
    guess[0] = np.nan
    assert swept(guess)[-1] == 1
