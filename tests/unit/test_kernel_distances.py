"""Gradients of Gaussian processes: those of the distances between inputs, not of their rounding."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise

from pymc_deer.backends import make_solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.graphs.kernel_distances import RoundingClip, distances_with_gradient
from pymc_deer.metric import identity_metric
from pymc_deer.sweep import SweepSpec
from tests.support import BACKENDS

INPUTS = np.random.default_rng(0).uniform(0.0, 5.0, (20, 2))
OUTCOME = np.sin(INPUTS[:, 0])


def latent(cov: Any, x: Any) -> None:
    pm.Normal("y", pm.gp.Latent(cov_func=cov).prior("f", X=x), 0.2, observed=OUTCOME)


def marginal(cov: Any, x: Any) -> None:
    pm.gp.Marginal(cov_func=cov).marginal_likelihood("y", X=x, y=OUTCOME, sigma=0.2)


def sparse(cov: Any, x: Any) -> None:
    gp = pm.gp.MarginalApprox(cov_func=cov)
    gp.marginal_likelihood("y", X=x, Xu=INPUTS[:5, : cov.input_dim] + 0.1, y=OUTCOME, sigma=0.2)


def process(likelihood: Callable[[Any, Any], None], n_inputs: int, as_data: bool) -> pm.Model:
    with pm.Model() as model:
        inputs = INPUTS[:, :n_inputs]
        length = pm.InverseGamma("length", 5.0, 5.0, shape=n_inputs)
        cov = pm.gp.cov.Matern32(n_inputs, ls=length)
        likelihood(cov, pm.Data("inputs", inputs) if as_data else inputs)
    return model


def clips(variable: Any) -> list[type]:
    nodes = FunctionGraph(outputs=[variable], clone=False).toposort()
    scalar = [node.op.scalar_op for node in nodes if isinstance(node.op, Elemwise)]
    return [type(op) for op in scalar if isinstance(op, ps.Clip)]


@pytest.mark.parametrize(
    ("likelihood", "n", "n_inputs", "as_data"),
    [
        *[(latent, 1, 1, True), (marginal, 1, 1, False), (sparse, 2, 1, True)],
        *[(latent, 1, 2, False), (marginal, 1, 2, True), (sparse, 2, 2, False)],
    ],
)
def test_distances_of_every_process_are_found(
    likelihood: Callable[[Any, Any], None], n: int, n_inputs: int, as_data: bool
) -> None:
    density = build_density(process(likelihood, n_inputs, as_data))
    assert clips(density.logp).count(RoundingClip) == n
    assert set(clips(density.dlogp)) == {RoundingClip}


@pytest.mark.parametrize(
    ("likelihood", "backend"),
    [c for c in [(latent, "jax"), (marginal, "jax"), (marginal, "numba")] if c[1] in BACKENDS],
)
def test_backends_have_the_gradient_that_differences_have(
    likelihood: Callable[[Any, Any], None], backend: Any
) -> None:
    """XLA rounds a distance once more in each of its loops: of 1 input, on a CPU, differently."""
    density = build_density(process(likelihood, 1, as_data=False))
    solver = make_solver(backend, density, SweepSpec("diag"), WindowPlan(1, None, 1e-6, 8))
    identity = identity_metric("diag", density.size)
    params = density.param_values(density.initial_point)
    start = density.layout.ravel(density.initial_point, "float64")
    rng, h = np.random.default_rng(1), 1e-6
    for _ in range(4):
        x, v = start + rng.uniform(-1.0, 1.0, density.size), rng.normal(size=density.size)
        ahead, behind = (solver.evaluate(x + s * h * v, identity, params)[0] for s in (1, -1))
        slope = v @ solver.evaluate(x, identity, params)[1]
        assert_allclose(slope, (ahead - behind) / (2 * h), rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: x**2 + y**2 - 2.0 * x * y,
        lambda x, y: pt.sqr(x) - 2.0 * (x * y) + pt.sqr(y),
        lambda x, y: -2.0 * pt.outer(x[:, 0], y[0]) + (x**2 + y**2),
        lambda x, y: pt.sum(x**2, axis=1, keepdims=True) + pt.sqr(y) + x * y * -2.0,
    ],
)
def test_what_is_clipped_for_rounding_has_the_derivative_1(
    build: Callable[[Any, Any], Any],
) -> None:
    x, y = pt.tensor("x", shape=(3, 1)), pt.tensor("y", shape=(1, 3))
    found = distances_with_gradient(pt.clip(build(x, y), 0.0, np.inf).sum())
    assert clips(found) == [RoundingClip]
    both = [found, pytensor.grad(found, x)]
    function = pytensor.function([x, y], both, mode="FAST_COMPILE")
    at = np.array([0.1, 0.7, 1.9])
    value, slope = function(at[:, None], at[None, :])
    assert_allclose(value, ((at[:, None] - at) ** 2).sum(), rtol=1e-12)
    assert_allclose(slope[:, 0], 2 * (3 * at - at.sum()), rtol=1e-12)


def test_bounds_may_be_integers() -> None:
    x, y = pt.tensor("x", shape=(3, 1)), pt.tensor("y", shape=(1, 3))
    found = distances_with_gradient(pt.clip(x**2 + y**2 - 2 * x * y, 0, np.inf).sum())
    assert clips(found) == [RoundingClip]
    slope = pytensor.function([x, y], pytensor.grad(found, x), mode="FAST_COMPILE")
    assert_allclose(slope(np.ones((3, 1)), np.zeros((1, 3))), 6.0)


@pytest.mark.parametrize(
    "build",
    [
        lambda x, y: pt.clip(pt.outer(x, y) + x**2, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 + 2.0 * x * y, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 - y**2 - 2.0 * x * y, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x * y - 1.0, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x * y, 0.0, 1.0),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x * y, 0.5, np.inf),
        lambda x, y: pt.clip(x - 2.0 * y + x**2, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * pt.exp(x), 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x, 0.0, np.inf),
        lambda x, y: pt.clip(pt.sum(x**2) + pt.sum(y**2) - 2 * pt.sum(x) * pt.sum(y), 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + pt.exp(y) ** 2 - 2.0 * x * y, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x * y * pt.cos(x), 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * x**2 * y, 0.0, np.inf),
        lambda x, y: pt.clip(x**2 + y**2 - 2.0 * (x * x * y), 0.0, np.inf),
        lambda x, y: pt.clip((x / 2) ** 2 + y**2 - 2.0 * x * y, 0.0, np.inf),
        lambda x, y: pt.clip((0.5 * x) ** 2 + y**2 - 2.0 * x * y, 0.0, np.inf),
        lambda x, y: pt.clip(x[0] ** 2 + x[1] ** 2 - 2.0 * x[0] * x[2], 0.0, np.inf),
        lambda x, y: pt.clip(x[:2] ** 2 + y[:2] ** 2 - 2.0 * x[1:3] * y[:2], 0.0, np.inf),
    ],
)
def test_other_clips_stay(build: Callable[[Any, Any], Any]) -> None:
    x, y = pt.dvector("x"), pt.dvector("y")
    assert clips(distances_with_gradient(build(x, y).sum())) == [ps.Clip]
