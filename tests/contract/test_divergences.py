"""Divergent transitions are counted, and their places reported, as PyMC does for NUTS."""

import logging
from functools import cache
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.stats.convergence import WarningType

import pymc_deer
from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.chains.chain import Chain
from pymc_deer.examples import eight_schools
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, SAMPLERS, SLOW_ON_NUMBA, sample
from tests.zoo import funnel

CASES = [
    pytest.param(sampler, backend, window, marks=SLOW_ON_NUMBA[backend] if window > 1 else [])
    for sampler, backend, window in (
        (DeerMALA, "numba", 1),
        (DeerHMC, "numba", 16),
        (DeerHMC, "jax", 1),
        (DeerHMC, "jax", 16),
    )
    if backend in BACKENDS
]
"""Each backend compiles both loops, with one sampler each: where a divergence was is found in
Python."""

BOTH_SAMPLERS = pytest.mark.parametrize("sampler", SAMPLERS)
N_DRAWS = 300

# Steps that suit the mouth of the funnel, and that its neck is too narrow for.
OPTIONS: dict[type[DeerStep], dict[str, Any]] = {
    DeerMALA: {"step_size": 1.1},
    DeerHMC: {"step_size": 0.7, "n_leapfrog": 5},
}


@cache
def compiled_step(backend: str, window: int, sampler: type[DeerStep]) -> DeerStep:
    fixed = {"metric": np.ones(10), "steps_per_draw": 1, "jacobian": "secant", "curvature": 1.5}
    with funnel():
        step = sampler(backend=backend, window=window, **fixed, **OPTIONS[sampler])
    assert isinstance(step, sampler)
    return step


def run(step: DeerStep, tune: int = 0, draws: int = N_DRAWS) -> tuple[list[dict], list[dict]]:
    """Points of a chain, the first included, and the statistics of its draws."""
    step.setup_chain(np.random.default_rng(2), tune, draws)
    points, stats = [{"v": np.array(0.0), "x": np.full(9, 0.1)}], []
    for i in range(tune + draws):
        if i == tune:
            step.stop_tuning()
        point, [found] = step.step(points[-1])
        points.append(point)
        stats.append(found)
    return points, stats


@pytest.mark.parametrize(("sampler", "backend", "window"), CASES)
def test_a_divergence_has_a_place(backend: str, window: int, sampler: type[DeerStep]) -> None:
    step = compiled_step(backend, window, sampler)
    points, stats = run(step)
    assert sum(s["diverging"] for s in stats) >= 5
    assert len({float(p["v"]) for p in points}) > 20, "the chain must move"
    assert [s["divergences"] for s in stats] == np.cumsum([s["diverging"] for s in stats]).tolist()
    # The chain starts where the model does, jittered: the first draw's start is not ours to see.
    for before, found in zip(points[1:], stats[1:], strict=False):
        warning = found["warning"]
        assert (warning is not None) == found["diverging"]
        if warning is None:
            continue
        assert warning.kind is WarningType.DIVERGENCE
        assert warning.level == "debug"
        source = warning.divergence_point_source
        assert set(source) == {var.name for var in step.model.value_vars}
        # With a transition for each draw, that is the draw before.
        for name, value in before.items():
            assert_allclose(source[name], value, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("sampler", "steps_per_draw"), [(DeerMALA, 2), (DeerHMC, 8)])
def test_a_divergence_between_draws_has_a_place(
    sampler: type[DeerStep], steps_per_draw: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """States between draws are not kept, but where one is where a transition diverged."""
    monkeypatch.setattr("pymc_deer.chains.chain._MOST_PLACES", 2400)
    options = OPTIONS[sampler] | {"steps_per_draw": steps_per_draw}
    with funnel() as model:
        step = sampler(backend="jax", window=1, metric=np.ones(10), **options)
    draws = 2400 // steps_per_draw
    points, stats = run(step, draws=draws)
    monkeypatch.setattr(Chain, "stride", 1)
    _, with_all_states = run(step, draws=draws)
    n_between = 0
    for before, mine, its in zip(points[1:], stats[1:], with_all_states[1:], strict=False):
        assert mine["diverging"] == its["diverging"]
        if mine["diverging"]:
            found, known = (s["warning"].divergence_point_source for s in (mine, its))
            for var in model.value_vars:
                assert_array_equal(found[var.name], known[var.name])
            n_between += not np.allclose(found["x"], before["x"])
    assert n_between >= 3


def test_places_are_found_of_so_many_divergences(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each costs the solution of a stretch, and memory, for a message that PyMC does not show."""
    monkeypatch.setattr("pymc_deer.chains.chain._MOST_PLACES", 3)
    _, stats = run(compiled_step("jax", 1, DeerHMC))
    warnings = [s["warning"] for s in stats if s["warning"] is not None]
    assert len(warnings) == stats[-1]["divergences"] > 4
    assert [w.divergence_point_source is not None for w in warnings[:5]] == [True] * 3 + [False] * 2


@BOTH_SAMPLERS
def test_divergences_of_warmup_are_not_reported(sampler: type[DeerStep]) -> None:
    _, stats = run(compiled_step("jax", 1, sampler), tune=N_DRAWS)
    assert any(s["diverging"] for s in stats[:N_DRAWS])
    assert all(s["warning"] is None for s in stats[:N_DRAWS])
    assert {s["divergences"] for s in stats[:N_DRAWS]} == {0}
    assert stats[-1]["divergences"] == sum(s["diverging"] for s in stats[N_DRAWS:])


@pytest.mark.parametrize(("sampler", "steps_per_draw"), [(DeerMALA, 3), (DeerHMC, 1)])
def test_beside_another_step_every_divergence_has_a_place(
    sampler: type[DeerStep], steps_per_draw: int
) -> None:
    """There each draw is solved by itself, and its first transition starts from the point given."""
    with funnel() as model:
        step = sampler(
            [model["x"]],
            backend="jax",
            metric=np.ones(9),
            steps_per_draw=steps_per_draw,
            **OPTIONS[sampler],
        )
    step.setup_chain(np.random.default_rng(0), 0, 20)
    point = {"v": np.array(0.0), "x": np.full(9, 0.1)}
    point, _ = step.step(point)
    point = {**point, "v": np.array(-20.0)}
    after, [stats] = step.step(point)
    assert stats["diverging"]
    source = stats["warning"].divergence_point_source
    assert source["v"] == -20.0
    # None of the transitions goes anywhere.
    assert_allclose(source["x"], point["x"], rtol=1e-9)
    assert_allclose(after["x"], point["x"], rtol=1e-9)


@BOTH_SAMPLERS
def test_leaving_the_support_of_a_potential_is_a_divergence(sampler: type[DeerStep]) -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("wall", pt.switch(x > 0.5, -np.inf, 0.0))
        step = sampler(backend="jax", step_size=0.9, metric=np.ones(1), steps_per_draw=1)
    step.setup_chain(np.random.default_rng(0), 0, 200)
    point, found = model.initial_point(), []
    for _ in range(200):
        point, [stats] = step.step(point)
        found.append(stats)
        assert point["x"] <= 0.5
        assert stats["diverging"] == (stats["rejected_nonfinite"] == 1)
        assert stats["acceptance_rate"] == 0 or not stats["diverging"]
        if stats["diverging"]:
            assert stats["warning"].divergence_point_source["x"] <= 0.5
    assert 10 < sum(s["diverging"] for s in found) < 150


def together(model: pm.Model, **options: Any) -> Any:
    return pymc_deer.sample(
        300, model=model, chains=4, cores=1, random_seed=3, quiet=True, backend="jax", **options
    )


def test_warmup_aims_higher_where_transitions_diverge() -> None:
    """Unless the rate is given; with steps so much shorter that hardly any draw diverges."""
    model = eight_schools()
    fixed, raised = together(model, target_accept=0.6), together(model)
    found = [idata["sample_stats"] for idata in (fixed, raised)]
    rates = [stats.attrs["deer_target_accept"] for stats in found]
    assert rates[0] == 0.6
    assert 0.82 < rates[1] <= 0.95
    # At the lower one, two steps go as far as paths should, and might be longer.
    reached = [float(stats["acceptance_rate"].mean()) for stats in found]
    assert rates[0] < reached[0] < reached[1] == pytest.approx(rates[1], abs=0.06)
    for stats in found:
        assert_array_equal(stats["divergences"], stats["diverging"].cumsum("draw"))
    n_fixed, n_raised = (int(stats["diverging"].sum()) for stats in found)
    assert n_fixed > 20
    assert n_raised < n_fixed / 10


def test_walls_do_not_shorten_steps() -> None:
    """Where the density is 0 beyond one, shorter steps meet it as well."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("wall", pt.switch(x > 0.5, -np.inf, 0.0))
    stats = together(model)["sample_stats"]
    assert int(stats["diverging"].sum()) > 50
    assert stats.attrs["deer_target_accept"] == 0.8


def test_pymc_says_how_many(caplog: pytest.LogCaptureFixture) -> None:
    step = compiled_step("jax", 1, DeerHMC)
    with caplog.at_level(logging.INFO, logger="pymc"):
        idata = sample(step, draws=N_DRAWS, tune=0, compute_convergence_checks=True)
    n_divergences = int(idata["sample_stats"]["diverging"].sum())
    assert n_divergences > 5
    assert f"There were {n_divergences} divergences after tuning" in caplog.text
