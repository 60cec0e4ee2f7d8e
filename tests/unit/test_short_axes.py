"""Short axes come first in Numba's loops, and what is computed stays the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.basic import Apply
from pytensor.graph.rewriting.basic import in2out
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.tensor import special
from pytensor.tensor.elemwise import Elemwise

import pymc_deer.ops.matmul_numba  # noqa: F401
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.density import build_density
from pymc_deer.graphs import short_axes
from pymc_deer.ops.vector_loop import body_size
from tests.support import NUMBA_IN_PYTHON

RNG = np.random.default_rng(0)
N, K = 50, 3
ROWS, COMPONENTS, ARRAY = RNG.normal(size=N), RNG.normal(size=K), RNG.normal(size=(N, K))


def nodes(function: Any) -> list[Apply]:
    return function.maker.fgraph.toposort()


def loops_over_short_axes(function: Any) -> list[Apply]:
    """Loops over elements, the innermost of few steps and those around it of many."""
    loops = [n for n in nodes(function) if body_size(getattr(n.op, "op", n.op))]
    shapes = {n: [v.type.shape for v in (*n.inputs, *n.outputs) if v.type.ndim > 1] for n in loops}
    return [n for n, of in shapes.items() if any(s[-2] == N and s[-1] in (2, K) for s in of)]


def reductions(x: Any, c: Any, a: Any) -> list[Any]:
    outer = pt.exp(-((x[:, None] - c) ** 2))
    return [outer.sum(axis=axis) for axis in (None, 0, 1)] + [outer.max(axis=1)]


def softmax(x: Any, c: Any, a: Any) -> list[Any]:
    logits = x[:, None] * c
    total = pt.logsumexp(logits, axis=-1)
    return [total, *pytensor.grad(total.sum(), [x, c])]


def stacked(x: Any, c: Any, a: Any) -> list[Any]:
    array = pt.stack([pt.sin(x), x + c[0]], axis=-1) * c[:2]
    return [array.sum(axis=1), *pytensor.grad((array**2).sum(), [x, c])]


def cubes(x: Any, c: Any, a: Any) -> list[Any]:
    """Three axes, of which one or two are left, in either order."""
    cube = pt.exp(x[:, None, None] * pt.arange(1.0, 5.0)[:, None] / 9 + c).astype(x.dtype)
    turned = cube.dimshuffle(2, 1, 0)
    sums = [cube.sum(axis=axis) for axis in (0, 1, 2, (0, 2), (1, 2), None)]
    return [*sums, turned.sum(axis=0), turned.sum(axis=2), cube.dimshuffle(1, 0, 2).max(axis=2)]


def even_cubes(x: Any, c: Any, a: Any) -> list[Any]:
    """As many elements along each axis, so that no shape tells one axis from another."""
    cube = pt.exp(x[:8, None, None] - x[8:16, None] ** 2 + 3 * x[16:24])
    orders = [cube, cube.dimshuffle(2, 1, 0), cube.dimshuffle(1, 2, 0)]
    return [cube.sum(axis=axis) for cube in orders for axis in (0, 1, 2, (0, 1), (0, 2))]


def crossed(x: Any, c: Any, a: Any) -> list[Any]:
    """Main effects of one axis each, as short as one another: any order is as good."""
    cubes = [
        pt.exp(x[:i, None, None] + x[i : i + j, None] + x[i + j : i + j + k] + x[0])
        for i, j, k in ((6, 6, 6), (4, 8, 12), (12, 8, 4), (4, 12, 8))
    ]
    return [cube.sum(axis=axis) for cube in cubes for axis in (0, 2, None)]


def softmaxes(x: Any, c: Any, a: Any) -> list[Any]:
    logits = x[:, None] * c
    likelihood = (a * special.log_softmax(logits, axis=-1)).sum()
    return [special.softmax(logits, axis=-1), *pytensor.grad(likelihood, [x, c])]


def read_elsewhere(x: Any, c: Any, a: Any) -> list[Any]:
    """By matrix products, by indices, and as results."""
    outer = pt.exp(x[:, None] - c)
    return [outer, outer @ c, outer.T @ x, outer[np.arange(N), np.arange(N) % K], outer[::2, ::-1]]


def read_in_full(x: Any, c: Any, a: Any) -> list[Any]:
    """An array of all these elements, which lies as it does."""
    return [(pt.exp(x[:, None] + c) * a).sum(axis=1), (a.T * x + c[:, None]).sum(axis=0)]


MIXTURES = (reductions, softmax, softmaxes, stacked, even_cubes, crossed)


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        *[(build, "float64") for build in MIXTURES],
        *[(build, "float32") for build in (cubes, read_elsewhere, read_in_full)],
    ],
)
def test_values_stay_the_same(build: Callable[..., list[Any]], dtype: str) -> None:
    inputs = [
        pt.tensor("x", dtype=dtype, shape=(N,)),
        pt.tensor("c", dtype=dtype, shape=(K,)),
        pt.tensor("a", dtype=dtype, shape=(N, K)),
    ]
    outputs = build(*inputs)
    values = [v.astype(dtype) for v in (ROWS, COMPONENTS, ARRAY)]
    found, expected = (
        pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")(*values)
        for mode in (NUMBA_MODE, "FAST_COMPILE")
    )
    eps = np.finfo(dtype).eps
    for ours, pytensors in zip(found, expected, strict=True):
        assert ours.shape == pytensors.shape
        assert_allclose(ours, pytensors, rtol=300 * eps, atol=30 * eps)


def normals() -> None:
    w = pm.Dirichlet("w", np.ones(K))
    mu = pm.Normal("mu", 0.0, 1.0, shape=K)
    pm.NormalMixture("y", w=w, mu=mu, sigma=pm.HalfNormal("sigma", 1.0), observed=ROWS)


def regressions() -> None:
    w, slope = pm.Dirichlet("w", np.ones(2)), pm.Normal("slope", 0.0, 1.0, shape=2)
    components = [pm.Normal.dist(slope[k] * ROWS, 1.0 + k) for k in range(2)]
    pm.Mixture("y", w=w, comp_dists=components, observed=ROWS**2)


def zero_inflated() -> None:
    psi, rate = pm.Beta("psi", 1.0, 1.0), pm.Normal("rate", 0.0, 1.0)
    counts = np.arange(N) % 4
    pm.ZeroInflatedPoisson("y", psi=psi, mu=pt.exp(rate * ROWS), observed=counts)


def gradient(likelihood: Callable[[], None]) -> tuple[Any, list[np.ndarray]]:
    """A model's gradient with Numba's loops, and its arguments."""
    with pm.Model() as model:
        likelihood()
    density, point = build_density(model), model.initial_point()
    function = pytensor.function(
        [density.x, *density.params], [density.logp, density.dlogp], mode=NUMBA_IN_PYTHON
    )
    return function, [density.layout.ravel(point, "float64"), *density.param_values(point)]


@pytest.mark.parametrize("likelihood", [normals, regressions, zero_inflated])
def test_no_loop_of_a_mixture_runs_over_its_components(
    likelihood: Callable[[], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    function, arguments = gradient(likelihood)
    own = (OpFromGraph, *short_axes._OWN_FUNCTIONS)
    assert not loops_over_short_axes(function)
    assert not any(type(node.op) in own for node in nodes(function))

    monkeypatch.setattr(short_axes, "_ends_short", lambda shape: False)
    pytensors, _ = gradient(likelihood)
    assert loops_over_short_axes(pytensors)
    for ours, expected in zip(function(*arguments), pytensors(*arguments), strict=True):
        assert_allclose(ours, expected, rtol=1e-12)


def test_arrays_that_lie_otherwise_are_read_as_they_lie() -> None:
    x, a = pt.tensor("x", shape=(N,)), pt.tensor("a", shape=(N, K))
    function = pytensor.function([x, a], pt.exp(x[:, None] * a).sum(axis=1), mode=NUMBA_MODE)
    assert loops_over_short_axes(function)


@pytest.mark.parametrize("shape", [(N, 17), (N, 1), (4, K), (N,), (), (4, 8, 16), (6, 6, 6)])
def test_other_shapes_stay(shape: tuple[int, ...]) -> None:
    assert not short_axes._ends_short(shape)


@pytest.mark.parametrize(
    ("shape", "rotated"), [((N, 3, 5), (3, 5, N)), ((3, N, 5), (5, 3, N)), ((4, 16, 8), (8, 4, 16))]
)
def test_the_longest_axis_comes_last(shape: tuple[int, ...], rotated: tuple[int, ...]) -> None:
    u, v, w = [pt.tensor(shape=(n,)) for n in shape]
    cube = pt.exp(pt.add(u[:, None, None], v[None, :, None], w[None, None, :]))
    rewrite = in2out(short_axes.short_axis_first)
    found = rewrite_graph(cube, include=(), custom_rewrite=rewrite, clone=True)
    assert found.type.shape == shape
    loops = [v for v in ancestors([found]) if v.owner and isinstance(v.owner.op, Elemwise)]
    assert {v.type.shape for v in loops if 1 not in v.type.shape} == {rotated}


@pytest.mark.skipif(not short_axes._OWN_FUNCTIONS, reason="PyTensor has them from 3.3.8 on")
def test_softmax_is_no_function_of_its_own() -> None:
    """Its exponentials are taken several at a time, as all others."""
    x, c = pt.tensor("x", shape=(N,)), pt.tensor("c", shape=(K,))
    terms = special.log_softmax(x[:, None] * c, axis=-1) * special.softmax(x[:, None] - c, axis=-1)
    function = pytensor.function([x, c], pytensor.grad(terms.sum(), [x, c]), mode=NUMBA_IN_PYTHON)
    assert not loops_over_short_axes(function)


@pytest.mark.parametrize("shape", [(N, K), (None, 2), (4, 16, 8), (N, 3, 5), (3, N, 5)])
def test_short_last_axes_are_told(shape: tuple[int | None, ...]) -> None:
    assert short_axes._ends_short(shape)
