"""What a window is expected to need and to gain, before anything is measured."""

from dataclasses import replace
from functools import cache
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pymc_deer import memory
from pymc_deer.backends import make_solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.placement import AXES, ManyDevices
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.plan import SHORTEST_CALL, in_windows
from pymc_deer.density import Density, build_density
from pymc_deer.examples import correlated_logistic
from pymc_deer.metric import identity_metric
from pymc_deer.options import BackendName
from pymc_deer.sampling.hardware import Hardware
from pymc_deer.sampling.settings import Settings
from pymc_deer.sweep import SweepSpec


@cache
def density_of(n_observations: int, n_features: int) -> Density:
    return build_density(correlated_logistic(n_observations, n_features))


def solver_of(backend: BackendName, n_observations: int, n_features: int = 5):
    density = density_of(n_observations, n_features)
    plan = WindowPlan(1, None, tol=1e-6, capacity=8)
    params = density.param_values(density.initial_point)
    return make_solver(backend, density, SweepSpec("diag"), plan), params


def test_jax_counts_what_a_state_of_more_data_takes() -> None:
    small, large = (solver_of("jax", n)[0].bytes_per_state() for n in (100, 10_000))
    assert 8 * 100 <= small < large
    assert 8 * 10_000 <= large <= 100 * 8 * 10_000


def test_numba_needs_the_same_for_any_data() -> None:
    small, large = (solver_of("numba", n)[0].bytes_per_state() for n in (100, 10_000))
    assert small == large > 0


@pytest.mark.parametrize("backend", ["numba", "jax"])
def test_matrices_beyond_the_cache_promise_more_and_threads_nothing(backend: BackendName) -> None:
    """Chains in worker processes have no threads to spare, whatever this process has."""
    small, params = solver_of(backend, 100)
    assert small.batch_gain_bound(params) == 5
    large, params = solver_of(backend, 40_000)
    assert large.batch_gain_bound(params) == 8


def test_a_gpu_promises_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    solver, params = solver_of("jax", 100)
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    assert solver.batch_gain_bound(params) == np.inf


def test_some_memory_is_free() -> None:
    for backend in ("numba", "jax"):
        assert solver_of(backend, 100)[0].free_memory() > 2**20


@pytest.mark.parametrize(
    ("stats", "free"), [({"bytes_limit": 9, "bytes_in_use": 2}, 7), (None, 2**31)]
)
def test_memory_of_a_gpu(monkeypatch: pytest.MonkeyPatch, stats: Any, free: int) -> None:
    """Where its allocator does not say, a guess: the host's memory says nothing of it."""
    gpu = SimpleNamespace(platform="gpu", memory_stats=lambda: stats)
    monkeypatch.setattr("pymc_deer.backends.placement.default_device", lambda: gpu)
    assert solver_of("jax", 100)[0].free_memory() == free


def several_gpus(n_chains: int, n_windows: int, n_data: int, platform: str = "gpu") -> ManyDevices:
    """A mesh of GPUs, or of other devices, that have 7 bytes free each."""
    stats = {"bytes_limit": 9, "bytes_in_use": 2}
    gpu = SimpleNamespace(platform=platform, process_index=0, memory_stats=lambda: stats)
    shape = dict(zip(AXES, (n_chains, n_windows, n_data), strict=True))
    mesh: Any = SimpleNamespace(shape=shape, devices=np.array([gpu]), local_devices=[gpu])
    return ManyDevices(mesh, n_rows=12)


def test_memory_of_gpus_that_share_states() -> None:
    """Those that share windows or data have all states each: of windows they share what is on the
    way from states to gradients.
    """
    solver, _ = solver_of("jax", 100)
    assert isinstance(solver, JaxSolver)
    assert solver.on_devices(several_gpus(2, 3, 4)).free_memory() == 2 * 7
    assert solver.on_devices(several_gpus(1, 1, 4)).free_memory() == 7
    alone, three = (solver.on_devices(several_gpus(1, n, 1)).bytes_per_state() for n in (1, 3))
    largest = solver._bytes_of_largest()
    assert alone - three == 4 * (largest - -(-largest // 3)) > 0


def test_gpus_run_no_step_that_was_compiled_for_a_cpu() -> None:
    solver, _ = solver_of("jax", 100)
    assert isinstance(solver, JaxSolver)
    step, _ = solver._step()
    on_cpus, on_gpus = (
        solver.on_devices(several_gpus(2, 1, 1, platform))._step()[0] for platform in ("cpu", "gpu")
    )
    assert on_cpus is step
    assert on_gpus is not step


def test_windows_on_several_devices_have_the_room_that_those_have(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By the solver that will run there, which has no kernels of ours."""
    solver, _ = solver_of("jax", 100)
    assert isinstance(solver, JaxSolver)
    solver = solver.with_plan(replace(solver.plan, window=64))
    placed = solver.on_devices(several_gpus(4, 1, 1))
    monkeypatch.setattr(JaxSolver, "bytes_per_state", lambda self: 0.4 * 7 / 128)
    devices: Any = SimpleNamespace(
        solver=lambda solver, n_chains: placed, chains_on_each=lambda n: n // 4
    )
    # Two on each, and windows of 64 have just room.
    assert Hardware(devices=devices).affordable_window(solver, 8) == (64, 8)
    assert Hardware(devices=devices).affordable_window(solver, 12) == (16, 12)


def test_calls_suit_the_chains_that_each_device_has() -> None:
    """On CPUs too, where one device has no batch of all of them."""
    solver, _ = solver_of("jax", 100, n_features=50)
    assert isinstance(solver, JaxSolver)
    solver = in_windows(solver, 1, None)
    settings = Settings(draws=5, tune=5, chains=1024)
    devices: Any = SimpleNamespace(
        solver=lambda solver, n_chains: solver.on_devices(several_gpus(8, 1, 1)).for_chains(
            n_chains
        ),
        chains_on_each=lambda n: n // 8,
    )
    placed = Hardware(devices=devices).solver(solver, settings, [])
    assert solver.plan.capacity > 1000
    assert placed.plan.capacity == SHORTEST_CALL


def test_what_one_device_kept_makes_room_for_several() -> None:
    solver, params = solver_of("jax", 100)
    assert isinstance(solver, JaxSolver)
    solver.evaluate(
        np.zeros(solver.density.size), identity_metric("diag", solver.density.size), params
    )
    assert solver._spares._kept
    solver.on_devices(several_gpus(2, 1, 1))
    assert not solver._spares._kept


def test_probes_take_memory() -> None:
    solver, _ = solver_of("numba", 100, n_features=50)
    without = solver.bytes_per_state()
    with_probes = solver.with_rule("exact").bytes_per_state()
    assert with_probes - without >= 8 * 50**2


def test_what_a_state_hardly_exceeds_is_more_than_it_takes() -> None:
    for backend in ("numba", "jax"):
        solver, _ = solver_of(backend, 100)
        assert solver.most_bytes_per_state() >= solver.bytes_per_state()


FILES = {
    "/proc/meminfo": ["MemTotal: 4000 kB", "MemFree: 10 kB", "MemAvailable: 2000 kB"],
    "/sys/fs/cgroup/memory.max": ["1500000"],
    "/sys/fs/cgroup/memory.stat": ["anon 500000", "file 900000"],
}


@pytest.mark.parametrize(
    ("files", "free"),
    [
        (FILES, 1_000_000),
        ({**FILES, "/sys/fs/cgroup/memory.max": ["max"]}, 2_048_000),
        ({**FILES, "/sys/fs/cgroup/memory.max": ["10"]}, 0),
        ({"/proc/meminfo": FILES["/proc/meminfo"]}, 2_048_000),
    ],
    ids=["container", "no limit", "full container", "no container"],
)
def test_memory_available(monkeypatch: pytest.MonkeyPatch, files, free) -> None:
    monkeypatch.setattr(memory, "_lines", lambda path: files.get(path, []))
    assert memory.available_memory() == free


def test_memory_where_the_system_says_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_lines", lambda path: [])
    assert memory.available_memory() > 0
    monkeypatch.delattr("os.sysconf", raising=False)
    assert memory.available_memory() == 2.0**31


def test_a_file_that_is_not_there_has_no_lines() -> None:
    assert memory._lines("/no/such/file") == []
