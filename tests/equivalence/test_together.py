"""Chains solved together have the states that each has alone."""

import threading
import time
from dataclasses import replace
from functools import cache
from itertools import chain, repeat
from typing import Any

import jax
import numpy as np
import pytest

import pymc_deer.backends.jax
import pymc_deer.backends.jax_programs
from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import _MOST_IN_TURN, JaxSolver
from pymc_deer.backends.jax_loops import asked_rows
from pymc_deer.backends.jax_results import Results
from pymc_deer.backends.numba import NumbaSolver
from pymc_deer.backends.pace import Pace
from pymc_deer.backends.placement import OneDevice
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.threads import Threads
from pymc_deer.backends.trajectory import KEPT, REPORTED, SOLVED, Trajectory
from pymc_deer.beside import Beside
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS, buffers_taken, quick_xla

N = 150
WAYS = [*BACKENDS, *(["in_one_batch", "in_turn"] if "jax" in BACKENDS else [])]
"""JAX has chains in one batch on a GPU, and on a CPU in threads, as Numba, or where they are short,
in one call, one after the other.
"""
ON_JAX = pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
ON_NUMBA = pytest.mark.skipif("numba" not in BACKENDS, reason="it is about Numba")


@pytest.fixture(autouse=True)
def two_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """On any machine, and however short the tape."""
    monkeypatch.setattr("pymc_deer.backends.numba.available_threads", lambda: 2)
    monkeypatch.setattr("pymc_deer.backends.base.available_cores", lambda: 2)
    monkeypatch.setattr(Solver, "blas_threads", lambda solver: 2)
    monkeypatch.setattr("pymc_deer.backends.base._THREADS_SECONDS", 0.0)


@pytest.fixture
def in_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a device that is not the host, from which small arrays are worth picking."""
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    monkeypatch.setattr("pymc_deer.backends.jax_results._FETCHED", 0)


@pytest.fixture
def in_turn(two_threads: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two in each call, of runs that are not worth threads."""
    monkeypatch.setattr("pymc_deer.backends.base._THREADS_SECONDS", np.inf)
    monkeypatch.setattr(JaxSolver, "n_chains", 2)


@pytest.fixture(params=WAYS)
def backend(request: pytest.FixtureRequest) -> str:
    if request.param in BACKENDS:
        return request.param
    request.getfixturevalue(request.param)
    return "jax"


@cache
def compiled(backend: BackendName, window: int, kernel: Kernel = "mala") -> Solver:
    """With all that one chain needs, which is what threads wait for."""
    case = problem("eight_schools", kernel)
    solver = case.solver(backend, window, "secant")
    for each in (solver, case.solver(backend, 1)):
        case.run(each, case.tape(3))
    return solver


def runs(case: Problem) -> list[TapedRequest]:
    """Three chains that differ in all that is each chain's own; the first is the slowest."""
    step_size = case.tuning.step_size
    return [
        TapedRequest(
            case.start + 0.1 * seed,
            case.tape(N, seed),
            replace(case.tuning, step_size=step_size / (1 + seed), curvature=1.5 + 0.1 * seed),
            np.random.default_rng(seed),
        )
        for seed in range(3)
    ]


def solve_both_ways(case: Problem, solver: Solver) -> tuple[list[Trajectory], list[Trajectory]]:
    found = solver.run_together(runs(case), case.params, 512)
    return found, [
        solver.solve(r.start, r.tape, r.tuning, case.params, r.probe_rng) for r in runs(case)
    ]


def check_together(case: Problem, solver: Solver) -> tuple[list[Trajectory], list[Trajectory]]:
    """Each chain's states, to the last bit where each chain has its own thread."""
    found, alone = solve_both_ways(case, solver)
    rounding = 1e-9 if solver.batches_chains else 0.0
    for mine, its in zip(found, alone, strict=True):
        for name in SOLVED:
            np.testing.assert_allclose(
                getattr(mine, name), getattr(its, name), rtol=rounding, atol=rounding
            )
        assert (mine.n_sweeps, mine.n_fallback) == (its.n_sweeps, its.n_fallback)
    return found, alone


@pytest.mark.parametrize("kernel", ["mala", "hmc"])
def test_steps(backend: BackendName, kernel: Kernel) -> None:
    check_together(problem("eight_schools", kernel), compiled(backend, 1, kernel))


def test_sweeps(backend: BackendName) -> None:
    found, _ = check_together(problem("eight_schools"), compiled(backend, 64))
    assert len({trajectory.n_sweeps for trajectory in found}) > 1, "each has its own"


@ON_JAX
def test_chains_in_one_batch_may_end_where_the_buffers_do(in_one_batch: None) -> None:
    """One that is through before the others is computed on, from behind its last state."""
    solver = compiled("jax", 64)
    short = solver.with_plan(replace(solver.plan, capacity=N))
    case = problem("eight_schools")
    found = short.run_together(runs(case), case.params, N)
    whole = solver.run_together(runs(case), case.params, 512)
    assert len({trajectory.n_sweeps for trajectory in found}) > 1
    for ours, expected in zip(found, whole, strict=True):
        for name in SOLVED:
            np.testing.assert_allclose(
                getattr(ours, name), getattr(expected, name), rtol=1e-9, atol=1e-9
            )


def test_the_first_guess_is_that_no_chain_moves(backend: BackendName) -> None:
    """Where none does, it is right, and a window takes one sweep."""
    case, solver = problem("eight_schools"), compiled(backend, 64)
    stuck = [r._replace(tape=replace(r.tape, log_u=np.full(N, np.inf))) for r in runs(case)]
    for request, found in zip(stuck, solver.run_together(stuck, case.params, 512), strict=True):
        assert found.n_sweeps == -(-N // 64)
        np.testing.assert_array_equal(found.z, np.tile(request.start, (N, 1)))


def test_chains_whose_sweeps_run_out(backend: BackendName) -> None:
    """They go on step by step, the others do not."""
    solver = compiled(backend, 64)
    starved = solver.with_plan(replace(solver.plan, max_sweeps=10))
    found, _ = check_together(problem("eight_schools"), starved)
    short = [trajectory.n_fallback > 0 for trajectory in found]
    assert any(short)
    assert not all(short)


@ON_JAX
@pytest.mark.parametrize("stride", [1, 7])
@pytest.mark.parametrize("sweeps", [5, 12])
def test_their_steps_are_one_batch_of_the_same_program(
    in_one_batch: None, sweeps: int, stride: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One for fewer chains would take seconds in the middle of a run; several go side by side."""
    case, solver = problem("eight_schools"), compiled("jax", 64).for_chains(3)
    starved = solver.with_plan(replace(solver.plan, max_sweeps=sweeps))
    asked = [request._replace(stride=stride) for request in runs(case)]
    taken = buffers_taken(monkeypatch)
    found = starved.run_together(asked, case.params, 512)
    assert len(taken) == 2
    assert {n_chains for _, n_chains in taken} == {3}
    left = [trajectory.n_fallback for trajectory in found]
    assert len(set(left)) == (2 if sweeps == 12 else 3), left
    for one, other in zip(found, solver.run_together(asked, case.params, 512), strict=True):
        for name in SOLVED:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-4)


@ON_JAX
@pytest.mark.parametrize("stride", [1, 5])
def test_calls_of_chains_in_turn_are_cut_anywhere(
    in_turn: None, monkeypatch: pytest.MonkeyPatch, stride: int
) -> None:
    """Each of them goes on where it was, to the last bit; the third has the program of two."""
    case, solver = problem("eight_schools", "hmc"), compiled("jax", 1, "hmc")
    asked = [request._replace(stride=stride) for request in runs(case)]
    expected = [found for each in asked for found in solver.run_together([each], case.params, 512)]
    done, took, taken = [], Pace.took, buffers_taken(monkeypatch)
    monkeypatch.setattr(Pace, "allows", lambda pace, weight: 7)
    monkeypatch.setattr(Pace, "took", lambda pace, n, weight: done.append(n) or took(pace, n, 1))
    found = solver.run_together(asked, case.params, 512)
    assert done == 2 * [*(N // 7 * [7]), N % 7]
    assert set(taken) == {(1, 2)}
    for one, other in zip(found, expected, strict=True):
        for name in SOLVED:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@ON_JAX
def test_windows_in_turn_and_steps_behind_them_have_one_program(
    in_turn: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where sweeps run out, and where windows are narrowed to single steps in the end."""
    case, solver = problem("eight_schools"), compiled("jax", 64)
    taken = buffers_taken(monkeypatch)
    starved = solver.with_plan(replace(solver.plan, max_sweeps=10))
    for each in (starved, solver.with_plan(replace(solver.plan, window=1))):
        each.run_together(runs(case), case.params, 512)
    # The windows themselves have each chain's.
    assert set(taken) == {(64, 1), (64, 2), (1, 2)}


@ON_JAX
def test_chains_of_large_models_have_calls_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that little more memory is taken than they need, and calls are over soon."""
    solver = compiled("jax", 1).for_chains(500)
    assert 1 < solver.n_in_turn < 500
    held = solver.plan.capacity * 3 * solver.density.size * solver.n_in_turn
    assert held < _MOST_IN_TURN < 2 * held
    longer = solver.with_plan(replace(solver.plan, capacity=_MOST_IN_TURN))
    assert longer.n_in_turn == compiled("jax", 64).for_chains(4).n_in_turn == 1
    monkeypatch.setattr("pymc_deer.backends.jax._MOST_READ_IN_TURN", solver.density.n_numbers)
    assert solver.n_in_turn == 1


@ON_JAX
@pytest.mark.parametrize("stride", [1, 5])
@pytest.mark.parametrize(("window", "sweeps"), [(1, None), (64, None), (64, 10)])
def test_fewer_chains_than_a_run_has_take_their_places(
    in_one_batch: None, window: int, sweeps: int | None, stride: int
) -> None:
    """Of as many there is a program; nobody sees what it finds in the places that are left."""
    case, solver = problem("eight_schools"), compiled("jax", window)
    solver = solver.with_plan(replace(solver.plan, max_sweeps=sweeps))
    asked = [request._replace(stride=stride) for request in runs(case)]
    of_run = solver.for_chains(3)
    assert of_run.n_together == 3
    found = of_run.run_together(asked[:2], case.params, 512)
    expected = solver.run_together(asked, case.params, 512)[:2]
    for one, other in zip(found, expected, strict=True):
        assert (one.n_sweeps, one.n_fallback) == (other.n_sweeps, other.n_fallback)
        for name in SOLVED:
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), rtol=1e-9)


@pytest.mark.parametrize("stride", [5, 7])
@pytest.mark.parametrize(("window", "sweeps"), [(1, None), (64, None), (64, 10)])
def test_one_state_in_every_stride(
    backend: BackendName, window: int, stride: int, sweeps: int | None
) -> None:
    """Whether or not the last stride is whole, in one call or in several, and with fallbacks."""
    case, solver = problem("eight_schools"), compiled(backend, window)
    solver = solver.with_plan(replace(solver.plan, max_sweeps=sweeps))
    asked = [request._replace(stride=stride) for request in runs(case)]
    for at_once in (512, 10 * stride):
        every = solver.run_together(runs(case), case.params, at_once)
        some = solver.run_together(asked, case.params, at_once)
        ends = [*range(stride - 1, N, stride), *([N - 1] if N % stride else [])]
        for one, other in zip(every, some, strict=True):
            for name in SOLVED:
                rows = ends if name in KEPT else range(N)
                np.testing.assert_array_equal(getattr(other, name), getattr(one, name)[rows])


@ON_JAX
@pytest.mark.usefixtures("in_one_batch")
@pytest.mark.parametrize("window", [1, 64])
def test_no_more_is_fetched_than_is_asked_for(window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    case, solver = problem("eight_schools"), compiled("jax", window)
    fetched, numbers = OneDevice.fetched, []

    def counted(place: OneDevice, arrays: Any) -> Any:
        found = fetched(place, arrays)
        numbers.append(sum(array.size for array in found))
        return found

    monkeypatch.setattr(OneDevice, "fetched", counted)
    size, plan = case.density.size, solver.plan
    rows = plan.capacity + (window if window > 1 else 0)
    kept = rows // 5 if window > 1 else -(-rows // 5)
    for asked, n_vectors in ((SOLVED, 2), (REPORTED, 1)):
        numbers.clear()
        requests = [r._replace(stride=5, asked=asked) for r in runs(case)]
        found = solver.run_together(requests, case.params, 512)
        assert max(numbers) == len(requests) * (rows + (n_vectors * size + 2) * kept)
        shapes = {(len(one.z), len(one.dlogp)) for one in found}
        assert shapes == {(N // 5, N // 5 * (n_vectors - 1))}


@ON_JAX
@pytest.mark.parametrize("window", [1, 64])
def test_what_is_not_asked_for_is_left_out(window: int) -> None:
    """And all else is what it was, in several pieces too."""
    case, solver = problem("eight_schools"), compiled("jax", window)
    some = [r._replace(asked=REPORTED) for r in runs(case)]
    for at_once in (512, 60):
        every = solver.run_together(runs(case), case.params, at_once)
        reported = solver.run_together(some, case.params, at_once)
        for one, other in zip(every, reported, strict=True):
            assert other.dlogp.shape == (0, case.density.size)
            for name in REPORTED:
                np.testing.assert_array_equal(getattr(other, name), getattr(one, name))


@pytest.fixture
def overlapping(in_one_batch: None, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Results are fetched beside the next call, as from a GPU; in which threads they were."""
    threads: list[str] = []
    write = Results.write

    def noted(results: Results, *arguments: Any) -> None:
        threads.append(threading.current_thread().name)
        write(results, *arguments)

    monkeypatch.setattr(JaxSolver, "overlaps", True)
    monkeypatch.setattr(Results, "write", noted)
    return threads


@ON_JAX
@pytest.mark.parametrize("stride", [1, 5])
def test_results_that_are_fetched_beside_the_next_call(stride: int, overlapping: list[str]) -> None:
    case, solver = problem("eight_schools"), compiled("jax", 64)
    requests = [r._replace(stride=stride) for r in runs(case)]
    overlapping.clear()
    beside = solver.run_together(requests, case.params, 40)
    assert len(overlapping) == -(-N // 40)
    assert threading.main_thread().name not in overlapping
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JaxSolver, "overlaps", False)
        in_turn = solver.run_together(requests, case.params, 40)
    for one, other in zip(beside, in_turn, strict=True):
        for name in SOLVED:
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@ON_JAX
def test_buffers_are_left_once_they_are_read(
    overlapping: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A call that had them while they are fetched would write over what they hold."""
    case, solver = problem("eight_schools"), compiled("jax", 64)
    do, write, take = Beside.do, Results.write, JaxSolver._take_buffers
    unread: list[Any] = []
    next_one = threading.Event()

    def given(beside: Beside, call: Any) -> None:
        unread.append(call.args[0])
        do(beside, call)

    def behind_the_next(results: Results, filled: Any, *arguments: Any) -> None:
        assert next_one.wait(60)
        write(results, filled, *arguments)
        unread.remove(filled)

    def taken(solver: JaxSolver, *sizes: int) -> Any:
        found = take(solver, *sizes)
        if unread:
            assert not any(found is other for other in unread)
            next_one.set()
        return found

    monkeypatch.setattr(Beside, "do", given)
    monkeypatch.setattr(Results, "write", behind_the_next)
    monkeypatch.setattr(JaxSolver, "_take_buffers", taken)
    solver.run_together(runs(case)[:1], case.params, 40)
    assert next_one.is_set()
    assert not unread


@ON_JAX
def test_a_fetch_that_fails_is_heard_of(
    overlapping: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*arguments: Any) -> None:
        raise MemoryError("There is no more.")

    monkeypatch.setattr(Results, "write", failing)
    case, solver = problem("eight_schools"), compiled("jax", 64)
    for at_once in (40, 512):
        with pytest.raises(MemoryError, match="no more"):
            solver.run_together(runs(case), case.params, at_once)


@ON_JAX
@pytest.mark.usefixtures("in_one_batch")
def test_what_picks_rows_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the number of transitions; and not at all where everything is small."""
    case, solver = problem("eight_schools"), compiled("jax", 64)
    every_fifth = [r._replace(stride=5) for r in runs(case)]

    def solve(n: int) -> int:
        some = [r._replace(tape=r.tape[:n]) for r in every_fifth]
        solver.run_together(some, case.params, 512)
        return asked_rows._cache_size()

    n_compiled = solve(50)
    assert [solve(n) for n in (55, 100, 150)] == [n_compiled] * 3
    asked_rows.clear_cache()
    monkeypatch.setattr("pymc_deer.backends.jax_results._FETCHED", 2**26)
    assert solve(50) == 0


@ON_JAX
@pytest.mark.usefixtures("in_one_batch")
def test_a_chain_that_goes_on_past_its_end_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains are over at different sweeps: what the others still do must not touch them."""
    loop = pymc_deer.backends.jax_programs.windowed_loop

    def overwriting(*arguments):
        (z, *rest), *others = loop(*arguments)
        over = arguments[5] + 64
        return (z.at[:, N - 1].set(over[:, None].astype(z.dtype)), *rest), *others

    monkeypatch.setattr(pymc_deer.backends.jax_programs, "windowed_loop", overwriting)
    case = problem("eight_schools")
    with quick_xla(), pytest.raises(AssertionError):
        check_together(case, case.new_solver("jax", 64, "secant"))


@ON_JAX
@pytest.mark.usefixtures("in_one_batch")
def test_noise_of_another_chain_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    fill = pymc_deer.backends.jax.fill_tape
    monkeypatch.setattr(
        pymc_deer.backends.jax,
        "fill_tape",
        lambda tape, noises, at: fill(tape, [*noises[1:], noises[0]], at),
    )
    with pytest.raises(AssertionError):
        check_together(problem("eight_schools"), compiled("jax", 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 64])
def test_chains_have_threads_of_their_own(
    backend: BackendName, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two meet, which they could not if one ran after the other."""
    solver, case = compiled(backend, window), problem("eight_schools")
    meeting = threading.Barrier(2, timeout=60)
    allows, met = Pace.allows, threading.local()

    def waiting(pace: Pace, weight: float) -> int:
        if not hasattr(met, "once"):
            met.once = meeting.wait()
        return allows(pace, weight)

    monkeypatch.setattr(Pace, "allows", waiting)
    found = solver.run_together(runs(case)[:2], case.params, 512)
    assert len(found) == 2


@ON_JAX
@pytest.mark.parametrize("window", [1, 64])
def test_threads_run_on_the_device_that_their_caller_is_on(
    window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`jax.default_device`, as a context, speaks to one thread."""
    solver, case = compiled("jax", window), problem("eight_schools")
    [cpu, *_], asking, ran = jax.local_devices(), set(), set()
    take = JaxSolver._take_buffers

    def asked() -> Any:
        asking.add(threading.current_thread().name)
        return cpu

    def taken(solver: JaxSolver, n_chains: int, rows: int) -> Any:
        ran.add((threading.current_thread().name, jax.config.jax_default_device))
        return take(solver, n_chains, rows)

    monkeypatch.setattr("pymc_deer.backends.jax.default_device", asked)
    monkeypatch.setattr(JaxSolver, "_take_buffers", taken)
    solver.run_together(runs(case), case.params, 512)
    main = threading.main_thread().name
    assert asking == {main}
    assert main not in {thread for thread, _ in ran}
    assert {device for _, device in ran} == {cpu}


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_slow_call_does_not_keep_short_chains_in_threads(
    backend: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as the first of all, or one of two transitions: threads find out what they take."""
    solver, case = problem("eight_schools").new_solver(backend, 1), problem("eight_schools")
    solver.run_together(runs(case), case.params, 512)
    slow = Pace(chain([0.0, 1e6], repeat(1e6)).__next__)
    slow.took(1, slow.allows(1))
    solver._paces["sequential", 1], n_threads = slow, []
    run = Threads.run

    def running(threads: Threads, tasks: Any, n: int, stopped: Any) -> Any:
        n_threads.append(n)
        return run(threads, tasks, n, stopped)

    monkeypatch.setattr("pymc_deer.backends.base._THREADS_SECONDS", 1e3)
    monkeypatch.setattr(Threads, "run", running)
    for _ in range(3):
        solver.run_together(runs(case), case.params, 512)
    assert n_threads == [2]


@ON_NUMBA
def test_what_is_not_compiled_yet_has_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    case = problem("eight_schools")
    solver, threads = case.new_solver("numba", 1), set()
    sequential = NumbaSolver._sequential

    def watched(solver: NumbaSolver, *arguments) -> None:
        threads.add(threading.get_ident())
        sequential(solver, *arguments)

    monkeypatch.setattr(NumbaSolver, "_sequential", watched)
    solver.run_together(runs(case), case.params, 512)
    assert threads == {threading.get_ident()}
    threads.clear()
    solver.run_together(runs(case), case.params, 512)
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [1, 64])
def test_an_error_in_one_chain_stops_the_others(
    backend: BackendName, window: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As an interrupt does, which waits for all threads: none goes on to the end of its tape."""
    solver, case = compiled(backend, window), problem("eight_schools")
    n_calls = [0]

    class OnePiece(Pace):
        def allows(self, weight: float) -> int:
            n_calls[0] += 1
            if n_calls[0] == 5:
                raise KeyboardInterrupt
            time.sleep(0.01)
            return 1

    monkeypatch.setattr(solver, "_paces_beside", {i: Paces(OnePiece) for i in range(3)})
    with pytest.raises(KeyboardInterrupt):
        solver.run_together(runs(case), case.params, 512)
    assert n_calls[0] < 40


class Paces(dict):
    """A pace of one kind for whatever it is asked for."""

    def __init__(self, kind: type[Pace]) -> None:
        super().__init__()
        self.kind = kind

    def __missing__(self, key: object) -> Pace:
        return self.setdefault(key, self.kind())
