"""Sums of softplus by products: the same numbers by a thirtieth of the logarithms."""

from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.rewriting.basic import dfs_rewriter
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import Elemwise

from pymc_deer import examples
from pymc_deer.backends import make_solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.placement import OneDevice
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.graphs import log_products
from pymc_deer.graphs.log_products import sigmoid_by_exponential, softplus_by_products
from pymc_deer.sweep import SweepSpec, build_sequential

REWRITE = dfs_rewriter(softplus_by_products)
SHARED = dfs_rewriter(sigmoid_by_exponential)
EXTREME = [0.0, -0.0, 1e-9, 40.0, -40.0, 800.0, -800.0]


def rewritten(total: Any) -> Any:
    return rewrite_graph(total, include=(), custom_rewrite=REWRITE)


def functions(variable: Any) -> set[type]:
    nodes = (v.owner for v in ancestors([variable]) if v.owner)
    return {type(node.op.scalar_op) for node in nodes if isinstance(node.op, Elemwise)}


def arguments(shape: tuple[int, ...], dtype: str) -> np.ndarray:
    values = 5 * np.random.default_rng(1).normal(size=shape)
    values.reshape(-1)[: len(EXTREME)] = EXTREME
    return values.astype(dtype)


def check(total: Any, a: Any, values: np.ndarray, sign: float, axis: Any) -> None:
    found = rewritten(total)
    assert Softplus not in functions(found)
    assert found.type == total.type
    result = pytensor.function([a], found, mode="FAST_COMPILE")(values)
    exact = np.logaddexp(0, values.astype(np.longdouble)).sum(axis=axis)
    rtol = {"float64": 1e-14, "float32": 1e-7}[str(values.dtype)]
    assert_allclose(result, (sign * exact).astype(float), rtol=rtol)


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("n", [128, 1000, 4097])
def test_a_sum_of_all_terms(n: int, dtype: str) -> None:
    a = pt.vector("a", dtype=dtype, shape=(n,))
    total = pt.sum(pt.softplus(a).astype("float64"))
    check(total, a, arguments((n,), dtype), 1, None)


@pytest.mark.parametrize("minus", [pt.neg, lambda x: -1.0 * x], ids=["neg", "times -1"])
def test_signs(minus: Any) -> None:
    a = pt.vector("a", dtype="float64", shape=(200,))
    check(pt.sum(minus(pt.softplus(a))), a, arguments((200,), "float64"), -1, None)


def test_of_a_matrix_and_of_each_of_its_rows() -> None:
    a = pt.matrix("a", dtype="float64", shape=(7, 150))
    values = arguments((7, 150), "float64")
    check(pt.sum(pt.softplus(a)), a, values, 1, None)
    check(pt.sum(pt.softplus(a), axis=1), a, values, 1, 1)
    rows = pt.tensor("rows", dtype="float64", shape=(None, 15, 10))
    check(pt.sum(pt.softplus(rows), axis=(1, 2)), rows, values.reshape(7, 15, 10), 1, (1, 2))


@pytest.mark.parametrize(
    "total",
    [
        pt.sum(pt.softplus(pt.vector(shape=(100,)))),
        pt.sum(pt.softplus(pt.vector(shape=(None,)))),
        pt.sum(pt.softplus(pt.matrix(shape=(200, 200))), axis=0),
        pt.sum(pt.exp(pt.vector(shape=(200,)))),
        pt.sum(pt.softplus(pt.vector(shape=(200,), dtype="float32"))),
        pt.sum(np.full(3, -1.0) * pt.softplus(pt.matrix(shape=(100, 1)))),
    ],
    ids=["few", "unknown", "first axis", "another function", "narrow", "repeated"],
)
def test_others_stay_as_they_are(total: Any) -> None:
    assert rewritten(total) is total


@pytest.mark.parametrize(("value", "expected"), [(np.inf, np.inf), (-np.inf, 0), (np.nan, np.nan)])
def test_what_is_not_finite(value: float, expected: float) -> None:
    a = pt.vector("a", dtype="float64", shape=(150,))
    values = np.full(150, -800.0)
    values[3] = value
    found = pytensor.function([a], rewritten(pt.sum(pt.softplus(a))), mode="JAX")(values)
    assert_allclose(found, expected)


def with_sigmoid(a: Any) -> tuple[Any, Any]:
    """The exponential of a softplus, and the sigmoid of its argument by it."""
    found: Any = rewrite_graph(
        [pt.exp(-pt.abs(a)), pt.sigmoid(a)], include=(), custom_rewrite=SHARED
    )
    return found


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_a_sigmoid_by_the_exponential_that_is_there(dtype: str) -> None:
    a = pt.vector("a", dtype=dtype)
    exponential, sigmoid = with_sigmoid(a)
    assert Sigmoid not in functions(sigmoid)
    assert exponential in ancestors([sigmoid])
    assert sigmoid.type == a.type
    values = arguments((1000,), dtype)
    found = pytensor.function([a], sigmoid, mode="JAX")(values)
    exact = np.exp(-np.logaddexp(0, -values.astype(np.longdouble))).astype(float)
    # XLA has numbers that are too small for exponents of their own as 0.
    tiny = np.finfo(dtype).tiny
    assert_allclose(found, exact, rtol=4 * np.finfo(dtype).eps, atol=tiny)


def test_a_sigmoid_with_new_axes() -> None:
    a = pt.vector("a")
    found: Any = rewrite_graph(
        [pt.exp(-pt.abs(a)), pt.sigmoid(a[:, None])], include=(), custom_rewrite=SHARED
    )
    assert Sigmoid not in functions(found[1])
    values = arguments((20,), "float64")
    columns = pytensor.function([a], [pt.sigmoid(a[:, None]), found[1]], mode="FAST_COMPILE")
    assert_allclose(*columns(values), rtol=1e-15)


@pytest.mark.parametrize(("value", "expected"), [(np.inf, 1), (-np.inf, 0), (np.nan, np.nan)])
def test_a_sigmoid_of_what_is_not_finite(value: float, expected: float) -> None:
    a = pt.vector("a")
    found = pytensor.function([a], with_sigmoid(a)[1], mode="JAX")(np.array([value]))
    assert_allclose(found, [expected])


def test_without_the_exponential_a_sigmoid_stays() -> None:
    a, b = pt.vector("a"), pt.vector("b")
    others = [pt.exp(-pt.abs(b)), pt.exp(-a), pt.abs(a), pt.sigmoid(a)]
    kept: Any = rewrite_graph(others, include=(), custom_rewrite=SHARED)
    assert Sigmoid in functions(kept[-1])


def test_a_sigmoid_by_the_wrong_half_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_products.pt, "ge", pt.le)
    with pytest.raises(AssertionError):
        test_a_sigmoid_by_the_exponential_that_is_there("float64")


def test_without_the_largest_parts_it_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_products.pt, "maximum", lambda x, y: pt.zeros_like(x))
    with pytest.raises(AssertionError):
        test_a_sum_of_all_terms(1000, "float64")


@pytest.mark.parametrize("on_cpu", [True, False])
def test_it_is_for_a_cpu(on_cpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    class Place(OneDevice):
        pass

    Place.on_cpu = on_cpu
    density = build_density(examples.correlated_logistic(200, 3))
    solver = make_solver("jax", density, SweepSpec("diag"), WindowPlan(1, None, 1e-6, 8))
    assert isinstance(solver, JaxSolver)
    monkeypatch.setattr(solver, "placement", Place())
    program = build_sequential(density, solver.spec)
    compiled: Any = pytensor.function(
        program.inputs, program.outputs, mode=solver._mode, on_unused_input="ignore"
    )
    used = set().union(*(functions(output) for output in compiled.maker.fgraph.outputs))
    assert (ps.Log in used, Softplus in used) == (on_cpu, not on_cpu)
    assert (Sigmoid in used) == (not on_cpu)
