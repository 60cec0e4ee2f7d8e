"""Of every S transitions only the last one's state is asked for: the same as among all of them."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.trajectory import SOLVED, Buffers, Trajectory
from pymc_deer.options import BackendName
from tests.equivalence.problems import Problem, problem
from tests.equivalence.test_calls import FixedPace
from tests.support import BACKENDS

N, STRIDE = 60, 5
CASE = "eight_schools"
N_ROWS, SIZE = 20, 2


@cache
def solver_of(backend: BackendName, window: int) -> Solver:
    return problem(CASE).solver(backend, window, "secant")


def found_by(case: Problem, solver: Solver, stride: int, at_once: int = N) -> Trajectory:
    rng = np.random.default_rng(0)
    request = TapedRequest(case.start, case.tape(N), case.tuning, rng, stride)
    [found] = solver.run_together([request], case.params, at_once)
    return found


def check_stride(solver: Solver, at_once: int = N) -> Trajectory:
    """To the last bit, whatever calls and sweeps end in the middle of a stride."""
    case = problem(CASE)
    # Calls that are no multiple of the stride.
    paces: Any = defaultdict(lambda: FixedPace(7))
    solver._paces = paces
    whole, kept = found_by(case, solver, 1, at_once), found_by(case, solver, STRIDE, at_once)
    assert len(whole) == len(kept) == N
    assert (kept.n_sweeps, kept.n_fallback) == (whole.n_sweeps, whole.n_fallback)
    for name in SOLVED:
        rows = slice(None) if name == "log_alpha" else slice(STRIDE - 1, None, STRIDE)
        assert_array_equal(getattr(kept, name), getattr(whole, name)[rows])
    return kept


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 16])
@pytest.mark.parametrize("at_once", [N, 3 * STRIDE], ids=["one piece", "pieces"])
def test_states(single_threaded: None, backend: BackendName, window: int, at_once: int) -> None:
    check_stride(solver_of(backend, window), at_once)


@pytest.mark.parametrize("backend", BACKENDS)
def test_pieces_that_are_no_multiple(single_threaded: None, backend: BackendName) -> None:
    """Of windows it would be another number of sweeps."""
    check_stride(solver_of(backend, 1), 4 * STRIDE - 2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sweeps_that_run_out(single_threaded: None, backend: BackendName) -> None:
    """What is left begins in the middle of a stride."""
    solver = solver_of(backend, 16)
    fallbacks = set()
    for most in (2, 3):
        starved = solver.with_plan(replace(solver.plan, max_sweeps=most))
        fallbacks.add(check_stride(starved).n_fallback % STRIDE)
    assert fallbacks - {0}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_start_from_another_state_is_caught(
    single_threaded: None, monkeypatch: pytest.MonkeyPatch, backend: BackendName
) -> None:
    def one_stride_early(buffers: Buffers, t: int) -> np.ndarray:
        return buffers.arrays[0][max(0, t // buffers.stride - 1)].copy()

    monkeypatch.setattr(Buffers, "state_before", one_stride_early)
    with pytest.raises(AssertionError):
        test_sweeps_that_run_out(None, backend)


@pytest.mark.parametrize("stride", [1, 3, 7, 20])
@pytest.mark.parametrize("cuts", [(), (1,), (3, 4), (7, 14), (2, 6, 19)])
def test_buffers_take_what_is_asked_for(stride: int, cuts: tuple[int, ...]) -> None:
    n, given = N_ROWS, numbered_rows()
    buffers = Buffers.empty(n, SIZE, "float64", stride)
    for first, last in zip((0, *cuts), (*cuts, n), strict=True):
        buffers.write(first, [array[first:last] for array in given])
        assert_array_equal(buffers.state_before(last), given[0][last - 1])
    check_buffers(buffers, given)


@pytest.mark.parametrize("stride", [1, 3, 7, 20])
@pytest.mark.parametrize("cut", [0, 1, 7, 10])
def test_buffers_take_what_is_kept(stride: int, cut: int) -> None:
    """Of a piece that begins in the middle of a stride, with more behind what is asked for."""
    given = numbered_rows()
    buffers = Buffers.empty(N_ROWS, SIZE, "float64", stride)
    buffers.write(0, [array[:cut] for array in given])
    ends = np.minimum(np.arange(cut - cut % stride, N_ROWS, stride) + stride, N_ROWS) - 1
    kept = [
        np.concatenate([array[cut:] if name == "log_alpha" else array[ends], array[:3]])
        for name, array in zip(SOLVED, given, strict=True)
    ]
    buffers.write_kept(cut, N_ROWS - cut, kept)
    check_buffers(buffers, given)


def numbered_rows() -> list[np.ndarray]:
    """Arrays of `SOLVED`, all of whose rows differ."""
    given = [np.arange(20.0), *(np.arange(20.0) + 100 * i for i in range(1, 5))]
    given[0], given[2] = (np.column_stack([given[i]] * SIZE) for i in (0, 2))
    return given


def check_buffers(buffers: Buffers, given: list[np.ndarray]) -> None:
    n, stride = N_ROWS, buffers.stride
    ends = np.minimum(np.arange(0, n, stride) + stride, n) - 1
    for name, array, all_rows in zip(SOLVED, buffers.arrays, given, strict=True):
        assert_array_equal(array, all_rows if name == "log_alpha" else all_rows[ends])
