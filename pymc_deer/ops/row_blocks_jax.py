"""JAX implementation of :class:`~pymc_deer.ops.row_blocks.RowBlocks`: a kernel for GPUs."""

import logging
from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
from jax.custom_batching import custom_vmap
from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.row_blocks import RowBlocks

_log = logging.getLogger("pymc.deer")


@jax_funcify.register(RowBlocks)  # pyright: ignore[reportArgumentType]
def jax_funcify_row_blocks(op: RowBlocks, **kwargs: object) -> Any:
    from pymc_deer.ops.row_kernel import RowKernel

    @custom_vmap
    def row_blocks(*arrays: jax.Array) -> list[jax.Array]:
        return RowKernel(op.fgraph)(*arrays)

    @row_blocks.def_vmap
    def of_chains(n_chains: int, batched: Sequence[bool], *arrays: jax.Array) -> Any:
        # As many programs as for one chain are enough for all.
        axes = tuple(0 if is_own else None for is_own in batched)
        results = jax.vmap(RowKernel(op.fgraph, n_chains), in_axes=axes)(*arrays)
        return results, [True] * len(results)

    def unpacked(*arrays: jax.Array) -> Any:
        results = row_blocks(*arrays)
        return results if len(results) > 1 else results[0]

    return unpacked


@cache
def row_kernels_run(device: Any) -> bool:
    """Whether JAX's default device, `device`, runs such kernels, by compiling a small one."""
    try:
        from pymc_deer.ops.row_kernel import compile_small_kernel

        compile_small_kernel()
    except Exception as error:  # noqa: BLE001 - whatever Pallas or XLA raise
        log_left_out(error)
        return False
    return True


def log_left_out(error: Exception) -> None:
    """Say that XLA's own kernels stand in for ours, which take less time, and why."""
    reason = str(error).strip().partition("\n")[0]
    _log.warning(
        "This GPU cannot run kernels of pymc_deer's own; XLA's take their place, and longer. "
        f"{type(error).__name__}: {reason}"
    )
