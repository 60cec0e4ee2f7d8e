"""AffineScan: the NumPy, Numba and JAX implementations against a plain loop."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode

import pymc_deer.scan_jax
import pymc_deer.scan_numba
from pymc_deer.scan import AffineScan, affine_scan

MODES = ("FAST_COMPILE", "NUMBA", "JAX")


def plain_loop(a: np.ndarray, b: np.ndarray, start: np.ndarray) -> np.ndarray:
    states, state = [], start
    for factor, offset in zip(a, b, strict=True):
        state = factor * state + offset
        states.append(state)
    return np.array(states)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("columns", [3, 1], ids=["factor a coordinate", "factor a step"])
def test_agrees_with_a_plain_loop(mode: str, dtype: str, columns: int) -> None:
    variables = [
        pt.tensor("a", dtype=dtype, shape=(None, columns)),
        pt.tensor("b", dtype=dtype, shape=(None, 3)),
        pt.tensor("start", dtype=dtype, shape=(3,)),
    ]
    scan = pytensor.function(variables, affine_scan(*variables), mode=mode)
    rng = np.random.default_rng(0)
    for width in (1, 2, 33):
        a = rng.uniform(0.0, 1.0, (width, columns)).astype(dtype)
        b, start = rng.normal(size=(width, 3)).astype(dtype), rng.normal(size=3).astype(dtype)
        kept = start.copy()
        found = np.asarray(scan(a, b, start))
        assert found.shape == (width, 3)
        assert found.dtype == dtype
        rtol = 1e-12 if dtype == "float64" else 1e-4
        assert_allclose(found, plain_loop(a, b, start), rtol=rtol, atol=rtol)
        np.testing.assert_array_equal(start, kept)


@pytest.mark.parametrize("width", [64, 40, 33])
def test_a_scan_of_several_kernels_is_that_of_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to whatever length they halve it, and where it cannot be halved."""
    variables = [pt.matrix(name, dtype="float64") for name in "ab"]
    variables.append(pt.vector("start", dtype="float64"))
    rng = np.random.default_rng(1)
    a, b = rng.uniform(-1.0, 1.0, (width, 3)), rng.normal(size=(width, 3))
    start = rng.normal(size=3)

    def scanned() -> np.ndarray:
        scan = pytensor.function(variables, affine_scan(*variables), mode="JAX")
        return np.asarray(scan(a, b, start))

    expected = scanned()
    monkeypatch.setattr(pymc_deer.scan_jax, "_FUSED", 4)
    assert_allclose(scanned(), expected, rtol=1e-12)


@pytest.mark.parametrize("mode", MODES)
def test_one_dimension(mode: str) -> None:
    variables = [pt.matrix("a", dtype="float64"), pt.matrix("b", dtype="float64")]
    variables.append(pt.vector("start", dtype="float64"))
    scan = pytensor.function(variables, affine_scan(*variables), mode=mode)
    a, b, start = np.full((4, 1), 0.5), np.ones((4, 1)), np.array([2.0])
    assert_allclose(scan(a, b, start), plain_loop(a, b, start), rtol=1e-12)


def test_shape_is_known_without_running() -> None:
    a, b, start = pt.matrix("a"), pt.matrix("b"), pt.vector("start")
    shape = pytensor.function(
        [a, b, start],
        affine_scan(a, b, start).shape,
        mode=Mode("py", "fast_run"),
        on_unused_input="ignore",
    )
    assert not any(isinstance(node.op, AffineScan) for node in shape.maker.fgraph.toposort())
    assert tuple(shape(np.ones((4, 1)), np.ones((4, 2)), np.ones(2))) == (4, 2)


@pytest.mark.parametrize("ndims", [(1, 2, 1), (2, 1, 1), (2, 2, 2), (2, 2, 0)])
def test_wrong_number_of_dimensions(ndims: tuple[int, int, int]) -> None:
    variables = [pt.tensor(dtype="float64", shape=(None,) * n) for n in ndims]
    with pytest.raises(TypeError, match="AffineScan takes a matrix, a matrix and a vector"):
        affine_scan(*variables)
