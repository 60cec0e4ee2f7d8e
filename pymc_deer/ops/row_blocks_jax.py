"""JAX implementation of :class:`~pymc_deer.ops.row_blocks.RowBlocks`: a kernel for GPUs."""

from functools import cache
from typing import Any

import jax
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.row_blocks import RowBlocks


@jax_funcify.register(RowBlocks)  # pyright: ignore[reportArgumentType]
def jax_funcify_row_blocks(op: RowBlocks, **kwargs: object) -> Any:
    from pymc_deer.ops.row_kernel import RowKernel

    kernel = RowKernel(op.fgraph)

    def row_blocks(*arrays: jax.Array) -> Any:
        results = kernel(*arrays)
        return results if len(results) > 1 else results[0]

    return row_blocks


@cache
def row_kernels_run() -> bool:
    """Whether JAX's default device runs such kernels, by compiling a small one."""
    try:
        from pymc_deer.ops.row_kernel import compile_small_kernel

        compile_small_kernel()
    except Exception:  # noqa: BLE001 - whatever Pallas or XLA raise, XLA has kernels of its own
        return False
    return True
