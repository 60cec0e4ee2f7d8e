"""The graphs that Numba gets: with Ops that it compiles fast in place of some."""

from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numba.core import event
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.link.numba import cache
from pytensor.scalar.basic import Composite
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import DimShuffle
from pytensor.tensor.extra_ops import CumOp
from pytensor.tensor.math import Dot
from pytensor.tensor.rewriting.fused_elemwise import FusedElemwise
from scipy.special import betainc

import pymc_deer.backends.numba  # noqa: F401
from pymc_deer.backends import numba_mode
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.density import build_density
from pymc_deer.examples import correlated_logistic
from pymc_deer.ops.batch import BatchMap
from pymc_deer.ops.inlined_composite import InlinedComposite
from pymc_deer.ops.matmul import MatrixProduct
from pymc_deer.ops.scan import RunningSum
from pymc_deer.ops.shuffle import Shuffle
from pymc_deer.ops.vector_loop import VectorLoop
from pymc_deer.sweep import Evaluation, Kernel, SweepSpec, build_sweep
from tests.support import NUMBA_IN_PYTHON, graph_for_numba

X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.random.default_rng(1).normal(size=(3, 5))


def rewritten(inputs: list[Any], outputs: list[Any]) -> Any:
    """The graph as Numba gets it, run by Python."""
    graph = graph_for_numba(inputs, outputs)
    return pytensor.function(graph.inputs, graph.outputs, mode=Mode("vm", None))


def ops(function: Any) -> list[Any]:
    return [node.op for node in function.maker.fgraph.toposort()]


def count(function: Any, kind: type) -> int:
    return sum(isinstance(op, kind) for op in ops(function))


def test_a_regression_has_it_in_place_of_pytensors_product() -> None:
    data, beta, states = pt.matrix("data"), pt.vector("beta"), pt.matrix("states")
    residuals = pt.exp(data @ beta)
    outputs = [data.T @ residuals, beta @ data.T, states @ data.T, (states @ data.T) @ data]
    function = rewritten([data, beta, states], outputs)
    assert count(function, Dot) == 0
    assert not any(getattr(op, "is_matrix_transpose", False) for op in ops(function))
    states = np.ones((2, 3))
    expected = [X.T @ np.exp(X @ Y[:, 0]), X @ Y[:, 0], states @ X.T, states @ X.T @ X]
    for found, value in zip(function(X, Y[:, 0], states), expected, strict=True):
        assert_allclose(found, value, rtol=1e-12)


def test_a_product_that_would_copy_the_data_stays_pytensors() -> None:
    data, beta = pt.matrix("data"), pt.vector("beta")
    function = rewritten([data, beta], [data[:, 1:] @ beta])
    assert count(function, Dot) == 1
    [found] = function(X, np.array([1.0, 2.0]))
    assert_allclose(found, X[:, 1:] @ [1.0, 2.0], rtol=1e-12)


def test_products_of_integers_and_of_mixed_types_stay_pytensors() -> None:
    counts, data = pt.lmatrix("counts"), pt.matrix("data", dtype="float64")
    function = rewritten([counts, data], [counts @ counts, data @ counts])
    assert count(function, MatrixProduct) == 0
    n = np.arange(9).reshape(3, 3)
    for found, value in zip(function(n, X), [n @ n, X @ n], strict=True):
        assert_allclose(found, value, rtol=1e-12)


def test_running_sums_of_rows_are_loops() -> None:
    x, n = pt.matrix("x"), pt.lmatrix("n")
    outputs = [pt.cumsum(x, axis=0), pt.cumsum(x, axis=1), pt.cumsum(n, axis=0)]
    function = rewritten([x, n], outputs)
    assert count(function, RunningSum) == 1
    assert count(function, CumOp) == 2
    counts = np.arange(12).reshape(4, 3)
    expected = [np.cumsum(X, axis=0), np.cumsum(X, axis=1), np.cumsum(counts, axis=0)]
    for found, value in zip(function(X, counts), expected, strict=True):
        assert_allclose(found, value, rtol=1e-12)


def test_arrays_are_filled_without_broadcasting() -> None:
    x, n = pt.dscalar("x"), pt.lscalar("n")
    function = rewritten([x, n], [pt.alloc(x, n, 2), pt.alloc(x), pt.alloc(pt.arange(n), 2, n)])
    fills = [node for node in function.maker.fgraph.toposort() if isinstance(node.op, Alloc)]
    assert fills
    assert all(node.inputs[0].ndim == 1 for node in fills)
    found = function(1.5, 3)
    for array, value in zip(found, [np.full((3, 2), 1.5), 1.5, [range(3), range(3)]], strict=True):
        assert np.array_equal(array, value)


@pytest.mark.parametrize("kernel", ["mala", "hmc"])
def test_a_sweep_evaluates_the_density_by_ops_that_stay(kernel: Kernel) -> None:
    """Put in place of the Op, its graph came too late for the rewrites that batches need."""
    density = build_density(correlated_logistic(50, 3))
    program = build_sweep(density, SweepSpec("dense", kernel=kernel), "vectorized")
    compiled: Any = pytensor.function(
        program.inputs, program.outputs, mode=NUMBA_MODE, on_unused_input="ignore"
    )
    nodes = compiled.maker.fgraph.toposort()
    [batch] = [node.op.fgraph for node in nodes if isinstance(node.op, BatchMap)]
    evaluations = [n.op for n in batch.toposort() if isinstance(n.op, Evaluation)]
    names = {"mala": ["LogpDlogp", "LogpDlogp"], "hmc": ["Gradient", "Logp", "Logp"]}[kernel]
    assert sorted(op.name for op in evaluations) == names
    # What is the same is compiled once.
    assert len(set(evaluations)) == len(set(names))


def shuffled(x: Any, *orders: Any) -> list[Any]:
    """The array with its axes in these orders."""
    return [x.dimshuffle(*order) for order in orders]


def test_axes_are_changed_without_a_check_where_none_is_needed() -> None:
    x, row, unknown = pt.dmatrix("x"), pt.drow("row"), pt.dmatrix("unknown")
    orders = [("x", 0, 1), (1, 0)]
    outputs = [*shuffled(x, *orders), *shuffled(row, (1,), (1, 0)), unknown.dimshuffle(0)]
    function = rewritten([x, row, unknown], outputs)
    assert count(function, Shuffle) == 4
    assert count(function, DimShuffle) == 5
    expected = [X[None], X.T, X[0], X[:1].T, X[:, 0]]
    for found, value in zip(function(X, X[:1], X[:, :1]), expected, strict=True):
        assert np.array_equal(found, value)
    with pytest.raises(ValueError, match="reshape"):
        function(X, X[:1], X)


def functions_of_elements(x: Any) -> list[Any]:
    """One whose sums are taken, and that is wanted for itself: PyTensor fuses it anew."""
    fused = pt.switch(x > 0, 2 - x * x / (1 + x), pt.exp(-x)) + 3 / x
    return [fused, fused.sum(), (fused * x).sum(), 1 + 2 * fused.sum() / fused[0]]


def composites(op: Any) -> set[type]:
    """Kinds of fused functions of elements in an Op, and in what is within it."""
    nodes = op.fgraph.apply_nodes if hasattr(op, "fgraph") else []
    inner = {kind for node in nodes for kind in composites(node.op)}
    own = {type(o) for o in (op, getattr(op, "scalar_op", None)) if isinstance(o, Composite)}
    within = getattr(op, "op", None)
    return own | inner | (set() if within is None else composites(within))


def test_functions_of_elements_are_compiled_as_one() -> None:
    x = pt.dvector("x")
    function = rewritten([x], functions_of_elements(x))
    fused = [op for op in ops(function) if isinstance(op, FusedElemwise | VectorLoop)]
    assert fused
    kinds = {kind for op in ops(function) for kind in composites(op)}
    assert kinds == {InlinedComposite}
    [whole, total, weighted, last] = function(Y[0])
    expected = np.where(Y[0] > 0, 2 - Y[0] ** 2 / (1 + Y[0]), np.exp(-Y[0])) + 3 / Y[0]
    assert_allclose(whole, expected, rtol=1e-12)
    assert_allclose(total, expected.sum(), rtol=1e-12)
    assert_allclose(weighted, (expected * Y[0]).sum(), rtol=1e-12)
    assert_allclose(last, 1 + 2 * expected.sum() / expected[0], rtol=1e-12)


def test_functions_with_several_results_are_left_alone() -> None:
    """Those of a series, to which the derivatives of the incomplete beta function are summed."""
    a, x = pt.dmatrix("a"), pt.dmatrix("x")
    derivative = pytensor.grad(pt.betainc(a, 2.0, x).sum(), a)
    function: Any = pytensor.function([a, x], pt.exp(derivative), mode=NUMBA_IN_PYTHON)
    at = 1.0 + np.abs(Y)
    above, below = betainc(at + 1e-6, 2.0, 0.5), betainc(at - 1e-6, 2.0, 0.5)
    expected = np.exp((above - below) / 2e-6)
    assert_allclose(function(at, np.full_like(at, 0.5)), expected, rtol=1e-6)


def test_numba_computes_the_same_in_fewer_functions(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    x = pt.fvector("x")
    counts = []
    for left in (False, True):
        # Nothing is on disk.
        empty = tmp_path / str(left)
        empty.mkdir()
        monkeypatch.setattr(cache, "NUMBA_CACHE_PATH", empty)
        if left:
            monkeypatch.setattr(numba_mode.compiled_as_one, "fn", lambda fgraph, node: None)
        function = pytensor.function([x], functions_of_elements(x), mode=NUMBA_MODE)
        value = Y[0].astype("float32")
        with event.install_recorder("numba:compile") as recorder:
            found = function(value)
        counts.append(sum(found.is_start for _, found in recorder.buffer))
        expected = pytensor.function([x], functions_of_elements(x), mode="FAST_COMPILE")(value)
        for array, other in zip(found, expected, strict=True):
            assert array.dtype == "float32"
            assert_allclose(array, other, rtol=20 * np.finfo("float32").eps)
    assert counts[0] < 0.9 * counts[1]
