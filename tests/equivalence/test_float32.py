"""The same equalities in float32, which users choose by ``pytensor.config.floatX``."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytensor
import pytest

from pymc_deer import examples
from pymc_deer.density import build_density
from tests.equivalence.problems import KERNELS, problem
from tests.support import BACKENDS

CASES = [
    pytest.param(kernel, backend, marks=[pytest.mark.slow] if slow else [])
    for kernel, backend in product(KERNELS, BACKENDS)
    for slow in [backend == "numba"]
]
"""Numba compiles for long what JAX runs from the same graph."""


@pytest.mark.parametrize(("kernel", "backend"), CASES)
def test_float32_states_equal_sequential_and_follow_float64(single_threaded, backend, kernel):
    case = problem("eight_schools", kernel)
    tape = case.tape(256, seed=6)
    double = case.run(case.solver(backend, 1), tape)
    with pytensor.config.change_flags(floatX="float32"):
        model = examples.eight_schools()
        density = build_density(model)
        assert density.dtype == "float32"
        single = replace(case, model=model, density=density)
        exact = single.run(single.solver(backend, 1), tape)
        solved = single.run(single.solver(backend, 64, tol=1e-5), tape)
    assert solved.z.dtype == exact.z.dtype == np.float32
    assert solved.n_fallback == 0
    assert np.abs(solved.z - exact.z).max() <= 1e-3
    assert np.abs(exact.z - double.z).max() <= 1e-3
