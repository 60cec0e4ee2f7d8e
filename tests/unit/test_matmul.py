"""MatrixProduct: NumPy's product of matrices, either of them transposed or not."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

import pymc_deer.ops.matmul_numba  # noqa: F401
from pymc_deer.ops.matmul import MatrixProduct

X = np.random.default_rng(0).normal(size=(4, 3))
Y = np.random.default_rng(1).normal(size=(3, 5))


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("FAST_COMPILE", "float64"), ("FAST_COMPILE", "float32"), ("NUMBA", "float32")],
)
def test_agrees_with_numpy(mode: str, dtype: str) -> None:
    variables = [pt.tensor(dtype=dtype, shape=(None, None)) for _ in range(4)]
    x, y, x_t, y_t = variables
    outputs = [
        MatrixProduct()(x, y),
        MatrixProduct(transpose_x=True)(x_t, y),
        MatrixProduct(transpose_y=True)(x, y_t),
        MatrixProduct(transpose_x=True, transpose_y=True)(x_t, y_t),
    ]
    function = pytensor.function(variables, outputs, mode=mode)
    rtol = 1e-12 if dtype == "float64" else 1e-5
    empty = [(X[:, :0], Y[:0]), (X[:, :0], Y[:0, :1]), (X[:0], Y), (X, Y[:, :0])]
    for x, y in (
        *[(X, Y), (X, Y[:, :1]), (X[:1], Y), (X[:1], Y[:, :1]), (X[:, ::2], Y[::2])],
        *empty,
    ):
        values = [x, y, x.T.copy(), y.T.copy()]
        for found in function(*(value.astype(dtype) for value in values)):
            assert_allclose(found, x @ y, rtol=rtol, atol=rtol)
            assert found.dtype == dtype


def test_shape_is_known_without_running() -> None:
    x = pt.tensor(shape=(3, 4))
    assert MatrixProduct(transpose_x=True)(x, pt.tensor(shape=(3, 2))).type.shape == (4, 2)
    assert MatrixProduct(transpose_y=True)(x, pt.tensor(shape=(5, 4))).type.shape == (3, 5)
    x, y = pt.matrix("x"), pt.matrix("y")
    product = MatrixProduct(transpose_x=True)(x, y)
    shape = pytensor.function([x, y], product.shape, mode="CVM", on_unused_input="ignore")
    assert not any(isinstance(node.op, MatrixProduct) for node in shape.maker.fgraph.toposort())
    assert tuple(shape(X, np.ones((4, 7)))) == (3, 7)


@pytest.mark.parametrize(
    ("x", "y"),
    [(pt.dvector(), pt.dmatrix()), (pt.dmatrix(), pt.dvector()), (pt.dmatrix(), pt.fmatrix())],
)
def test_wrong_operands(x: Any, y: Any) -> None:
    with pytest.raises(TypeError, match="MatrixProduct takes two matrices of one dtype, got"):
        MatrixProduct()(x, y)
