"""Logp from what it has in common with its gradient: the same, at the end of a path alone."""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.basic import Apply
from pytensor.graph.traversal import ancestors
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.elemwise import CAReduce
from pytensor.tensor.math import Dot

from pymc_deer import examples
from pymc_deer.density import Density, build_density
from pymc_deer.graphs.gradient_first import common_parts
from pymc_deer.ops.repeat import Repeat
from pymc_deer.sweep import SweepSpec, build_sequential
from tests import zoo

MODELS: dict[str, Callable[[], pm.Model]] = {
    "correlated_logistic": lambda: examples.correlated_logistic(50, 4),
    "radon": examples.radon,
    "stochastic_volatility": lambda: zoo.stochastic_volatility(20),
    "latent_gp": lambda: zoo.latent_gp(12),
    "marginal_mixture": lambda: zoo.marginal_mixture(20),
    "ordered_logistic": lambda: zoo.ordered_logistic(20),
    "dirichlet_multinomial": zoo.dirichlet_multinomial,
}


@pytest.fixture(scope="module", params=MODELS)
def density(request: pytest.FixtureRequest) -> Density:
    return build_density(MODELS[request.param]())


def compiled(density: Density, inputs: list, outputs: list) -> Callable[..., list]:
    params = density.param_values(density.initial_point)
    function: Any = pytensor.function(
        [*inputs, *density.params], outputs, mode="FAST_COMPILE", on_unused_input="ignore"
    )
    return lambda *arguments: function(*arguments, *params)


@pytest.fixture(scope="module")
def logp_and_dlogp(density: Density) -> Callable[..., list]:
    return compiled(density, [density.x], [density.logp, density.dlogp])


def test_logp_follows_from_the_parts(density: Density, logp_and_dlogp: Callable[..., list]) -> None:
    at = 0.3 * np.random.default_rng(1).normal(size=density.size)
    dlogp, *found = compiled(density, [density.x], density.single.gradient(density.x))(at)
    parts = [part.type() for part in density.parts]
    [logp] = compiled(density, parts, [density.single.logp(parts)])(*found)
    expected = logp_and_dlogp(at)
    assert_allclose(logp, expected[0], rtol=1e-12)
    assert_allclose(dlogp, expected[1], rtol=1e-12)


def test_of_a_batch_too(density: Density, logp_and_dlogp: Callable[..., list]) -> None:
    rows = 0.3 * np.random.default_rng(2).normal(size=(3, density.size))
    x = pt.tensor("x", dtype="float64", shape=(None, density.size))
    dlogp, *found = compiled(density, [x], density.batch.gradient(x))(rows)
    parts = [pt.tensor(dtype=p.type.dtype, shape=(None, *p.type.shape)) for p in density.parts]
    [logp] = compiled(density, parts, [density.batch.logp(parts)])(*found)
    for i, at in enumerate(rows):
        expected = logp_and_dlogp(at)
        assert_allclose(logp[i], expected[0], rtol=1e-10)
        assert_allclose(dlogp[i], expected[1], rtol=1e-10, atol=1e-12)


def test_products_are_parts_and_their_functions_are_not() -> None:
    density = build_density(MODELS["correlated_logistic"]())
    x, *parts = density.parts
    assert x is density.x
    assert [type(part.owner.op) for part in parts] == [Dot]
    x, *parts = build_density(examples.correlated_gaussian()).parts
    assert [type(part.owner.op) for part in parts] == [Blockwise]


def test_what_does_not_depend_on_x_is_no_part() -> None:
    x, data = pt.vector("x", shape=(3,)), pt.matrix("data", shape=(3, 3))
    total = pt.sum(data @ data)
    assert common_parts(x, -pt.sum(x**2) * total, -2 * x * total) == []


def test_where_a_shape_is_unknown_logp_is_the_part() -> None:
    x, data = pt.vector("x", shape=(3,)), pt.matrix("data")
    eta = data @ x
    logp = -pt.sum(pt.exp(eta))
    assert common_parts(x, logp, -data.T @ pt.exp(eta)) == [logp]
    data = pt.matrix("data", shape=(4, 3))
    eta = data @ x
    [part] = common_parts(x, -pt.sum(pt.exp(eta)), -data.T @ pt.exp(eta))
    assert part in ancestors([eta])
    assert part.type.shape == (4, 1)


def sums_over(n: int, nodes: Iterable[Apply | None]) -> list[Apply]:
    found = (node for node in nodes if node and isinstance(node.op, CAReduce))
    return [node for node in found if node.inputs[0].type.shape == (n,)]


def test_a_path_sums_up_the_likelihood_at_its_end_alone() -> None:
    density = build_density(examples.correlated_logistic(50, 4))
    program = build_sequential(density, SweepSpec("diag", kernel="hmc"))
    nodes = {variable.owner for variable in ancestors(program.outputs)}
    [loop] = [node.op for node in nodes if node and isinstance(node.op, Repeat)]
    assert len(sums_over(50, nodes)) == 1
    assert sums_over(50, loop.fgraph.toposort()) == []
