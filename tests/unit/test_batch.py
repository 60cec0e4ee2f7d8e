"""BatchMap: every backend and both forms of the inner graph give the rows' own results."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode

import pymc_deer.ops.batch_jax
import pymc_deer.ops.batch_numba  # noqa: F401
from pymc_deer.ops.batch import Batching, BatchMap

SIZE = 3
SHARED = np.array([1.0, -2.0, 0.5])


def batch_map(batching: Batching, width: int | None, threaded: bool) -> BatchMap:
    """A toy graph: a vector, a scalar and a truth value for each state."""
    lead = (width,) if batching == "vectorized" else ()
    x = pt.tensor("x", dtype="float64", shape=(*lead, SIZE))
    y = pt.tensor("y", dtype="float64", shape=lead)
    shared = pt.tensor("shared", dtype="float64", shape=(SIZE,))
    total = pt.sum(x * shared, axis=-1)
    outputs = [x * shared + pt.expand_dims(y, -1), total * y, total > y]
    return BatchMap([x, y, shared], outputs, n_mapped=2, batching=batching, threaded=threaded)


def compiled(batching: Batching, mode: str, width: int | None, threaded: bool = False):
    x = pt.tensor("x", dtype="float64", shape=(width, SIZE))
    y = pt.tensor("y", dtype="float64", shape=(width,))
    shared = pt.tensor("shared", dtype="float64", shape=(SIZE,))
    block = pt.tensor("block", dtype="int64", shape=())
    outputs = batch_map(batching, width, threaded)(block, x, y, shared)
    return pytensor.function([block, x, y, shared], outputs, mode=mode)


def check(function, width: int, block: int) -> None:
    rng = np.random.default_rng(width)
    x, y = rng.normal(size=(width, SIZE)), rng.normal(size=width)
    vector, scalar, truth = function(np.asarray(block), x, y, SHARED)
    totals = x @ SHARED
    assert_allclose(vector, x * SHARED + y[:, None], rtol=1e-12)
    assert_allclose(scalar, totals * y, rtol=1e-12)
    np.testing.assert_array_equal(truth, totals > y)


@pytest.mark.parametrize("batching", ["vectorized", "mapped"])
def test_python(batching: Batching) -> None:
    function = compiled(batching, "FAST_COMPILE", None)
    for width in (1, 7):
        check(function, width, 4)


@pytest.mark.parametrize("batching", ["vectorized", "mapped"])
@pytest.mark.parametrize("width", [1, 7])
def test_jax(batching: Batching, width: int) -> None:
    check(compiled(batching, "JAX", width), width, 4)


@pytest.mark.parametrize(
    ("batching", "threaded"),
    [("vectorized", False), ("mapped", True)],
    ids=["vectorized-serial", "mapped-threaded"],
)
def test_numba_blocks(batching: Batching, threaded: bool) -> None:
    function = compiled(batching, "NUMBA", None, threaded)
    for width in (1, 4, 5, 33):
        for block in (1, 4, 32, 100):
            check(function, width, block)


def test_maps_differ_by_their_properties() -> None:
    one = batch_map("vectorized", 4, False)
    assert one == batch_map("vectorized", 4, False)
    assert hash(one) == hash(batch_map("vectorized", 4, False))
    assert one != batch_map("vectorized", 4, True)
    assert one != batch_map("mapped", 4, False)


@pytest.mark.parametrize("batching", ["vectorized", "mapped"])
def test_static_shapes_of_the_outputs(batching: Batching) -> None:
    x = pt.tensor("x", dtype="float64", shape=(4, SIZE))
    y = pt.tensor("y", dtype="float64", shape=(4,))
    block = pt.constant(np.asarray(2))
    outputs = batch_map(batching, 4, False)(block, x, y, pt.constant(SHARED))
    assert [o.type.shape for o in outputs] == [(4, SIZE), (4,), (4,)]


@pytest.mark.parametrize("batching", ["vectorized", "mapped"])
def test_shape_is_known_without_running(batching: Batching) -> None:
    x, y = pt.matrix("x", shape=(None, SIZE)), pt.vector("y")
    block = pt.constant(np.asarray(2))
    outputs = batch_map(batching, None, False)(block, x, y, pt.constant(SHARED))
    shapes = pytensor.function(
        [x, y], [o.shape for o in outputs], mode=Mode("py", "fast_run"), on_unused_input="ignore"
    )
    assert not any(isinstance(node.op, BatchMap) for node in shapes.maker.fgraph.toposort())
    found = shapes(np.ones((5, SIZE)), np.ones(5))
    assert [tuple(shape) for shape in found] == [(5, SIZE), (5,), (5,)]
