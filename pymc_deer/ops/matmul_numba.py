"""Numba implementation of :class:`~pymc_deer.ops.matmul.MatrixProduct`: NumPy's, by BLAS."""

import numpy as np
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)

from pymc_deer.ops.matmul import MatrixProduct
from pymc_deer.ops.numba_source import CODE_VERSION


@register_funcify_default_op_cache_key(MatrixProduct)
def numba_funcify_matrix_product(op: MatrixProduct, node: object = None, **kwargs: object):
    @numba_njit
    def as_it_is(a):
        return np.ascontiguousarray(a)

    @numba_njit
    def transposed(a):
        # BLAS takes the transpose of contiguous memory without a copy.
        return np.ascontiguousarray(a).T

    read_x = transposed if op.transpose_x else as_it_is
    read_y = transposed if op.transpose_y else as_it_is
    x_rows, y_columns = int(op.transpose_x), 1 - int(op.transpose_y)

    @numba_njit
    def matrix_product(x, y):
        product = np.empty((x.shape[x_rows], y.shape[y_columns]), x.dtype)
        if x.size == 0 or y.size == 0:
            # With no directions, of which a low-rank metric often has none.
            for i in range(product.size):
                product.flat[i] = 0.0
        else:
            # Into a place of its own: Numba compiles more for a product that makes one.
            np.dot(read_x(x), read_y(y), product)
        return product

    return matrix_product, CODE_VERSION
