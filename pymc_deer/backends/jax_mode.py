"""How PyTensor compiles to JAX here."""

from typing import Any

import numpy as np
import pytensor.tensor as pt
from pytensor.graph.basic import Constant
from pytensor.graph.rewriting.basic import (
    EquilibriumGraphRewriter,
    MergeOptimizer,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor.blockwise import Blockwise
from pytensor.tensor.math import Prod, Sum
from pytensor.tensor.signal.conv import AbstractConvolveNd
from pytensor.tensor.subtensor import AdvancedIncSubtensor, AdvancedSubtensor

from pymc_deer.graphs.canonical import without_pitfalls
from pymc_deer.graphs.filled_arrays import with_wide_lengths
from pymc_deer.graphs.log_products import sigmoid_by_exponential, softplus_by_products
from pymc_deer.graphs.short_axes import shuffled_once
from pymc_deer.modes import OwnMode
from pymc_deer.ops.row_blocks import as_it_is_read, computed_as_it_is_read, in_row_blocks
from pymc_deer.ops.window_scan import window_scan_in_kernel

_BEFORE_ALL = -1.0
"""Position before Ops of formulas are replaced by these."""

_BEHIND_STABILIZATION = 1.9
"""Position behind the rewrites that look for what can be computed more precisely: they find the
softplus in a model's own formulas."""

_BEHIND_SOFTPLUS = 1.91
"""Position behind the rewrite of a softplus, whose exponential a sigmoid takes."""

_LAST = 1000.0
"""Position behind all of PyTensor's rewrites, which make such sums of others."""


_SHORT = ("int8", "uint8", "int16", "uint16")


@node_rewriter([Sum, Prod])
def cast_accumulated(fgraph: Any, node: Any) -> list[Any] | None:
    """Put a cast behind a sum that is accumulated in a wider type than its own.

    PyTensor's JAX code gives such a sum the type of its accumulator, and what is computed from it
    follows: models in float32 would run in float64.
    """
    op, [declared] = node.op, node.outputs
    if op.acc_dtype in (None, declared.type.dtype):
        return None
    accumulated = op.clone(dtype=op.acc_dtype, acc_dtype=op.acc_dtype)
    return [accumulated(*node.inputs).astype(declared.type.dtype)]


@node_rewriter([Blockwise])
def convolved_in_one_mode(fgraph: Any, node: Any) -> list[Any] | None:
    """Give a batch of convolutions, which are all full or all not, one flag that says so.

    The gradient of one that is not full has a flag for each of the batch, and PyTensor's JAX code
    must know a single one.
    """
    op, inputs = node.op, node.inputs
    if not isinstance(op.core_op, AbstractConvolveNd) or not isinstance(inputs[2], Constant):
        return None
    *arrays, flag = inputs
    flags, n_core = np.asarray(flag.data), op.core_op.ndim
    lead = [array.type.shape[: array.ndim - n_core] for array in arrays]
    if flags.ndim == 0 or flags.shape not in lead or np.unique(flags).size != 1:
        return None
    found = op(*arrays, pt.constant(flags.flat[0]))
    return [pt.specify_shape(found, node.outputs[0].type.shape)]


@node_rewriter([AdvancedSubtensor, AdvancedIncSubtensor])
def with_wide_indices(fgraph: Any, node: Any) -> list[Any] | None:
    """Give indices of few bits more of them: JAX adds the axis's length to those below zero."""
    first = 1 if isinstance(node.op, AdvancedSubtensor) else 2
    arrays, indices = node.inputs[:first], node.inputs[first:]
    if not any(index.type.dtype in _SHORT for index in indices):
        return None
    wide = [i.astype("int64") if i.type.dtype in _SHORT else i for i in indices]
    return node.op.make_node(*arrays, *wide).outputs


_PREPARED, _MERGED, _BEHIND_ALL = 1001.0, 1002.0, 1003.0
"""Positions behind the one before: of what kernels are made of, and of the kernels."""

JAX_MODE = without_pitfalls(with_wide_lengths(OwnMode.of("JAX"))).register(
    (dfs_rewriter(convolved_in_one_mode), _BEHIND_STABILIZATION),
    (dfs_rewriter(cast_accumulated, with_wide_indices), _LAST),
)
JAX_CPU_MODE = JAX_MODE.register(
    (dfs_rewriter(softplus_by_products), _BEHIND_STABILIZATION),
    (dfs_rewriter(sigmoid_by_exponential), _BEHIND_SOFTPLUS),
)
_AS_READ = EquilibriumGraphRewriter(
    [as_it_is_read, computed_as_it_is_read, shuffled_once], max_use_ratio=10
)

JAX_SCAN_KERNEL_MODE = JAX_MODE.register((dfs_rewriter(window_scan_in_kernel), _BEFORE_ALL))
JAX_KERNEL_MODE = JAX_SCAN_KERNEL_MODE.register(
    (_AS_READ, _PREPARED),
    (MergeOptimizer(), _MERGED),
    (dfs_rewriter(in_row_blocks), _BEHIND_ALL),
)
"""The first is for all devices, the second for a CPU, the others for a GPU that runs our kernels:
those along the window alone, and those along the rows of the data too."""
