"""Rewrites of PyTensor's: without one whose time grows with the square of a recursion, and without
one that fails."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.pytensorf import rewrite_pregrad
from pytensor.graph.basic import equal_computations
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.rewriting.math import local_greedy_distributor

from pymc_deer import density
from pymc_deer.backends.jax_mode import JAX_MODE
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.density import build_density
from pymc_deer.examples import eight_schools
from pymc_deer.graphs.canonical import canonical
from pymc_deer.profiling.cost_shares import count_gradient
from pymc_deer.sweep import build_gradients


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The nodes that the rewrite has looked at."""
    nodes: list[Any] = []
    rewriter: Any = local_greedy_distributor
    look = rewriter.fn

    def counted(fgraph: Any, node: Any) -> Any:
        nodes.append(node)
        return look(fgraph, node)

    monkeypatch.setattr(rewriter, "fn", counted)
    return nodes


def test_sums_are_not_multiplied_out(tried: list[Any]) -> None:
    a, b, c = pt.dscalars("a", "b", "c")
    product = (a / c + b) * c
    canonical(product)
    assert not tried
    rewrite_graph(product, include=("canonicalize",))
    assert tried


def test_nor_in_what_is_made_of_a_model(tried: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def of_pymc(logp: Any) -> Any:
        rewritten = rewrite_pregrad(logp)
        tried.clear()
        return rewritten

    monkeypatch.setattr(density, "rewrite_pregrad", of_pymc)
    here = build_density(eight_schools())
    count_gradient(here)
    here.single_hvp(here.x, pt.ones((1, here.size)))
    program = build_gradients(here, 2)
    for mode in (NUMBA_MODE, JAX_MODE):
        graph = FunctionGraph(program.inputs, program.outputs, clone=True)
        mode.excluding("inplace").optimizer.rewrite(graph)
    assert not tried


def test_squares_of_scaled_states_are_summed_in_windows() -> None:
    """PyTensor's rewrite fails there, which is an error here."""
    with pm.Model() as model:
        a = pm.Flat("a", shape=(4, 3))
        pm.Potential("p", -((0.01 * a**3) ** 2).sum())
    program = build_gradients(build_density(model), 2)
    states = np.arange(24.0).reshape(2, 12) / 10
    for mode in (NUMBA_MODE, JAX_MODE):
        graph = FunctionGraph(program.inputs, program.outputs, clone=True)
        mode.excluding("inplace").optimizer.rewrite(graph)
    function: Any = pytensor.function(program.inputs, program.outputs[0], mode="FAST_COMPILE")
    assert_allclose(function(states), -1e-4 * (states**6).sum(axis=1))


def test_the_rest_is_pytensors() -> None:
    x = pt.dvector("x")
    given = x * 1 + 0 + x
    assert equal_computations([canonical(given)], [rewrite_graph(given, include=("canonicalize",))])
