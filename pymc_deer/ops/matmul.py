"""The product of two matrices, as an Op that compiles fast on Numba.

PyTensor's own product takes operands of any strides, and Numba compiles the code for all of them
again into each function around it: half of the time that a regression took to compile. Here the
operands lie in memory row by row, and an Op that knows which of them to read transposed needs no
more than ``np.dot``. The Numba dispatch lives in ``matmul_numba``; ``backends.numba_mode`` puts the
Op into graphs.
"""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Apply
from pytensor.graph.op import Op
from pytensor.tensor.elemwise import DimShuffle

from pymc_deer.typing import Tensor


class MatrixProduct(Op):
    """x @ y, where either may be read transposed.

    Parameters
    ----------
    transpose_x, transpose_y
        Whether the product is with the transpose of that operand.

    Inputs
    ------
    x, y
        Matrices of one floating-point dtype. Another layout than row by row costs a copy.
    """

    __props__ = ("transpose_x", "transpose_y")

    def __init__(self, transpose_x: bool = False, transpose_y: bool = False) -> None:
        self.transpose_x = transpose_x
        self.transpose_y = transpose_y

    def make_node(self, *inputs: Tensor) -> Apply:
        x, y = map(pt.as_tensor_variable, inputs)
        if (x.ndim, y.ndim) != (2, 2) or x.type.dtype != y.type.dtype:
            raise TypeError(
                f"MatrixProduct takes two matrices of one dtype, got {x.type}, {y.type}."
            )
        shape = self._shape(x.type.shape, y.type.shape)
        return Apply(self, [x, y], [pt.tensor(dtype=x.type.dtype, shape=shape)])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        x, y = inputs
        output_storage[0][0] = np.dot(
            x.T if self.transpose_x else x, y.T if self.transpose_y else y
        )

    def infer_shape(self, node: Apply, shapes: Any) -> list[Any]:
        return [self._shape(*shapes)]

    def _shape(self, x: tuple[Any, ...], y: tuple[Any, ...]) -> tuple[Any, Any]:
        return x[1 if self.transpose_x else 0], y[0 if self.transpose_y else 1]


def untransposed(matrix: Any) -> tuple[Any, bool]:
    """What a matrix is the transpose of, or itself if it is none; and whether it is one."""
    node = matrix.owner
    if matrix.type.ndim != 2 or node is None or not isinstance(node.op, DimShuffle):
        return matrix, False
    return (node.inputs[0], True) if node.op.is_matrix_transpose else (matrix, False)
