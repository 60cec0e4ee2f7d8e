"""The same equalities in float32, which users choose by ``pytensor.config.floatX``."""

from dataclasses import replace
from itertools import product

import numpy as np
import pymc as pm
import pytensor
import pytest

from pymc_deer import examples
from pymc_deer.backends import make_solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.metric import identity_metric
from pymc_deer.sweep import SweepSpec, build_sequential, build_sweep
from tests.equivalence.problems import KERNELS, problem
from tests.support import BACKENDS, SLOW_ON_NUMBA


def varying_slopes() -> pm.Model:
    """Gradients are added up by group, and by PyTensor's rewrites."""
    rng = np.random.default_rng(0)
    group, x = np.arange(30) % 5, rng.normal(size=(30, 2)).astype("float32")
    with pm.Model() as model:
        spread = pm.HalfNormal("spread", shape=2)
        slope = pm.Normal("slope", shape=(5, 2))
        eta = (x * (spread * slope)[group]).sum(axis=-1)
        pm.Bernoulli("y", logit_p=eta, observed=(rng.random(30) < 0.5).astype("int8"))
    return model


FLOAT32 = {
    "correlated_logistic": lambda: examples.correlated_logistic(100, 5),
    "varying_slopes": varying_slopes,
}

CASES = [
    pytest.param(kernel, backend, marks=SLOW_ON_NUMBA[backend])
    for kernel, backend in product(KERNELS, BACKENDS)
    if (kernel, backend) != ("mala", "numba")
]
"""Numba compiles for long what JAX runs from the same graph: paths alone, whose steps are MALA's.
"""


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


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
@pytest.mark.parametrize("name", FLOAT32)
def test_nothing_turns_into_float64_on_the_way(name: str) -> None:
    """PyTensor's sums come out of JAX in the type of their accumulator, unless told otherwise."""
    import jax

    from pymc_deer.backends.jax_functions import abstract, compiled
    from pymc_deer.backends.jax_mode import JAX_CPU_MODE, JAX_MODE

    with pytensor.config.change_flags(floatX="float32"), jax.enable_x64(True):
        density = build_density(FLOAT32[name]())
        spec = SweepSpec("low_rank", "stochastic", kernel="hmc")
        sweep = build_sweep(density, spec, "vectorized", width=16)
        for program, mode in product(
            (build_sequential(density, spec), sweep), (JAX_MODE, JAX_CPU_MODE)
        ):
            found = jax.eval_shape(compiled(program, mode), *map(abstract, program.inputs))
            types = [array.dtype for array in found]
            assert types == [variable.type.dtype for variable in program.outputs]


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
@pytest.mark.parametrize("window", [1, 16])
def test_products_have_all_digits(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs multiply float32 numbers cut to 11 bits, unless told otherwise; CPUs never do."""
    import jax

    from pymc_deer.backends.placement import OneDevice

    class LoweredError(Exception):
        """With the program's text, in place of its results."""

    def program(self, loop, given):
        def run(*arguments):
            raise LoweredError(jax.jit(loop).lower(*arguments).as_text())

        return run

    monkeypatch.setattr(OneDevice, "program", program)
    with pytensor.config.change_flags(floatX="float32"):
        density = build_density(examples.correlated_logistic(100, 5))
        spec = SweepSpec("dense", "stochastic")
        solver = make_solver("jax", density, spec, WindowPlan(window, None, 1e-4, 16))
        tuning = Tuning(0.1, 1.0, identity_metric("dense", 5))
        tape = Streams.spawn(np.random.default_rng(1)).tape(16, 5, tuning, solver.draw_momenta)
        params = density.param_values({})
        with pytest.raises(LoweredError) as caught:
            solver.solve(np.zeros(5), tape, tuning, params, np.random.default_rng(2))
    products = [line for line in str(caught.value).splitlines() if "stablehlo.dot" in line]
    assert products
    assert all("precision = [HIGHEST, HIGHEST]" in line for line in products)
