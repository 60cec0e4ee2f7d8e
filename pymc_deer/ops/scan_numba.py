"""Numba implementations of the Ops of :mod:`pymc_deer.ops.scan`: each one pass over memory."""

import numpy as np
from pytensor.link.numba.dispatch.basic import (
    numba_njit,
    register_funcify_default_op_cache_key,
)

from pymc_deer.ops.numba_source import CODE_VERSION
from pymc_deer.ops.scan import ChainScan, RunningSum, chain_states


@register_funcify_default_op_cache_key(ChainScan)
def numba_funcify_chain_scan(op: ChainScan, node: object = None, **kwargs: object):
    return numba_njit(chain_states), CODE_VERSION


@register_funcify_default_op_cache_key(RunningSum)
def numba_funcify_running_sum(op: RunningSum, node: object = None, **kwargs: object):
    @numba_njit
    def running_sum(x):
        sums, total = np.empty_like(x), np.zeros_like(x[0])
        for t in range(len(x)):
            for d in range(len(total)):
                total[d] += x[t, d]
                sums[t, d] = total[d]
        return sums

    return running_sum, CODE_VERSION
