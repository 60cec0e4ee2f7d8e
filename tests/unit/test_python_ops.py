"""Which Ops Numba leaves to Python, and that those are found wherever they are."""

import sys
from dataclasses import replace
from typing import Any

import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.replace import vectorize_graph
from pytensor.tensor.elemwise import Elemwise

import pymc_deer.backends.numba  # noqa: F401
from pymc_deer.backends import make_solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.graphs.python_ops import calls_python
from pymc_deer.sampling.recorder import Values, traced
from pymc_deer.sweep import SweepSpec
from tests.support import Opaque


def test_pytensors_own_are_compiled() -> None:
    x, matrix = pt.vector("x"), pt.matrix("matrix", shape=(3, 3))
    loop = pytensor.scan(lambda s: s * 2, outputs_info=x, n_steps=3, return_updates=False)
    product = pt.linalg.cholesky(matrix) @ pt.special.softmax(x)
    assert not calls_python([loop.sum() + product.sum(), x[pt.argsort(x)]])


def test_others_are_found() -> None:
    x = pt.vector("x")
    assert calls_python([Opaque()(x).sum()])
    assert calls_python([pt.exp(x), 2 * Opaque()(pt.exp(x))])


class Double(ps.UnaryScalarOp):
    """An operation on elements that is Python's."""

    def impl(self, *inputs: Any) -> Any:
        return 2 * inputs[0]

    def c_code(self, *args: object, **named: object) -> str:
        raise NotImplementedError


def test_those_on_elements_are_found() -> None:
    x, double = pt.vector("x"), Double(ps.same_out)
    y = ps.float64("y")
    both = ps.Composite([y], [ps.exp(double(y))])
    assert calls_python([Elemwise(double)(x).sum()])
    assert calls_python([Elemwise(both)(x)])
    assert not calls_python([pt.psi(x) + pt.gammaln(x) + pt.erfcx(x) + pt.gammainc(x, x)])
    reduced = pt.prod(x) + pt.max(x) + pt.all(x > 0) + pt.logsumexp(x)
    assert not calls_python([reduced, pt.grad(reduced, x)])


def test_others_are_found_inside() -> None:
    x, rows = pt.vector("x", shape=(3,)), pt.matrix("rows", shape=(2, 3))
    assert calls_python([vectorize_graph(Opaque()(x), {x: rows})])
    assert calls_python([OpFromGraph([x], [Opaque()(x)])(pt.exp(x))])
    loop = pytensor.scan(lambda s: Opaque()(s), outputs_info=x, n_steps=3, return_updates=False)
    assert calls_python([loop])


def test_without_numba_nothing_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "pytensor.link.numba.dispatch.basic")
    assert not calls_python([Opaque()(pt.vector("x"))])


def test_names_of_axes_are_none() -> None:
    """Numba has nothing for what has them, which is lowered before."""
    with pm.Model(coords={"i": range(3)}) as model:
        pmd.Deterministic("double", 2.0 * pmd.Normal("x", dims="i"))
    assert not Values(model, build_density(model), traced(model, None), 2).calls_python
    with model:
        pm.Deterministic("opaque", Opaque()(model["x"].values))
    assert Values(model, build_density(model), traced(model, None), 2).calls_python


def test_products_with_the_hessian_may_be_pythons_alone() -> None:
    """They are called in windows, by the rules that take them."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    density = build_density(model, hvp=lambda x, v: Opaque()(v.sum()) * v)
    plan = WindowPlan(64, None, 1e-6, 256)
    solver = make_solver("numba", density, SweepSpec("diag", "secant"), plan)
    assert not solver.calls_python
    assert solver.with_rule("stochastic").calls_python
    assert not solver.with_rule("stochastic").with_plan(replace(plan, window=1)).calls_python
