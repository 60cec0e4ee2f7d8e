"""Numba implementation of :class:`~pymc_deer.scan.AffineScan`: one pass over memory."""

import numpy as np
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)

from pymc_deer.scan import AffineScan


@register_funcify_default_op_cache_key(AffineScan)
def numba_funcify_affine_scan(op: AffineScan, node: object = None, **kwargs: object):
    @numba_njit
    def affine_scan(a, b, start):
        n_steps, size = b.shape
        states = np.empty((n_steps, size), dtype=b.dtype)
        state = start.copy()
        if a.shape[1] == 1 and size > 1:
            for t in range(n_steps):
                factor = a[t, 0]
                for d in range(size):
                    state[d] = factor * state[d] + b[t, d]
                    states[t, d] = state[d]
        else:
            for t in range(n_steps):
                for d in range(size):
                    state[d] = a[t, d] * state[d] + b[t, d]
                    states[t, d] = state[d]
        return states

    return affine_scan, 1
