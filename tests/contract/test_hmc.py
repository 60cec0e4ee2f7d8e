"""What DeerHMC reports of its paths, and how many steps it takes."""

from functools import cache
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pytest
from xarray import DataTree

import pymc_deer
from pymc_deer import DeerHMC
from tests.support import BACKENDS, sample

SIZE = 10
DEVIATIONS = np.geomspace(0.1, 10.0, SIZE)


def gaussian() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("x", 0.0, DEVIATIONS, shape=SIZE)
    return model


def new_step(**options: Any) -> DeerHMC:
    with gaussian():
        step = DeerHMC(**{"backend": "jax", "window": 1, **options})
    assert isinstance(step, DeerHMC)
    return step


@cache
def long_run(backend: str) -> DataTree:
    """A draw for every transition of two steps, from a step size and metric found in warm-up."""
    step = new_step(backend=backend, n_leapfrog=2, steps_per_draw=1)
    return sample(step, tune=1000, draws=1000, discard_tuned_samples=False)


@pytest.mark.parametrize("backend", BACKENDS)
def test_energy_is_potential_plus_kinetic(backend: str) -> None:
    stats = long_run(backend)["sample_stats"]
    energy, logp = stats["energy"].values, stats["lp"].values
    # A path starts at the draw before, with a momentum of D standard normal numbers.
    kinetic = energy[:, 1:] + logp[:, :-1]
    assert (kinetic > 0).all()
    error = np.sqrt(SIZE / 2 / kinetic.size)
    assert kinetic.mean() == pytest.approx(SIZE / 2, abs=4 * error)
    assert kinetic.var() == pytest.approx(SIZE / 2, rel=0.2)


@pytest.mark.parametrize("backend", BACKENDS)
def test_arviz_judges_the_energies(backend: str) -> None:
    bfmi = az.bfmi(long_run(backend))["energy"].values
    assert bfmi.shape == (2,)
    # New momenta make as much of the energy's variance as it has in a Gaussian.
    assert (bfmi > 0.7).all()
    assert (bfmi < 1.4).all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_acceptance_is_what_warmup_aims_at(backend: str) -> None:
    stats = long_run(backend)["sample_stats"]
    assert float(stats["acceptance_rate"].mean()) == pytest.approx(0.8, abs=0.06)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_fixed_number_of_steps_is_taken_from_the_start(backend: str) -> None:
    idata = long_run(backend)
    for group in ("sample_stats", "warmup_sample_stats"):
        assert (idata[group]["n_transitions"] == 1).all()
        assert (idata[group]["n_steps"] == 2).all()


def test_steps_of_all_transitions_of_a_draw_are_counted() -> None:
    idata = sample(new_step(n_leapfrog=3, steps_per_draw=4), discard_tuned_samples=False)
    for group in ("sample_stats", "warmup_sample_stats"):
        assert (idata[group]["n_transitions"] == 4).all()
        assert (idata[group]["n_steps"] == 12).all()


def test_path_length_is_divided_by_the_step_size() -> None:
    fixed = {"step_size": 0.3, "metric": DEVIATIONS**2, "steps_per_draw": 2}
    stats = sample(new_step(path_length=1.5, **fixed))["sample_stats"]
    assert (stats["n_steps"] == 2 * 4).all()


def test_path_length_follows_the_step_size_of_warmup() -> None:
    idata = sample(new_step(path_length=1.5), tune=100, discard_tuned_samples=False)
    for group in ("sample_stats", "warmup_sample_stats"):
        stats = idata[group]
        expected = 2 * np.maximum(np.round(1.5 / stats["step_size"] / 2), 1)
        assert (stats["n_steps"] == stats["n_transitions"] * expected).all()
    assert len(np.unique(idata["warmup_sample_stats"]["n_steps"])) > 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_warmup_finds_a_path_that_takes_a_gaussian_to_an_independent_point(backend: str) -> None:
    idata = sample(new_step(backend=backend), tune=500, draws=500, discard_tuned_samples=False)
    stats = idata["sample_stats"]
    # Draws take the same number of steps; warm-up tries different ones.
    steps = stats["n_steps"] / stats["n_transitions"]
    assert (steps == steps.isel(draw=0)).all()
    assert len(np.unique(idata["warmup_sample_stats"]["n_steps"])) > 3
    # A quarter of a period, pi / 2, forgets the coordinate, and half of one, pi, returns it.
    length = (steps * stats["step_size"]).isel(draw=0).values
    assert (length > 1.2).all()
    assert (length < 2.3).all()
    draws = idata["posterior"]["x"]
    for moment in (draws, draws**2):
        assert (az.ess(moment, method="bulk") > 400).all()


def test_paths_do_not_depend_on_where_the_posterior_lies() -> None:
    """With a metric of the user's, whose centre is learnt: beside 0 a path to the other side of the
    mean would leave the spread unexplored, and nobody see it.
    """
    options: dict[str, Any] = {"metric": np.full(SIZE, 4.0), "window": 1, "random_seed": 1}
    found = []
    for mean in (0.0, 3.0):
        with pm.Model() as model:
            pm.Normal("x", mean, 2.0, shape=SIZE)
        idata = pymc_deer.sample(20, model=model, quiet=True, backend="jax", **options)
        attrs = idata["sample_stats"].attrs
        found.append([*attrs["deer_step_size"], attrs["deer_n_leapfrog"]])
    assert found[0] == pytest.approx(found[1])


def test_jitter_changes_the_draws_and_not_the_reported_step_size() -> None:
    fixed = {"step_size": 0.3, "metric": DEVIATIONS**2, "steps_per_draw": 1, "n_leapfrog": 4}
    still, varied = (sample(new_step(step_size_jitter=j, **fixed), tune=0) for j in (0.0, 0.2))
    assert (varied["sample_stats"]["step_size"] == 0.3).all()
    assert not np.allclose(still["posterior"]["x"], varied["posterior"]["x"])


def test_a_chain_gets_out_of_a_narrow_place_by_smaller_steps() -> None:
    """Where the others are unstable, and all of their paths are rejected."""
    with pm.Model():
        width = pm.Normal("width", 0.0, 3.0)
        pm.Normal("x", 0.0, pm.math.exp(width), shape=5)
        fixed = {"metric": np.ones(6), "step_size": 0.2, "n_leapfrog": 8, "steps_per_draw": 1}
        paths: dict[float, np.ndarray] = {}
        for share in (0.0, 0.2):
            step = DeerHMC(backend="jax", window=1, small_steps=share, **fixed)
            initvals = {"width": -3.5, "x": np.full(5, 0.03)}
            idata = sample(step, tune=0, draws=500, initvals=initvals)
            paths[share] = idata["posterior"]["width"].to_numpy()
    assert (paths[0.0] == -3.5).all()
    assert (paths[0.2].max(axis=1) > -2.0).all()
