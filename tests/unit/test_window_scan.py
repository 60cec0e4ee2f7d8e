"""What of a sweep runs along the window, in a GPU's kernels, as Pallas interprets them."""

from collections.abc import Iterator
from functools import cache
from typing import Any

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_deer.ops.scan_numba
import pymc_deer.ops.window_scan_jax  # noqa: F401
from pymc_deer.backends.jax_mode import JAX_KERNEL_MODE, JAX_MODE
from pymc_deer.ops import window_scan_kernel
from pymc_deer.ops.scan_jax import ROUNDS
from pymc_deer.ops.window_scan import WindowScan, WindowScanInKernel, window_scan
from pymc_deer.ops.window_scan_kernel import chunk_length
from tests.support import interpret_kernels, quick_xla, window_scan_arguments

TOLERANCE = {"float32": 2e-6, "float64": 1e-14}
MODES = {"kernels": JAX_KERNEL_MODE, "jax": JAX_MODE, "numba": "NUMBA"}


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    interpret_kernels(monkeypatch)
    with quick_xla(), jax.enable_x64(True):
        yield


def compiled(values: list[np.ndarray], mode: Any) -> Any:
    inputs = [pt.tensor(dtype=v.dtype.name, shape=v.shape) for v in values]
    return pytensor.function(inputs, window_scan(*inputs), mode=mode)


def small_arguments() -> list[np.ndarray]:
    return window_scan_arguments(256, 3, 3, "float32")


@cache
def of_small_arguments(mode: str) -> Any:
    return compiled(small_arguments(), MODES[mode])


def step_by_step(values: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    jacobian, proposals, previous, guess, start, *ratio = (v.astype(float) for v in values)
    log_alpha, log_u, bend = ratio
    first = accepted = log_alpha > log_u
    solved = np.empty_like(proposals)
    for _ in range(ROUNDS):
        state, change = start, np.empty_like(log_alpha)
        for t, there in enumerate(previous):
            moved = proposals[t] + jacobian[t] * (state - there)
            change[t] = moved @ moved - state @ state - proposals[t] @ proposals[t] + there @ there
            state = moved if accepted[t] else state
            solved[t] = state
        accepted = log_alpha - bend * change > log_u
    states = np.where(first[:, None], proposals, previous)
    return solved, np.abs(np.cumsum(states - guess, axis=0)).max(1)


def test_decisions_change_from_round_to_round() -> None:
    """What is compared below would be the same without them."""
    values = window_scan_arguments(512, 32, 32, "float64")
    found, _ = step_by_step(values)
    values[-1][:] = 0
    assert np.isclose(found, step_by_step(values)[0]).all(axis=1).mean() < 0.5


@pytest.mark.parametrize(
    ("width", "size", "factors", "dtype"),
    [
        *[(64, 1, 1, "float64"), (512, 32, 32, "float64"), (256, 200, 200, "float64")],
        *[(128, 3, 1, "float32"), (1280, 33, 33, "float32")],
    ],
)
def test_kernels_find_what_a_loop_finds(width: int, size: int, factors: int, dtype: str) -> None:
    """With coordinates that do not fill a program, and several programs of coordinates."""
    values = window_scan_arguments(width, size, factors, dtype)
    function = compiled(values, JAX_KERNEL_MODE)
    nodes = function.maker.fgraph.toposort()
    assert any(isinstance(node.op, WindowScanInKernel) for node in nodes)
    for found, expected in zip(function(*values), step_by_step(values), strict=True):
        assert found.dtype == dtype
        assert_allclose(found, expected, atol=TOLERANCE[dtype] * np.abs(expected).max())


def test_chains_of_a_batch_find_what_each_finds_alone() -> None:
    """With several programs of coordinates for each chunk of a chain."""
    chains = [window_scan_arguments(256, 130, 130, "float32") for _ in range(3)]
    for i, values in enumerate(chains):
        values[1] += i
    together = jax.vmap(window_scan_kernel.next_guess_and_error)(
        *(np.stack(column) for column in zip(*chains, strict=True))
    )
    for i, values in enumerate(chains):
        for found, expected in zip(together, step_by_step(values), strict=True):
            assert_allclose(found[i], expected, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("mode", MODES)
def test_what_overflows_leaves_a_finite_guess(mode: str) -> None:
    """And no step from there on counts as near enough."""
    values, function = small_arguments(), of_small_arguments(mode)
    values[0][:], values[5][:], values[7][:] = 1, 1, 0
    values[1][100:102, 1] = 3e38
    found, _ = function(*values)
    expected, _ = step_by_step(values)
    assert_allclose(found[:100], expected[:100], atol=1e-4)
    assert np.isfinite(found).all()
    values[1][100, 1] = np.nan
    _, error = function(*values)
    assert np.isfinite(error[:100]).all()
    assert not (error[100:] < np.inf).any()


def test_states_that_are_not_finite_are_plain_iterates() -> None:
    """Where a sum of squares in float64 does not show that they overflow."""
    values = small_arguments()
    values[0][:], values[5][:], values[7][:] = 1, 1, 0
    values[1][100:102, 1] = 3e38
    found, _ = of_small_arguments("numba")(*values)
    assert_array_equal(found[101:], values[1][101:])


@pytest.mark.parametrize("mode", ["kernels", "jax"])
def test_a_ratio_that_is_no_number_stays_a_rejection(mode: str) -> None:
    values = small_arguments()
    for i, number in enumerate((np.nan, -np.inf, np.inf)):
        values[5][50 + 50 * i] = number
        values[1][50 + 50 * i] = np.nan
    found, _ = of_small_arguments(mode)(*values)
    assert np.isfinite(found).all()
    for row in (50, 100, 150):
        assert_array_equal(found[row], found[row - 1])


def test_windows_that_no_chunks_fill_are_left_as_formulas() -> None:
    values = window_scan_arguments(129, 3, 3, "float64")
    function = compiled(values, JAX_KERNEL_MODE)
    kinds = WindowScan, WindowScanInKernel
    assert not any(isinstance(n.op, kinds) for n in function.maker.fgraph.toposort())
    for found, expected in zip(function(*values), step_by_step(values), strict=True):
        assert_allclose(found, expected, atol=1e-13)


@pytest.mark.parametrize(
    ("width", "length"),
    [(128, 8), (1024, 32), (8192, 64), (65_536, 256), (1280, 32), (128 * 1001, 128)],
)
def test_chunks_are_about_as_many_as_their_steps(width: int, length: int) -> None:
    assert chunk_length(width) == length
    assert width % length == 0
