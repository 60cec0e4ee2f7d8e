"""Loops over elements that LLVM vectorises whatever their body, and whatever they read."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.fg import FunctionGraph

from pymc_deer.backends import numba_mode
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.ops.vector_loop import VectorLoop, body_size, partial_reductions
from tests.support import HAS_VARIANTS, calls_variants, graph_for_numba

X = np.random.default_rng(0).normal(size=(40, 3))


def large_body(x: Any, n_terms: int = 7) -> list[Any]:
    """More functions than LLVM puts in place of a call, several of them results."""
    terms = [pt.exp(x - k) * pt.maximum(x, k) + (x - k) / (2 + k) for k in range(n_terms)]
    return [sum(terms[1:], terms[0]), *terms[:3]]


def behind_reduction(x: Any) -> list[Any]:
    """A loop over what a reduction has left, with sums of its own: a logistic regression's."""
    n = x.shape[0] // 2
    total, outcomes = (x[:n] * x[n:]).sum(axis=1), x[:n, 0] > 0
    logit = pt.switch(outcomes, total, -total)
    probability = pt.sigmoid(logit)
    residual = pt.switch(outcomes, probability, -probability)
    return [pt.softplus(logit).sum(), residual.sum(), residual]


def compiled(inputs: list[Any], outputs: list[Any]) -> Any:
    with pytensor.config.change_flags(numba__cache=False):
        function = pytensor.function(inputs, outputs, mode=NUMBA_MODE)
        function(*(X[(0,) * (2 - v.ndim)] for v in inputs))
    return function


def loops(graph: FunctionGraph) -> list[VectorLoop]:
    return [node.op for node in graph.apply_nodes if isinstance(node.op, VectorLoop)]


@pytest.mark.skipif(not HAS_VARIANTS, reason="only GNU's C library for x86-64 has variants")
@pytest.mark.parametrize("build", [large_body, behind_reduction])
def test_loops_are_vectorised(build: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are not as PyTensor has them: without the Op, these very graphs are not."""
    x, value = (pt.dvector("x"), X[:, 0]) if build is large_body else (pt.dmatrix("x"), X)
    ours = compiled([x], build(x))
    assert calls_variants(ours, "exp")
    monkeypatch.setattr(numba_mode, "keeps_scalar", lambda node: False)
    plain = compiled([x], build(x))
    assert not loops(plain.maker.fgraph)
    assert not calls_variants(plain, "exp")
    for found, expected in zip(ours(value), plain(value), strict=True):
        assert_allclose(found, expected, rtol=1e-13)


def test_values_are_pytensors() -> None:
    dtype = "float32"
    x, i = pt.matrix("x", dtype=dtype), pt.lvector("i")
    body = large_body(x, 3)
    some = [*body, *behind_reduction(x), *(body[0].sum(axis=a) for a in (0, 1))]
    indexed = pt.zeros((5, 3), dtype=dtype)[i].inc(body[0][:4])
    cube = pt.stack([x, 2 * x])
    outputs = [*some, indexed, cube.sum(axis=(0, 2)), cube.max(axis=1), x.T.sum(axis=1)]
    values = X.astype(dtype), np.array([4, 0, 0, 2])
    ours = pytensor.function([x, i], outputs, mode=NUMBA_MODE)
    assert loops(ours.maker.fgraph)
    expected = pytensor.function([x, i], outputs, mode="FAST_COMPILE")(*values)
    for found, value in zip(ours(*values), expected, strict=True):
        assert found.dtype == dtype
        assert_allclose(found, value, rtol=200 * np.finfo(dtype).eps, atol=np.finfo(dtype).eps)


def test_inputs_may_be_overwritten() -> None:
    x = pt.dvector("x")
    function = pytensor.function(
        [pytensor.In(x, mutable=True)], large_body(pt.exp(x))[0], mode=NUMBA_MODE
    )
    [loop] = loops(function.maker.fgraph)
    assert loop.destroy_map == loop.op.destroy_map
    expected = large_body(pt.exp(x))[0].eval({x: X[:, 0]}, mode="FAST_COMPILE")
    assert_allclose(function(X[:, 0].copy()), expected, rtol=1e-13)


def test_small_loops_stay_pytensors() -> None:
    x = pt.dmatrix("x")
    assert not loops(graph_for_numba([x], [pt.exp(x).sum(), 2 * x + 1]))


def test_what_a_loop_consists_of_is_counted() -> None:
    x = pt.dmatrix("x")
    assert body_size(pt.exp(x).owner.op) == 1
    assert body_size(x.T.owner.op) == 0
    [large] = loops(graph_for_numba([x], large_body(x)[:1]))
    assert body_size(large.op) >= 30
    for axis, partial in ((None, ()), (0, (0,)), ((0, 1), ())):
        total = x.sum(axis=axis)
        assert partial_reductions(total.owner.op, [total]) == partial
