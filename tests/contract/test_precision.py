"""Runs in single precision, and what they leave as it was."""

from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytest

import pymc_deer
from pymc_deer import DeerHMC, DeerMALA, trace_sweeps
from pymc_deer.step import DeerStep
from tests.support import sample


@pytest.mark.parametrize("enabled", [False, True])
@pytest.mark.parametrize("precision", ["float32", "float64"])
def test_jax_keeps_the_types_that_the_user_allows(precision: str, enabled: bool) -> None:
    before = jax.config.jax_enable_x64
    try:
        jax.config.update("jax_enable_x64", enabled)
        with pytensor.config.change_flags(floatX=precision), pm.Model():
            pm.Normal("x", 1.3, 2.1, shape=3)
            idata = sample(DeerMALA(backend="jax"))
        assert jax.config.jax_enable_x64 is enabled
        assert jax.numpy.ones(1).dtype == ("float64" if enabled else "float32")
    finally:
        jax.config.update("jax_enable_x64", before)
    assert idata["posterior"]["x"].dtype == precision
    assert idata["sample_stats"]["lp"].dtype == "float64"


def test_numbers_that_vanish_are_no_errors() -> None:
    """Whatever the user has NumPy raise: probabilities underflow."""

    def draws(step: DeerStep) -> np.ndarray:
        """Of the step's run, and of one of DeerHMC with all chains together."""
        options: dict[str, Any] = {"backend": "jax", "window": 1, "random_seed": 1}
        options |= {"compute_convergence_checks": False, "quiet": True}
        together = pymc_deer.sample(20, model=step.model, tune=50, chains=2, **options)
        found = [idata["posterior"]["x"] for idata in (sample(step), together)]
        return np.concatenate(found, axis=1)

    with np.errstate(all="raise"):
        with pm.Model():
            x, s = pm.Normal("x", shape=2), pm.HalfNormal("s")
            pm.Normal("y", x[0], s, observed=np.arange(5.0))
            step = DeerMALA(backend="jax", window=1)
        found = draws(step)
    np.testing.assert_array_equal(draws(step), found)


def test_floating_point_errors_that_the_user_has_raised_are_not_for_profiles_and_traces() -> None:
    with pm.Model() as model:
        x, s = pm.Normal("x", shape=2), pm.HalfNormal("s")
        pm.Normal("y", x[0], s, observed=np.arange(5.0))
    expected = trace_sweeps(30, model=model, window=8).states
    with np.errstate(all="raise"):
        pymc_deer.profile(model, windows=(1, 4), backends=["jax"])
        np.testing.assert_array_equal(trace_sweeps(30, model=model, window=8).states, expected)


def test_keys_give_the_same_momenta_whatever_the_users_jax_makes_of_keys() -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=3)
    options: dict[str, Any] = {"backend": "jax", "window": 1, "noise": "device", "random_seed": 1}
    options |= {"compute_convergence_checks": False, "quiet": True}
    expected = pymc_deer.sample(20, model=model, tune=20, chains=2, **options)
    with jax.threefry_partitionable(False):
        found = pymc_deer.sample(20, model=model, tune=20, chains=2, **options)
    np.testing.assert_array_equal(found["posterior"]["x"], expected["posterior"]["x"])


@pytest.mark.parametrize("window", [1, 8])
def test_settings_for_the_users_own_jax_code_are_not_for_this(window: int) -> None:
    """Arrays come and go here, types are mixed, and NaN is a number."""
    with pm.Model() as model:
        x, s = pm.Normal("x", shape=2), pm.HalfNormal("s")
        pm.Normal("y", x[0], s, observed=0.5)
    with (
        jax.transfer_guard("disallow"),
        jax.numpy_dtype_promotion("strict"),
        jax.numpy_rank_promotion("raise"),
        jax.debug_nans(True),
        jax.debug_infs(True),
        jax.set_mesh(jax.make_mesh((1,), ("own",))),
    ):
        with model:
            step = DeerMALA(backend="jax", window=window, jacobian="secant", curvature=1.0)
        found = sample(step)["posterior"]["x"].to_numpy()
        assert dict(jax.sharding.get_mesh().shape) == {"own": 1}
    np.testing.assert_array_equal(sample(step)["posterior"]["x"], found)


def test_a_mesh_of_the_users_is_not_that_of_a_run() -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    options: dict[str, Any] = {"backend": "jax", "window": 1, "random_seed": 1, "devices": 1}
    options |= {"compute_convergence_checks": False, "quiet": True, "chains": 2}
    expected = pymc_deer.sample(20, model=model, tune=20, **options)
    with jax.set_mesh(jax.make_mesh((1,), ("chain",))):
        found = pymc_deer.sample(20, model=model, tune=20, **options)
    np.testing.assert_array_equal(found["posterior"]["x"], expected["posterior"]["x"])


def test_what_is_summed_up_in_float64_is_no_mistake_of_the_users() -> None:
    with pytensor.config.change_flags(floatX="float32", warn_float64="raise"), pm.Model():
        x = pm.Normal("x", np.float32(1.3))
        pm.Normal("y", x, np.float32(2.0), observed=np.ones(3, "float32"))
        assert sample(DeerMALA(backend="jax"))["posterior"]["x"].dtype == "float32"


@pytest.mark.parametrize(("sampler", "window"), [(DeerMALA, 16), (DeerHMC, 1)])
def test_moments_in_single_precision(sampler: type[DeerStep], window: int) -> None:
    """Draws worth 1000 independent ones or more: within four standard errors."""
    with pytensor.config.change_flags(floatX="float32"), pm.Model():
        pm.Normal("x", 1.3, 2.1, shape=3)
        step = sampler(backend="jax", window=window, jacobian="secant")
        x = sample(step, draws=1000, tune=300)["posterior"]["x"].to_numpy().reshape(-1, 3)
    assert np.abs(x.mean(axis=0) - 1.3).max() < 4 * 2.1 / np.sqrt(1000)
    assert np.abs(x.std(axis=0) / 2.1 - 1).max() < 4 / np.sqrt(2000)
