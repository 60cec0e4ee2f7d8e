"""JAX and Numba run the same graph: on one tape they agree to rounding."""

from dataclasses import replace

import numpy as np
import pytest

from pymc_deer.jacobian import Rule
from tests.equivalence.problems import KERNELS, problem
from tests.support import BACKENDS

pytestmark = pytest.mark.skipif(len(BACKENDS) < 2, reason="needs two backends to compare")


CASES = [
    *[("eight_schools", kernel) for kernel in KERNELS],
    *[pytest.param(name, "mala", marks=pytest.mark.slow) for name in ("radon", "horseshoe")],
]
"""Windows of the other models are compared with single steps on each backend in test_states, and
those of the horseshoe, whose likelihood is the breast-cancer model's, on JAX."""


@pytest.mark.parametrize(("name", "kernel"), CASES)
def test_backends_agree(single_threaded, name, kernel):
    case = problem(name, kernel)
    # The rule for which Numba has compiled the model's windows in test_states.
    rule: Rule = "secant" if kernel == "mala" else "preconditioned"
    tape = case.tape(256, seed=3)
    for window in (1,) if name == "horseshoe" else (1, 64):
        solvers = [case.solver(backend, window, rule) for backend in BACKENDS]
        for solver in solvers:
            solver.plan = replace(solver.plan, tol=1e-10)
        one, other = (case.run(solver, tape) for solver in solvers)
        for field in ("z", "logp", "dlogp", "log_alpha", "energy"):
            a, b = getattr(one, field), getattr(other, field)
            scale = 1 + np.abs(b)
            assert (np.abs(a - b) / scale).max() < 1e-8, f"{field}, window {window}"
