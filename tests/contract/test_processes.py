"""Chains in worker processes have the threads they are given, and draws that do not show it."""

import multiprocessing
import os
from typing import Any

import cloudpickle
import jax
import numba
import numpy as np
import pymc as pm
import pytest
from threadpoolctl import threadpool_limits

import pymc_deer
import pymc_deer.step as steps
from pymc_deer import DeerMALA
from pymc_deer.backends import make_solver
from pymc_deer.backends.blas import Blas
from pymc_deer.backends.jax_process import JaxProcess
from pymc_deer.backends.numba import NumbaSolver, _numba_threads, available_threads
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.examples import eight_schools
from pymc_deer.metric import Metric, identity_metric
from pymc_deer.noise import draw_tape
from pymc_deer.options import Options
from pymc_deer.sampling import driver
from pymc_deer.status import BackendError, ForkError
from pymc_deer.step import DeerStep
from pymc_deer.sweep import SweepSpec
from tests.support import BACKENDS, sample

ON_NUMBA = pytest.mark.skipif("numba" not in BACKENDS, reason="threads are the Numba backend's")
FORKS = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning",
    "ignore:os.fork\\(\\) was called:RuntimeWarning",
)
METHODS = [
    pytest.param(method, marks=[] if method == "fork" else pytest.mark.slow)
    for method in multiprocessing.get_all_start_methods()
]


def in_process(method: str, function: Any) -> Any:
    """What `function` returns in a process of its own."""
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    process = context.Process(target=_send, args=(theirs, cloudpickle.dumps(function)))
    process.start()
    assert ours.poll(240)
    result = ours.recv()
    process.join()
    return result


def _send(pipe: Any, packed: bytes) -> None:
    pipe.send(cloudpickle.loads(packed)())


def refused() -> bool:
    try:
        JaxProcess.enter()
    except ForkError:
        return True
    return False


@FORKS
@pytest.mark.skipif("jax" not in BACKENDS, reason="about JAX")
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
@pytest.mark.parametrize("ran", [True, False])
def test_a_fork_of_a_process_in_which_others_ran_jax(
    ran: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    jax.local_devices()
    monkeypatch.setattr(JaxProcess, "pid", None)
    if not ran:
        monkeypatch.setattr("jax._src.xla_bridge.backends_are_initialized", lambda: False)
    assert in_process("fork", refused) == ran


@FORKS
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", METHODS)
def test_a_worker_has_one_thread(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.NUMBA_NUM_THREADS", 4)
    assert available_threads() == 4
    assert in_process(method, available_threads) == 1


def test_threads_of_numba_are_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine of four cores: to what else the process runs, an interrupt or not."""
    n_threads = [4]
    monkeypatch.setattr(numba, "get_num_threads", lambda: n_threads[-1])
    monkeypatch.setattr(numba, "set_num_threads", n_threads.append)
    with _numba_threads(2):
        assert n_threads == [4, 2]
    assert n_threads == [4, 2, 4]
    with pytest.raises(KeyboardInterrupt), _numba_threads(8):
        raise KeyboardInterrupt
    assert n_threads == [4, 2, 4, 4, 4]


@pytest.fixture
def threads_used(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Threads of each windowed solve, on a machine of eight cores."""
    used = []
    windowed = NumbaSolver._windowed

    def counted(solver: NumbaSolver, *arguments: Any) -> Any:
        used.append(solver._n_threads)
        return windowed(solver, *arguments)

    monkeypatch.setattr(NumbaSolver, "_windowed", counted)
    monkeypatch.setattr("pymc_deer.backends.numba.available_threads", lambda: 8)
    return used


def small_windows() -> DeerStep:
    with eight_schools():
        step = DeerMALA(backend="numba", window=16)
    assert isinstance(step, DeerStep)
    return step


@ON_NUMBA
def test_threads_are_those_that_blas_is_allowed(threads_used: list[int]) -> None:
    """It is how `pm.sample(blas_cores=...)` says how many. Calibration has those of workers."""
    step = small_windows()
    assert step.calibration.trials
    assert set(threads_used) == {1}
    for limit in (2, 1):
        threads_used.clear()
        with threadpool_limits(limit, "blas"):
            sample(step, chains=1, tune=0, blas_cores=None)
        assert set(threads_used) == {limit}


@ON_NUMBA
def test_coordinates_are_changed_with_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """BLAS may round in another way where it has more, and workers have fewer."""
    blas, seen = Blas(), []
    for name in ("to_x_by_row", "to_z"):
        change = getattr(Metric, name)

        def counted(metric: Metric, array: np.ndarray, change: Any = change) -> np.ndarray:
            seen.append((change.__name__, blas.n_threads))
            return change(metric, array)

        monkeypatch.setattr(Metric, name, counted)
    step = small_windows()
    seen.clear()
    with threadpool_limits(2, "blas"):
        sample(step, chains=1, tune=200, blas_cores=None)
        assert blas.n_threads == 2
    assert set(seen) == {("to_x_by_row", 1), ("to_z", 1)}


def test_what_follows_from_data_is_computed_with_one_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Constants of a model, and what is made of a metric: workers compute them anew."""
    seen = set()
    for owner, name in ((steps, "build_density"), (Options, "metric_factor"), (driver, "Values")):
        original = getattr(owner, name)

        def counted(*arguments: Any, name: str = name, original: Any = original) -> Any:
            seen.add((name, Blas().n_threads))
            return original(*arguments)

        monkeypatch.setattr(owner, name, counted)
    options: dict[str, Any] = {"backend": BACKENDS[-1], "window": 1, "metric": np.ones(10)}
    with threadpool_limits(2, "blas"), eight_schools():
        pymc_deer.sample(5, tune=5, chains=1, quiet=True, **options)
    assert seen == {("build_density", 1), ("metric_factor", 1), ("Values", 1)}


def memory_setting(packed: bytes) -> Any:
    step = cloudpickle.loads(packed)
    step.setup_chain(np.random.default_rng(0), 0, 2)
    step.step(step.model.initial_point())
    return os.environ.get("XLA_PYTHON_CLIENT_PREALLOCATE")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.skipif("jax" not in BACKENDS, reason="about JAX")
@pytest.mark.parametrize(("set_by_user", "seen"), [(None, "false"), ("true", "true")])
def test_a_worker_leaves_memory_of_a_gpu_to_others(
    set_by_user: str | None, seen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("XLA_PYTHON_CLIENT_PREALLOCATE", raising=False)
    if set_by_user is not None:
        monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", set_by_user)
    with eight_schools():
        packed = cloudpickle.dumps(DeerMALA(backend="jax", window=1))
    assert in_process("spawn", lambda: memory_setting(packed)) == seen


@ON_NUMBA
@pytest.mark.parametrize(("n", "threaded"), [(1024, True), (100, True), (20, False), (2, False)])
def test_threads_are_for_the_states_that_there_are(
    n: int, threaded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not for the window: the program with threads would be compiled for a stretch of few."""
    with pm.Model() as model:
        pm.Normal("x", shape=3000)
    density, asked = build_density(model), []

    def refused(_: NumbaSolver, with_threads: bool) -> Any:
        asked.append(with_threads)
        raise BackendError("asked for")

    monkeypatch.setattr(NumbaSolver, "_threads_allowed", lambda _: 2)
    monkeypatch.setattr(NumbaSolver, "_windowed_loop", refused)
    monkeypatch.setattr("pymc_deer.backends.numba.available_threads", lambda: 2)
    plan = WindowPlan(1024, None, 1e-6, 4096)
    solver = make_solver("numba", density, SweepSpec("diag", "secant"), plan)
    rngs = np.random.default_rng(0).spawn(3)
    tape = draw_tape(*rngs[:2], n, density.size)
    tuning = Tuning(0.1, 1.5, identity_metric("diag", density.size))
    with pytest.raises(BackendError, match="asked for"):
        solver.solve(np.zeros(density.size), tape, tuning, density.param_values({}), rngs[2])
    assert asked == [threaded]
