"""What follows from constants alone is computed once."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from numpy.testing import assert_allclose
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.basic import Sin
from pytensor.sparse import as_sparse, structured_dot, transpose
from pytensor.tensor.basic import Alloc
from pytensor.tensor.elemwise import Elemwise
from scipy import sparse

from pymc_deer.density import build_density
from pymc_deer.graphs.constants import folded, lifted

DATA = np.linspace(0.0, 1.0, 200)


def evaluated(output: Any, inputs: dict[Any, Any]) -> Any:
    """By Python: these tests are about the graph."""
    return output.eval(inputs, mode="FAST_COMPILE", on_unused_input="ignore")


def scalar_ops(outputs: Any) -> list[type]:
    nodes = FunctionGraph(outputs=list(outputs)).apply_nodes
    return [type(node.op.scalar_op) for node in nodes if isinstance(node.op, Elemwise)]


def test_what_is_computed_from_a_filled_array_is_folded() -> None:
    x = pt.vector("x", shape=(200,))
    filled = pt.alloc(pt.constant(DATA[:, None]), 200, 3)
    [out] = folded([x * pt.sin(filled + 1.0)[:, 1]])
    assert scalar_ops([out]).count(Sin) == 0
    assert_allclose(evaluated(out, {x: np.full(200, 2.0)}), 2 * np.sin(DATA + 1.0), rtol=1e-15)


def test_a_gradient_that_is_constant_itself() -> None:
    """It is taken by no node, which was looked for."""
    with pm.Model() as model:
        for name in "ab":
            pm.Uniform(name, shape=100, default_transform=None)
    density = build_density(model)
    x = np.full(200, 0.5)
    given = dict(zip(density.params, density.param_values({}), strict=True))
    assert_allclose(evaluated(density.dlogp, {density.x: x} | given), 0.0)


def test_what_a_shape_follows_from_stays_however_long_it_is() -> None:
    x, times = pt.vector("x", shape=(5000,)), np.full(5000, 2)
    [out], inputs = lifted([pt.repeat(x, times).sum()])
    assert not inputs
    assert evaluated(out, {x: np.ones(5000)}) == 10_000


def test_what_is_filled_for_something_unknown_stays() -> None:
    x = pt.vector("x", shape=(3,))
    [out] = folded([pt.alloc(pt.constant(2.0), 3) * x])
    [node] = [n for n in FunctionGraph(outputs=[out]).apply_nodes if isinstance(n.op, Alloc)]
    assert node.outputs[0].type.shape == (3,)
    assert_allclose(evaluated(out, {x: [1.0, 2.0, 3.0]}), [2.0, 4.0, 6.0])


def test_a_known_output_is_folded_and_an_unknown_one_is_left_alone() -> None:
    x = pt.scalar("x")
    known, unknown = folded([pt.exp(pt.alloc(pt.constant(1.0), 2)), pt.exp(x)])
    assert_allclose(known.data, np.exp([1.0, 1.0]))
    assert x in ancestors([unknown])


def test_large_constants_become_inputs_and_short_indices_stay() -> None:
    x, index = pt.vector("x", shape=(5,)), np.arange(100) % 5
    [out], pairs = lifted([(x[index] - pt.constant(DATA[:100])).sum()])
    [(variable, value)] = pairs
    assert_allclose(value.data, DATA[:100])
    assert variable in ancestors([out])
    expected = (np.arange(5.0)[index] - DATA[:100]).sum()
    assert_allclose(evaluated(out, {x: np.arange(5.0), variable: DATA[:100]}), expected)


def test_they_come_in_the_order_in_which_they_are_taken() -> None:
    """Also those that one node takes, whatever lies where in memory: their code is found again."""
    x, kept = pt.vector("x", shape=(len(DATA),)), []
    for _ in range(8):
        lower, upper = pt.constant(DATA - 1), pt.constant(DATA + 1)
        _, pairs = lifted([pt.clip(x, lower, upper).sum()])
        assert_allclose([value.data[0] for _, value in pairs], [DATA[0] - 1, DATA[0] + 1])
        kept.append((lower, upper, np.empty(len(kept))))


def test_masks_stay_however_long_they_are() -> None:
    """JAX must know how many elements they choose."""
    x, mask = pt.vector("x", shape=(5000,)), np.arange(5000) % 2 == 0
    [out], large = lifted([x[pt.constant(mask)].sum()])
    assert not large
    assert evaluated(out, {x: np.ones(5000)}) == 2500


def test_a_transpose_is_copied_once() -> None:
    """It is a view, which a call of compiled code would copy each time."""
    features = np.random.default_rng(0).normal(size=(300, 4))
    with pm.Model() as model:
        b = pm.Normal("b", shape=4)
        pm.Normal("y", pm.math.dot(features, b), observed=np.zeros(300))
    params = build_density(model).param_values({})
    assert {p.shape for p in params} >= {(300, 4), (4, 300)}
    assert all(p.flags.c_contiguous for p in params)


def test_basis_functions_of_a_gaussian_process_are_no_work_of_a_gradient() -> None:
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        gp = pm.gp.HSGP(m=[15], c=1.5, cov_func=scale**2 * pm.gp.cov.ExpQuad(1, ls=0.3))
        pm.Normal("y", gp.prior("f", X=DATA[:, None]), 1.0, observed=np.cos(DATA))
    density = build_density(model)
    assert scalar_ops([density.logp, density.dlogp]).count(Sin) == 0
    point = np.random.default_rng(0).normal(size=density.size)
    used = set(ancestors([density.logp]))
    pairs = zip(density.params, density.param_values({}), strict=True)
    values = {param: value for param, value in pairs if param in used}
    expected = model.compile_logp(mode="FAST_COMPILE")(density.layout.unravel(point))
    found = evaluated(density.logp, {density.x: point, **values})
    assert_allclose(found, expected, rtol=1e-12)


def test_sparse_data_stay_constants() -> None:
    """They are no arrays, and there is no input of that kind."""
    matrix = sparse.random(100, 5, density=0.5, random_state=0, format="csr")
    x = pt.vector("x", shape=(5,))
    product = structured_dot(as_sparse(matrix), x[:, None])
    [out], large = lifted([product])
    assert matrix.nnz > 200
    assert not large
    assert_allclose(evaluated(out, {x: DATA[:5]})[:, 0], matrix @ DATA[:5], rtol=1e-12)


def test_what_follows_from_sparse_data_is_folded_where_it_is_an_array() -> None:
    """Their transpose is not: nothing makes a constant of it."""
    matrix = sparse.random(5, 100, density=0.5, random_state=0, format="csr")
    x = pt.vector("x", shape=(5,))
    turned = transpose(as_sparse(matrix))
    known, product = folded([turned.toarray() + 1.0, structured_dot(turned, x[:, None])])
    assert_allclose(known.data, matrix.toarray().T + 1.0)
    assert_allclose(evaluated(product, {x: DATA[:5]})[:, 0], matrix.T @ DATA[:5], rtol=1e-12)
