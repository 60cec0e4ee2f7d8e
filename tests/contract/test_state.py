"""State: a chain that is stored and restored, or moved to another process, goes on unchanged."""

import copy
from collections.abc import Callable
from functools import cache

import cloudpickle
import numpy as np
import pymc as pm
import pytensor
import pytest
from numpy.testing import assert_array_equal

from pymc_deer import DeerMALA
from pymc_deer.examples import eight_schools
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, SAMPLERS

BOTH_SAMPLERS = pytest.mark.parametrize("sampler", SAMPLERS)
WINDOWS = (1, 16)
TUNE, DRAWS = 12, 30


@cache
def compiled_step(backend: str, window: int, sampler: type[DeerStep] = DeerMALA) -> DeerStep:
    with eight_schools():
        step = sampler(backend=backend, window=window)
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("n_before", [0, 1, TUNE - 1, TUNE, TUNE + 1, TUNE + 7])
@BOTH_SAMPLERS
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


@pytest.mark.parametrize("backend", BACKENDS)
@BOTH_SAMPLERS
def test_state_is_taken_in_the_middle_of_a_stretch(backend: str, sampler: type[DeerStep]) -> None:
    """The test above is about something: draws have been handed out, and more are solved."""
    step = compiled_step(backend, 16, sampler)
    run(step, begin(step), 0, TUNE + 7)
    state = step.sampling_state
    assert 0 < state.record.handed_out < state.record.stretch_draws


def test_state_of_another_instance_is_taken_over() -> None:
    step = compiled_step("jax", 1)
    with eight_schools():
        other = DeerMALA(backend="jax")
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


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("n_before", [0, 5, TUNE + 7])
@pytest.mark.parametrize(
    "copy_of",
    [lambda step: cloudpickle.loads(cloudpickle.dumps(step)), copy.copy],
    ids=["pickled", "copied"],
)
@BOTH_SAMPLERS
def test_copied_step_goes_on(
    backend: str, n_before: int, copy_of: Callable[[DeerStep], DeerStep], sampler: type[DeerStep]
) -> None:
    step = compiled_step(backend, 1, sampler)
    points = [begin(step), *run(step, step.model.initial_point(), 0, n_before)]
    copied = copy_of(step)
    assert copied is not step
    assert copied.backend == backend
    expected = run(step, points[-1], n_before, 5)
    assert_same(run(copied, points[-1], n_before, 5), expected)
    assert_moving(expected)


@pytest.mark.parametrize("backend", BACKENDS)
@BOTH_SAMPLERS
def test_chain_does_not_depend_on_those_before_it(backend: str, sampler: type[DeerStep]) -> None:
    step = compiled_step(backend, 1, sampler)
    first = run(step, begin(step), 0, TUNE + 4)
    step.setup_chain(np.random.default_rng(99), 0, 5)
    run(step, step.model.initial_point(), 0, 3)
    assert_same(run(step, begin(step), 0, TUNE + 4), first)


def sample(step: DeerStep) -> np.ndarray:
    with step.model:
        idata = pm.sample(
            step=step,
            draws=40,
            tune=20,
            chains=1,
            cores=1,
            random_seed=5,
            progressbar=False,
            compute_convergence_checks=False,
        )
    return idata["posterior"]["x"].to_numpy()


def test_data_set_between_runs_is_honoured() -> None:
    with pm.Model() as model:
        centre = pm.Data("centre", 0.0)
        scale = pm.Data("scale", np.ones(2))
        pm.Normal("x", centre, scale, shape=2)
        step = DeerMALA(backend="jax")
        at_zero = sample(step)
        pm.set_data({"centre": 1000.0})
        far = sample(step)
        pm.set_data({"centre": 0.0, "scale": np.full(2, 1e-3)})
        narrow = sample(step)
        pm.set_data({"scale": np.ones(2)})
        assert_array_equal(sample(step), at_zero)
    assert np.abs(at_zero).max() < 10
    assert far.mean() == pytest.approx(1000.0, abs=1.0)
    assert narrow.std() == pytest.approx(1e-3, rel=0.5)
    assert model is step.model


@pytest.mark.skipif("numba" not in BACKENDS, reason="about Numba")
def test_data_set_between_runs_is_honoured_on_numba() -> None:
    with pm.Model():
        centre = pm.Data("centre", 0.0)
        pm.Normal("x", centre, 1.0, shape=2)
        step = DeerMALA(backend="numba")
        at_zero = sample(step)
        pm.set_data({"centre": 1000.0})
        far = sample(step)
    assert np.abs(at_zero).max() < 10
    assert far.mean() == pytest.approx(1000.0, abs=1.0)


@pytest.mark.parametrize("window", WINDOWS)
def test_single_precision_solves_ahead_too(window: int) -> None:
    """Rounding must not make the step take its own last draw for someone else's."""
    with pytensor.config.change_flags(floatX="float32"), pm.Model() as model:
        pm.Normal("x", 1.3, 2.1, shape=3)
        step = DeerMALA(
            backend="jax",
            window=window,
            step_size=0.5,
            metric=np.array([3.3, 2.1, 4.4]),
            steps_per_draw=2,
        )
        step.setup_chain(np.random.default_rng(0), 0, 20)
        point, _ = step.step(model.initial_point())
        assert step.record is not None
        assert step.record.stretch_draws == 20
        for i in range(2, 20):
            point, _ = step.step(point)
            assert step.record.handed_out == i
    assert point["x"].dtype == "float32"
