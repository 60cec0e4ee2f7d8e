"""Kernels along the window: ``uv run python -m tests.benchmarks.window_kernels``.

On a GPU, what goes along the window (``pymc_deer.ops.window_scan``) in kernels of ours, beside the
same formulas as XLA compiles them, for several chains, widths and numbers of coordinates. In some
windows a step's ratio is no number, and in one a proposal overflows. A row tells

``difference``, ``difference_of_errors``
    The largest difference of next guesses, and of what bounds the error of the last one, over the
    largest of these numbers.
``us``, ``us_without``
    Microseconds of one of a hundred in a row, with kernels and without.

Kernels that cannot be compiled are an error here. The rows go to
``docs/benchmarks/window_kernels.json``.
"""

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_deer.backends.jax_mode import JAX_MODE
from pymc_deer.ops.window_scan import window_scan
from pymc_deer.ops.window_scan_kernel import next_guess_and_error
from tests.benchmarks.measure import short, write_on_gpu
from tests.support import window_scan_arguments

_REPEATS, _IN_A_ROW = 4, 100


class Scan(NamedTuple):
    """Of how many chains, steps and coordinates, and factors of each step."""

    chains: int
    window: int
    dimension: int
    factors: int
    precision: str


SIZES = (
    *((1, 64, 1), (1, 1280, 33), (3, 1280, 200), (4, 1024, 50), (1, 8192, 25), (4, 8192, 129)),
    (4, 16_384, 10),
)
SCANS = tuple(
    Scan(*size, factors, precision)
    for size in SIZES
    for factors in sorted({1, size[-1]})
    for precision in ("float32", "float64")
)


def values_of(scan: Scan) -> list[np.ndarray]:
    """Arguments of all chains."""
    size = scan.window, scan.dimension, scan.factors, scan.precision
    chains = [window_scan_arguments(*size, seed=chain) for chain in range(scan.chains)]
    chains[0][5][scan.window // 3] = np.nan
    chains[-1][1][scan.window // 2] = np.finfo(scan.precision).max
    return [np.stack(column) for column in zip(*chains, strict=True)]


def formulas(scan: Scan) -> Callable[..., Any]:
    """The function of one chain that PyTensor makes of the formulas."""
    size = scan.window, scan.dimension, scan.factors, scan.precision
    inputs = [pt.tensor(dtype=v.dtype.name, shape=v.shape) for v in window_scan_arguments(*size)]
    function: Any = pytensor.function(inputs, window_scan(*inputs), mode=JAX_MODE)
    return function.vm.jit_fn


def in_a_row(scan: Callable[..., Any], *values: jax.Array) -> jax.Array:
    """Each from the guess that the one before has made."""
    *before, _, start, log_alpha, log_u, bend = values

    def again(_: Any, guess: jax.Array) -> jax.Array:
        return scan(*before, guess, start, log_alpha, log_u, bend)[0]

    return jax.lax.fori_loop(0, _IN_A_ROW, again, values[3])


def compared(scan: Scan) -> dict[str, object]:
    """A row."""
    values = [jax.device_put(value) for value in values_of(scan)]
    ways = [jax.vmap(next_guess_and_error), jax.vmap(formulas(scan))]
    found, expected = ([np.asarray(a) for a in jax.jit(way)(*values)] for way in ways)
    runs = [jax.jit(partial(in_a_row, way)).lower(*values).compile() for way in ways]
    seconds = [[_seconds(run, values) for run in runs] for _ in range(_REPEATS)]
    ours, without = (1e6 * min(column) / _IN_A_ROW for column in zip(*seconds, strict=True))
    differences = [_relative(*pair) for pair in zip(found, expected, strict=True)]
    return {
        "device": jax.devices()[0].device_kind,
        **scan._asdict(),
        "difference": differences[0],
        "difference_of_errors": differences[1],
        "us": short(ours),
        "us_without": short(without),
    }


def _seconds(run: Callable[..., Any], values: Sequence[jax.Array]) -> float:
    begun = time.perf_counter()
    run(*values).block_until_ready()
    return time.perf_counter() - begun


def _relative(found: np.ndarray, expected: np.ndarray) -> float:
    """Infinity where only one of two numbers is finite, or as large as the other."""
    large = 1e30
    near = np.abs(expected) < large
    if (near != (np.abs(found) < large)).any():
        return float("inf")
    differences = np.abs(found[near] - expected[near])
    return float(f"{differences.max() / np.abs(expected[near]).max():.1e}")


def rows(scans: Sequence[Scan]) -> Iterator[dict[str, object]]:
    """A row for each."""
    with jax.enable_x64(True):
        yield from map(compared, scans)


def main() -> None:
    """Compare on the GPU."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    write_on_gpu("window_kernels", rows(SCANS))


if __name__ == "__main__":
    main()
