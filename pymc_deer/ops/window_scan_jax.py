"""JAX implementation of :class:`~pymc_deer.ops.window_scan.WindowScanInKernel`: GPU kernels."""

from typing import Any

from pytensor.link.jax.dispatch import jax_funcify

from pymc_deer.ops.window_scan import WindowScanInKernel


@jax_funcify.register(WindowScanInKernel)  # pyright: ignore[reportArgumentType]
def jax_funcify_window_scan(op: WindowScanInKernel, **kwargs: object) -> Any:
    from pymc_deer.ops.window_scan_kernel import next_guess_and_error

    return next_guess_and_error
