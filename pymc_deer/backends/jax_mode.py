"""How PyTensor compiles to JAX here."""

from typing import Any

from pytensor.compile.mode import get_mode
from pytensor.graph.rewriting.basic import (
    EquilibriumGraphRewriter,
    MergeOptimizer,
    dfs_rewriter,
    node_rewriter,
)
from pytensor.tensor.math import Prod, Sum

from pymc_deer.graphs.log_products import sigmoid_by_exponential, softplus_by_products
from pymc_deer.graphs.short_axes import shuffled_once
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


_PREPARED, _MERGED, _BEHIND_ALL = 1001.0, 1002.0, 1003.0
"""Positions behind the one before: of what kernels are made of, and of the kernels."""

JAX_MODE = get_mode("JAX").register((dfs_rewriter(cast_accumulated), _LAST))
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
