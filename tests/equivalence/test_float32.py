"""The same equalities in float32, which users choose by ``pytensor.config.floatX``."""

import numpy as np
import pytensor
import pytest

from pymc_deer import examples
from pymc_deer.backends.base import Tuning
from pymc_deer.density import build_density
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS


@pytest.mark.parametrize("backend", BACKENDS)
def test_float32_states_equal_sequential_and_follow_float64(single_threaded, backend):
    case = problem("eight_schools")
    tape = case.tape(256, seed=6)
    double = case.run(case.solver(backend, 1), tape)
    with pytensor.config.change_flags(floatX="float32"):
        model = examples.eight_schools()
        density = build_density(model)
        assert density.dtype == "float32"
        tuning = Tuning(case.tuning.step_size, case.tuning.curvature, case.tuning.metric)
        single = Problem(model, density, tuning, case.start)
        exact = single.run(single.solver(backend, 1), tape)
        solved = single.run(single.solver(backend, 64, tol=1e-5), tape)
    assert solved.z.dtype == exact.z.dtype == np.float32
    assert solved.n_fallback == 0
    assert np.abs(solved.z - exact.z).max() <= 1e-3
    assert np.abs(exact.z - double.z).max() <= 1e-3
