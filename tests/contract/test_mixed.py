"""Deer steps beside others: draws solved ahead must not outlive what they assume."""

import copy
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose
from pymc.step_methods.compound import CompoundStep
from scipy.stats import norm
from xarray import DataTree

from pymc_deer import DeerMALA
from pymc_deer.chain import SolvedStretch
from pymc_deer.step import DeerStep
from tests.support import SAMPLERS

BOTH_SAMPLERS = pytest.mark.parametrize("sampler", SAMPLERS)
SEED = 20_250_104


def chained() -> pm.Model:
    """x hangs on a closely: where a is, x must follow."""
    with pm.Model() as model:
        a = pm.Normal("a", 0.0, 10.0)
        pm.Normal("x", a, 0.1)
    return model


def new_step(sampler: type[DeerStep]) -> DeerStep:
    with chained() as model:
        step = sampler(
            [model["x"]],
            backend="jax",
            step_size=0.7,
            metric=np.array([0.01]),
            steps_per_draw=5,
        )
    assert isinstance(step, sampler)
    return step


@cache
def two_steps(sampler: type[DeerStep] = DeerMALA) -> tuple[DeerStep, DeerStep]:
    return new_step(sampler), new_step(sampler)


def keep_stale_draws(monkeypatch: pytest.MonkeyPatch, sampler: type[DeerStep] = DeerMALA) -> None:
    """Break the sampler: it solves ahead beside other steps, and never looks at what they did."""
    monkeypatch.setattr(sampler, "_alone", True)
    monkeypatch.setattr(SolvedStretch, "assumes", lambda stretch, params: True)


def drive(step: DeerStep, point: dict, n: int) -> dict:
    for _ in range(n):
        point, _ = step.step(point)
    return point


def check_conditioning_is_followed(sampler: type[DeerStep]) -> None:
    """After a jumps, the next x is that of a step which never saw the old a."""
    step, fresh = two_steps(sampler)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, {"a": np.array(0.0), "x": np.array(0.0)}, 3)
    jumped = {**point, "a": np.array(5.0)}
    fresh.sampling_state = step.sampling_state
    found, expected = drive(step, jumped, 1), drive(fresh, jumped, 1)
    assert found["x"] == expected["x"]
    assert found["a"] == 5.0
    # And x is drawn to where a now is.
    assert drive(step, found, 30)["x"] == pytest.approx(5.0, abs=0.5)


@BOTH_SAMPLERS
def test_change_of_another_variable_is_followed(sampler: type[DeerStep]) -> None:
    check_conditioning_is_followed(sampler)


@BOTH_SAMPLERS
def test_that_check_finds_draws_that_outlived_their_condition(
    monkeypatch: pytest.MonkeyPatch, sampler: type[DeerStep]
) -> None:
    keep_stale_draws(monkeypatch, sampler)
    with pytest.raises(AssertionError):
        check_conditioning_is_followed(sampler)


def test_change_in_place_is_followed() -> None:
    """Other steps may write into the array that they gave out before."""
    step, fresh = two_steps()
    a = np.array(0.0)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, {"a": a, "x": np.array(0.0)}, 3)
    a[...] = 5.0
    fresh.sampling_state = step.sampling_state
    expected = drive(fresh, {"a": np.array(5.0), "x": point["x"]}, 1)
    assert drive(step, {**point, "a": a}, 1)["x"] == expected["x"]


def test_change_of_its_own_variable_is_followed() -> None:
    with chained():
        step = DeerMALA(backend="jax", step_size=1e-12, metric=np.eye(2), steps_per_draw=1)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    point = drive(step, step.model.initial_point(), 3)
    moved = drive(step, {**point, "x": np.array(7.0)}, 1)
    assert_allclose([moved["x"], moved["a"]], [7.0, point["a"]], atol=1e-9)


def test_own_variable_moved_by_another_step_uses_new_noise() -> None:
    with chained():
        step = DeerMALA(backend="jax", step_size=0.5, metric=np.eye(2), steps_per_draw=1)
    step.setup_chain(np.random.default_rng(1), 0, 60)
    used = [copy.deepcopy(step.record.streams.normal.bit_generator.state)] if step.record else []
    point = step.model.initial_point()
    for _ in range(4):
        point = drive(step, {**point, "x": point["x"] + 1e-3}, 1)
        assert step.record is not None
        state = step.sampling_state
        assert state.record is not None
        used.append(state.record.streams.normal.bit_generator.state)
    # Rows of the tape are spent by the draws that were handed out: no two draws share one.
    assert len({str(state) for state in used}) == len(used) - 1


def mixture() -> pm.Model:
    """A discrete switch whose posterior is known."""
    with pm.Model() as model:
        k = pm.Bernoulli("k", 0.5)
        x = pm.Normal("x", 2.0 * k, 1.0)
        pm.Normal("y", x, 1.0, observed=1.5)
    return model


def exact_probability() -> float:
    likelihood = norm.pdf(1.5, [0.0, 2.0], np.sqrt(2.0))
    return float(likelihood[1] / likelihood.sum())


def sample(
    make_other: Callable[[pm.Model], list] = lambda model: [],
    sampler: type[DeerStep] = DeerMALA,
    **changes: Any,
) -> DataTree:
    options = {"draws": 2000, "tune": 200, "chains": 1, "cores": 1, "random_seed": SEED}
    with mixture() as model:
        step = sampler([model["x"]], backend="jax", steps_per_draw=3)
        return pm.sample(
            step=[step, *make_other(model)],
            progressbar=False,
            compute_convergence_checks=False,
            **(options | changes),
        )


def check_mixture(idata: DataTree) -> None:
    """Means against the exact ones, within four standard errors at a fifth of the sample size."""
    k, x = (idata["posterior"][name].values.ravel() for name in ("k", "x"))
    p = exact_probability()
    assert k.mean() == pytest.approx(p, abs=4 * np.sqrt(p * (1 - p) / (len(k) / 5)))
    # E[x | k, y] = (2k + y) / 2
    for value in (0, 1):
        chosen = x[k == value]
        error = 4 * np.sqrt(0.5 / (len(chosen) / 5))
        assert chosen.mean() == pytest.approx((2 * value + 1.5) / 2, abs=error)


@pytest.mark.parametrize(
    "make_other",
    [
        lambda model: [],
        lambda model: [pm.BinaryGibbsMetropolis([model["k"]])],
        lambda model: [pm.BinaryMetropolis([model["k"]])],
    ],
    ids=["assigned by PyMC", "Gibbs", "Metropolis"],
)
@BOTH_SAMPLERS
def test_beside_a_step_for_a_discrete_variable(
    make_other: Callable[[pm.Model], list], sampler: type[DeerStep]
) -> None:
    check_mixture(sample(make_other, sampler))


def test_stale_draws_would_bias_the_mixture(monkeypatch: pytest.MonkeyPatch) -> None:
    keep_stale_draws(monkeypatch)
    with pytest.raises(AssertionError):
        check_mixture(sample())


def test_beside_slice_sampling() -> None:
    with chained() as model:
        pm.Normal("y", model["x"], 0.1, observed=3.0)
        idata = pm.sample(
            step=[DeerMALA([model["x"]], backend="jax"), pm.Slice([model["a"]])],
            draws=400,
            tune=200,
            chains=1,
            cores=1,
            random_seed=SEED,
            progressbar=False,
            compute_convergence_checks=False,
        )
    x, a = (idata["posterior"][name].values.ravel() for name in ("x", "a"))
    assert x.mean() == pytest.approx(3.0, abs=0.1)
    assert np.std(x - a) == pytest.approx(0.1 / np.sqrt(1.0), rel=0.2)


def test_one_step_for_each_variable() -> None:
    with chained() as model:
        step = DeerMALA(backend="jax", blocked=False)
        assert isinstance(step, CompoundStep)
        assert [method.vars[0].name for method in step.methods] == ["a", "x"]
        idata = pm.sample(
            step=step,
            draws=20,
            tune=20,
            chains=2,
            cores=1,
            random_seed=SEED,
            progressbar=False,
            compute_convergence_checks=False,
        )
    assert idata["posterior"]["x"].shape == (2, 20)
    assert len(np.unique(idata["posterior"]["x"].values)) > 20
    assert model is step.methods[0].model
