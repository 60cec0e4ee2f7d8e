"""State: a chain that is stored and restored, or moved to another process, goes on unchanged."""

import copy
import ctypes
import gc
import multiprocessing
import os
import tracemalloc
import weakref
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_array_equal

from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.backends.base import Solver
from pymc_deer.chains.chain import Chain
from pymc_deer.density import Density
from pymc_deer.examples import eight_schools
from pymc_deer.ops.batch import BATCHINGS
from pymc_deer.step import DeerStep
from tests import support
from tests.random_models.check import quick_compilation
from tests.support import BACKENDS

TUNE, DRAWS = 12, 30

SETTLED: dict[str, Any] = {"jacobian": "secant", "curvature": 1.5}
"""How windows are solved, with nothing left to be measured."""

STEPWISE, WINDOWED = (
    [case for case in cases if case[0] in BACKENDS]
    for cases in (
        [("jax", 1, DeerMALA), ("numba", 1, DeerHMC)],
        [("jax", 16, DeerHMC), ("numba", 16, DeerMALA)],
    )
)
"""Backends, windows and samplers: each backend has each window, and each sampler has both."""


@cache
def compiled_step(backend: str, window: int, sampler: type[DeerStep] = DeerMALA) -> DeerStep:
    with eight_schools():
        step = sampler(backend=backend, window=window, **SETTLED)
    assert isinstance(step, sampler)
    return step


def begin(step: DeerStep, tune: int = TUNE) -> dict[str, np.ndarray]:
    step.setup_chain(np.random.default_rng(3), tune, DRAWS)
    return step.model.initial_point()


def run(step: DeerStep, point: dict[str, np.ndarray], first: int, n: int) -> list[dict]:
    """The next n points of a chain whose draws `first`, `first + 1`, ... they are."""
    points = []
    for i in range(first, first + n):
        if i == TUNE:
            step.stop_tuning()
        point, _ = step.step(point)
        points.append(point)
    return points


def assert_same(one: list[dict], two: list[dict]) -> None:
    assert len(one) == len(two)
    for a, b in zip(one, two, strict=True):
        assert list(a) == list(b)
        for name, values in a.items():
            assert_array_equal(values, b[name])


def assert_moving(points: list[dict]) -> None:
    """Else equality of two runs would prove nothing."""
    assert len({float(p["mu"]) for p in points}) > 2


@pytest.mark.parametrize(("backend", "window", "sampler"), [*STEPWISE, *WINDOWED])
@pytest.mark.parametrize("n_before", [0, 1, TUNE - 1, TUNE, TUNE + 1, TUNE + 7])
def test_restored_state_goes_on(
    backend: str, window: int, n_before: int, sampler: type[DeerStep]
) -> None:
    step = compiled_step(backend, window, sampler)
    points = [begin(step), *run(step, step.model.initial_point(), 0, n_before)]
    state = step.sampling_state
    expected = run(step, points[-1], n_before, 8)
    step.sampling_state = state
    assert_same(run(step, points[-1], n_before, 8), expected)
    assert_moving(expected)
    # The state can be used again: running on did not change it.
    step.sampling_state = state
    assert_same(run(step, points[-1], n_before, 8), expected)


@pytest.mark.parametrize(("backend", "window", "sampler"), WINDOWED)
def test_state_is_taken_in_the_middle_of_a_stretch(
    backend: str, window: int, sampler: type[DeerStep]
) -> None:
    """The test above is about something: draws have been handed out, and more are solved."""
    step = compiled_step(backend, window, sampler)
    run(step, begin(step), 0, TUNE + 7)
    state = step.sampling_state
    assert 0 < state.record.handed_out < state.record.stretch_draws


def test_state_of_another_instance_is_taken_over() -> None:
    step = compiled_step("jax", 1)
    with eight_schools():
        other = DeerMALA(backend="jax", window=1)
    last = run(step, begin(step), 0, TUNE + 5)[-1]
    other.sampling_state = step.sampling_state
    other.tune = step.tune
    expected = run(step, last, TUNE + 5, 6)
    assert_same(run(other, last, TUNE + 5, 6), expected)


def test_state_is_small() -> None:
    """It is copied and sent between processes, and must not grow with the chain."""
    step = compiled_step("jax", 1)
    points = run(step, begin(step), 0, TUNE + 3)
    early = len(cloudpickle.dumps(step.sampling_state))
    run(step, points[-1], TUNE + 3, 20)
    assert len(cloudpickle.dumps(step.sampling_state)) < 1.2 * early
    assert early < 50_000


@pytest.mark.parametrize("precisions", [("float32", "float64"), ("float64", "float32")])
def test_a_pickled_step_keeps_its_precision(precisions: tuple[str, str]) -> None:
    """Processes that are started anew have PyTensor's own default, not what was set here."""
    then, now = precisions
    with pytensor.config.change_flags(floatX=then), pm.Model():
        pm.Normal("x", 0.7, shape=3)
        step = DeerMALA(backend="jax", window=1, step_size=0.5, metric=np.ones(3))
        points = [begin(step), *run(step, step.model.initial_point(), 0, 3)]
        packed = cloudpickle.dumps(step)
        expected = run(step, points[-1], 3, 5)
    with pytensor.config.change_flags(floatX=now):
        copied = cloudpickle.loads(packed)
        assert copied.density.dtype == then
        assert copied.solver.plan.tol == step.solver.plan.tol
        assert_same(run(copied, points[-1], 3, 5), expected)


@pytest.mark.parametrize(("backend", "window", "sampler"), STEPWISE)
@pytest.mark.parametrize("n_before", [0, 5, TUNE + 7])
@pytest.mark.parametrize(
    "copy_of",
    [lambda step: cloudpickle.loads(cloudpickle.dumps(step)), copy.copy],
    ids=["pickled", "copied"],
)
def test_copied_step_goes_on(
    backend: str,
    window: int,
    sampler: type[DeerStep],
    n_before: int,
    copy_of: Callable[[DeerStep], DeerStep],
) -> None:
    step = compiled_step(backend, window, sampler)
    points = [begin(step), *run(step, step.model.initial_point(), 0, n_before)]
    copied = copy_of(step)
    assert copied is not step
    assert copied.backend == backend
    expected = run(step, points[-1], n_before, 5)
    assert_same(run(copied, points[-1], n_before, 5), expected)
    assert_moving(expected)


@pytest.mark.parametrize(("backend", "window", "sampler"), STEPWISE)
def test_chain_does_not_depend_on_those_before_it(
    backend: str, window: int, sampler: type[DeerStep]
) -> None:
    step = compiled_step(backend, window, sampler)
    first = run(step, begin(step), 0, TUNE + 4)
    step.setup_chain(np.random.default_rng(99), 0, 5)
    run(step, step.model.initial_point(), 0, 3)
    assert_same(run(step, begin(step), 0, TUNE + 4), first)


def sample(step: DeerStep, name: str = "x") -> np.ndarray:
    idata = support.sample(step, draws=40, tune=20, chains=1, random_seed=5)
    return idata["posterior"][name].to_numpy()


def test_data_set_between_runs_is_honoured() -> None:
    with pm.Model() as model:
        centre = pm.Data("centre", 0.0)
        scale = pm.Data("scale", np.ones(2))
        pm.Normal("x", centre, scale, shape=2)
        step = DeerMALA(backend="jax")
        at_zero = sample(step)
        pm.set_data({"centre": 1000.0})
        far = sample(step)
        # Chains start at the data's own default, jittered.
        assert_array_equal(sample(DeerMALA(backend="jax")), far)
        pm.set_data({"centre": 0.0, "scale": np.full(2, 1e-3)})
        narrow = sample(step)
        pm.set_data({"scale": np.ones(2)})
        assert_array_equal(sample(step), at_zero)
    assert np.abs(at_zero).max() < 10
    assert far.mean() == pytest.approx(1000.0, abs=1.0)
    assert narrow.std() == pytest.approx(1e-3, rel=0.5)
    assert model is step.model


def solved_ahead(step: DeerStep) -> dict[str, np.ndarray]:
    """The last but one of 20 draws, all of which are of one stretch."""
    step.setup_chain(np.random.default_rng(0), 0, 20)
    point, _ = step.step(step.model.initial_point())
    assert step.record is not None
    assert step.record.stretch_draws == 20
    for i in range(2, 20):
        point, _ = step.step(point)
        assert step.record.handed_out == i
    return point


@pytest.mark.parametrize("window", [1, 16])
def test_single_precision_solves_ahead_too(window: int) -> None:
    """Rounding must not make the step take its own last draw for someone else's."""
    with pytensor.config.change_flags(floatX="float32"), pm.Model():
        pm.Normal("x", 1.3, 2.1, shape=3)
        step = DeerMALA(
            backend="jax",
            window=window,
            step_size=0.5,
            metric=np.array([3.3, 2.1, 4.4]),
            steps_per_draw=2,
            **SETTLED,
        )
        point = solved_ahead(step)
    assert point["x"].dtype == "float32"


@pytest.mark.parametrize("dtypes", [("float32", "float32"), ("float32", "float64")])
def test_variables_that_are_narrower_than_the_density_are_solved_ahead_too(
    dtypes: tuple[str, str],
) -> None:
    """They are given out rounded."""
    with pm.Model():
        for i, dtype in enumerate(dtypes):
            pm.Normal(f"x{i}", np.float32(1.3), np.float32(2.1), shape=3, dtype=dtype)
        step = DeerMALA(backend="jax", window=1, step_size=0.5, steps_per_draw=2)
        assert step.density.dtype == "float64"
        point = solved_ahead(step)
        assert step.record is not None
        moved, _ = step.step({**point, "x0": point["x0"] + np.float32(1.0)})
    assert step.record.stretch_draws != 20
    assert np.abs(moved["x0"] - point["x0"]).max() > 0.0


@pytest.mark.parametrize(("window", "sampler"), [(1, DeerMALA), (16, DeerHMC)])
@pytest.mark.parametrize("copy_of", [copy.copy, copy.deepcopy])
def test_copies_share_what_is_compiled_and_go_their_own_ways(
    copy_of: Callable[[DeerStep], DeerStep], window: int, sampler: type[DeerStep]
) -> None:
    step = compiled_step("jax", window, sampler)
    last = run(step, begin(step), 0, TUNE + 7)[-1]
    copied = copy_of(step)
    assert copied.solver is step.solver
    assert copied.model is step.model
    expected = run(step, last, TUNE + 7, 6)
    assert_same(run(copied, last, TUNE + 7, 6), expected)
    # A chain of the copy leaves the original where it is.
    there = step.sampling_state
    run(copied, begin(copied), 0, 3)
    found = run(step, expected[-1], TUNE + 13, 4)
    step.sampling_state = there
    assert_same(run(step, expected[-1], TUNE + 13, 4), found)
    assert_array_equal(sample(copied, "eta"), sample(step, "eta"))


def test_restored_chain_warns_as_it_would_have() -> None:
    """What the chain knows of its mixing belongs to its state."""
    with pm.Model() as model:
        pm.Normal("x", shape=2)
        fixed = {"metric": np.array([1.0, 1e-4]), "steps_per_draw": 1, "step_size": 0.5}
        step = DeerMALA(backend="jax", window=1, **fixed)
    step.setup_chain(np.random.default_rng(0), 0, 2000)
    point, warnings = model.initial_point(), []
    for i in range(2000):
        if i == 1900:
            step.sampling_state = step.sampling_state
        point, [stats] = step.step(point)
        warnings += [stats["warning"]] if stats["warning"] else []
    assert len(warnings) == 1
    assert "The 2000 draws of this chain are worth about" in warnings[0].message


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the graphs that are compiled from now on, model by model and program by program."""
    found: list[str] = []
    for module in ("jax_programs", "numba"):
        backend = import_module(f"pymc_deer.backends.{module}")
        for build in ("build_sequential", "build_sweep"):
            original = getattr(backend, build)

            def counted(*arguments: Any, _original: Any = original, **options: Any) -> Any:
                found.append(_original.__name__)
                return _original(*arguments, **options)

            monkeypatch.setattr(backend, build, counted)
    return found


def unmeasured(backend: str, window: int) -> DeerStep:
    step = DeerMALA(backend=backend, window=window, **SETTLED)
    assert isinstance(step, DeerStep)
    return step


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_compiles_once(backend: str, compiled: list[str]) -> None:
    """One program of each kind for a model, a window and a backend, when the step is made.

    Data that are set later are honoured all the same.
    """
    with pm.Model() as model:
        centre = pm.Data("centre", 1.0)
        pm.Normal("x", centre, shape=2)
        step = unmeasured(backend, 1)
        assert compiled == ["build_sequential"]
        compiled.clear()
        pm.set_data({"centre": 0.0})
        at_zero = sample(step)
        pm.set_data({"centre": 1000.0})
        far = sample(step)
        assert np.abs(at_zero).max() < 10
        assert far.mean() == pytest.approx(1000.0, abs=1.0)
        copies = [copy.copy(step), copy.deepcopy(step)]
        state = step.sampling_state
        step.sampling_state = state
        sample(copies[1])
    assert model is step.model
    assert compiled == []


def test_a_windowed_step_compiles_its_sweep_once(compiled: list[str]) -> None:
    with pm.Model():
        pm.Normal("x", shape=2)
        step = unmeasured("jax", 16)
    # Two forms of the batch may be tried; single steps wait until they are needed.
    assert set(compiled) <= {"build_sweep", "build_sequential"}
    assert 1 <= compiled.count("build_sweep") <= len(BATCHINGS)
    n_made = len(compiled)
    for _ in range(3):
        sample(step)
    assert len(compiled) - n_made <= 1
    before = len(compiled)
    sample(step)
    assert len(compiled) == before


def live(kinds: Sequence[type]) -> list[int]:
    """How many there are of each kind."""
    gc.collect()
    # Types are few: whether one is a subclass takes longer to find out than to count its objects.
    of_type = Counter(map(type, gc.get_objects()))
    return [sum(n for cls, n in of_type.items() if issubclass(cls, kind)) for kind in kinds]


def traced_growth(work: Callable[[], object], n: int) -> float:
    """Bytes that Python holds more after each of n runs, beyond the first few."""
    for _ in range(3):
        work()
    gc.collect()
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for _ in range(n):
            work()
        gc.collect()
        return (tracemalloc.get_traced_memory()[0] - before) / n
    finally:
        tracemalloc.stop()


def small_step(backend: str = "jax") -> DeerStep:
    with pm.Model():
        pm.Normal("x", shape=1000)
        step = DeerMALA(backend=backend, window=1, metric="diag")
    assert isinstance(step, DeerStep)
    return step


# Of a run, its 40 draws of 1000 numbers, its stretches and its adaptation each take more.
KEPT = 200_000


@pytest.mark.default_mode
def test_runs_leave_nothing_behind() -> None:
    step = small_step()
    assert traced_growth(lambda: sample(step), 5) < KEPT


def test_that_check_finds_runs_that_leave_their_draws() -> None:
    step, left = small_step(), []
    assert traced_growth(lambda: left.append(sample(step)), 1) > KEPT


def check_steps_are_forgotten() -> None:
    """A step that has run goes, and its model, its chains and its programs with it."""
    kinds = (DeerStep, Solver, Chain, Density, pm.Model)
    before = live(kinds)
    step = small_step()
    sample(step)
    left = [weakref.ref(thing) for thing in (step, *step.solver._programs.values())]
    del step
    assert live(kinds) == before
    assert [found() for found in left] == [None] * len(left)


@pytest.mark.default_mode
def test_steps_are_forgotten() -> None:
    check_steps_are_forgotten()


def test_that_check_finds_a_step_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    kept, original = [], DeerMALA.setup_chain

    def setup_chain(step: DeerStep, *arguments: Any) -> None:
        kept.append(step)
        original(step, *arguments)

    monkeypatch.setattr(DeerMALA, "setup_chain", setup_chain)
    with pytest.raises(AssertionError):
        check_steps_are_forgotten()


def resident() -> int:
    """Bytes of memory that the process holds, without what its allocator has free."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


# Bytes that ten steps may take for good. Of each function, Numba keeps some of what it compiled,
# whoever asked for it: 5 MB, where steps that are kept take 13 MB (on JAX, 1 and 66).
FOR_TEN_STEPS = 9e6


def grows_by_ten_steps(backend: str, kept: list | None, n_times: int) -> bool:
    """Whether ten steps take memory for good, which `kept` keeps, if it is there.

    Of so many times ten, the median counts: threads and their pools of memory come once.
    """
    held = []
    # PyMC's own functions are not what is asked about.
    with quick_compilation():
        for _ in range(n_times + 1):
            for _ in range(10):
                step = small_step(backend)
                support.sample(step, draws=5, tune=5, chains=1)
                if kept is not None:
                    kept.append(step)
            held.append(resident())
    return float(np.median(np.diff(held))) > FOR_TEN_STEPS


def check_steps_take_no_more_memory(backend: str) -> None:
    # On JAX they take a ninth of the bound.
    assert not grows_by_ten_steps(backend, None, n_times=3 if backend == "jax" else 5)


def check_kept_steps_take_more_memory(backend: str) -> None:
    # Seven times the bound.
    assert grows_by_ten_steps(backend, [], n_times=2)


@pytest.mark.slow
@pytest.mark.default_mode
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="not told on this platform")
@pytest.mark.parametrize(
    ("check", "backend"),
    [
        *((check_steps_take_no_more_memory, backend) for backend in BACKENDS),
        (check_kept_steps_take_more_memory, BACKENDS[-1]),
    ],
)
def test_memory_of_steps(check: Callable[[str], None], backend: str) -> None:
    """In a process of their own, whose memory nothing else moves."""
    process = multiprocessing.get_context("spawn").Process(target=check, args=(backend,))
    process.start()
    process.join()
    assert process.exitcode == 0
