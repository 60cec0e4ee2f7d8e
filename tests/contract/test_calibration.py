"""What is measured changes no draw beyond the tolerance, and is kept with the step."""

import json
import logging
from collections import Counter
from functools import cache, partial
from typing import Any

import cloudpickle
import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose, assert_array_equal

import pymc_deer
from pymc_deer import DeerMALA
from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.examples import correlated_logistic, eight_schools
from pymc_deer.metric import identity_metric
from tests import support

sample = partial(support.sample, draws=40, tune=60, random_seed=4)


def new_step(**options: Any) -> Any:
    with eight_schools():
        return DeerMALA(backend="jax", **options)


@cache
def measured() -> Any:
    """A step whose window is given, and all that depends on it is measured."""
    return new_step(window=16)


def test_what_was_asked_of_windows_is_kept_where_there_are_none() -> None:
    """On a CPU, where none can pay: attributes and statistics say what the user said."""
    asked = {"jacobian": "preconditioned", "curvature": 2.0, "max_sweeps": 20}
    found = new_step(**asked).calibration
    assert found.window == 1
    assert {name: getattr(found, name) for name in asked} == asked


def test_a_run_given_the_chosen_values_repeats_itself() -> None:
    free = measured()
    found = free.calibration
    assert len(found.trials) >= 2
    given = new_step(
        window=found.window,
        jacobian=found.jacobian,
        curvature=found.curvature,
        max_sweeps=found.max_sweeps,
    )
    assert given.calibration.trials == ()
    one, two = sample(free), sample(given)
    for name in ("mu", "tau", "eta"):
        assert_array_equal(one["posterior"][name], two["posterior"][name])
    for name in ("sweeps", "curvature", "window"):
        assert_array_equal(one["sample_stats"][name], two["sample_stats"][name])


def test_auto_measures_where_windows_may_pay_and_keeps_the_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(JaxSolver, "batch_gain_bound", lambda *_: np.inf)
    step = new_step(jacobian="secant")
    assert step.calibration.trials[0].window == 1
    assert step.calibration.trials[0].microseconds > 0
    plan = step.solver.plan
    left = {kind[-1] for kind in step.solver._spares._kept if kind[0] == "buffers"}
    assert left <= {plan.capacity, plan.capacity + plan.window}, "of other widths that were tried"
    idata = sample(step)
    assert (idata["sample_stats"]["window"] == step.calibration.window).all()
    idata["sample_stats"].attrs.update(step.attrs)
    attrs = idata["sample_stats"].attrs
    assert attrs["deer_backend"] == "jax"
    assert attrs["deer_metric"] == "dense"
    assert attrs["deer_window"] == step.calibration.window
    assert json.loads(attrs["deer_trials"])[0]["window"] == 1


def test_auto_measures_nothing_on_a_cpu() -> None:
    calibration = new_step().calibration
    assert calibration.window == 1
    assert not calibration.trials
    assert "5 times cheaper a state" in calibration.reason


def test_another_process_gets_the_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    step = measured()
    packed = cloudpickle.dumps(step)

    def fail(*arguments: Any, **options: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr("pymc_deer.chains.prepare.run_pilot", fail)
    assert cloudpickle.loads(packed).calibration == step.calibration
    with pytest.raises(AssertionError, match="measured again"):
        new_step(window=16)


def test_a_model_that_cannot_start_by_itself_is_not_measured() -> None:
    with pm.Model():
        x = pm.Normal("x")
        pm.Potential("far", pm.math.switch(x < 100.0, -np.inf, 0.0))
        step = DeerMALA(backend="jax", window=16)
    assert "No pilot chain could start" in step.calibration.reason
    assert step.calibration.window == 16


def test_beside_other_steps_windows_are_not_measured() -> None:
    with pm.Model():
        pm.Bernoulli("k", 0.5)
        pm.Normal("x")
        step = DeerMALA(backend="jax")
    assert step.calibration.window == 1
    assert "Other step methods" in step.calibration.reason


@pytest.fixture(scope="module")
def starved() -> Any:
    """Windows that are allowed too few sweeps to converge."""
    return new_step(window=64, max_sweeps=2, curvature=1.5, jacobian="preconditioned")


def test_windows_that_do_not_converge_are_narrowed_and_said_so(
    starved: Any, caplog: pytest.LogCaptureFixture
) -> None:
    # Nothing tuned: the states can be compared one by one.
    fixed: dict[str, Any] = {"tune": 0, "draws": 200}
    with eight_schools():
        sequential = DeerMALA(
            backend="jax", window=1, step_size=0.5, steps_per_draw=2, metric=np.eye(10)
        )
        narrowed = DeerMALA(
            backend="jax",
            window=64,
            max_sweeps=2,
            curvature=1.5,
            jacobian="preconditioned",
            step_size=0.5,
            steps_per_draw=2,
            metric=np.eye(10),
        )
    exact = sample(sequential, **fixed)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        idata = sample(narrowed, **fixed)
    stats = idata["sample_stats"]
    for chain in range(2):
        windows = stats["window"].to_numpy()[chain]
        assert windows[0] == 64
        assert set(windows) <= {64, 16, 1}
        assert (np.diff(windows) <= 0).all()
        assert windows[-1] < 64
    assert (stats["fallback"] > 0).any()
    logged = [record.message for record in caplog.records]
    messages = [m for m in logged if "more sweeps than they are allowed" in m]
    assert len(messages) == 2, "once for each chain"
    assert "Try a smaller window, window=16" in messages[0]
    for name in ("mu", "tau", "eta"):
        ours, theirs = idata["posterior"][name], exact["posterior"][name]
        assert_allclose(ours.to_numpy(), theirs.to_numpy(), rtol=1e-3, atol=1e-3)


def test_chains_of_one_batch_say_so_once(caplog: pytest.LogCaptureFixture) -> None:
    options: dict[str, Any] = {"window": 64, "max_sweeps": 2, "curvature": 1.5}
    fixed = {"step_size": 0.5, "steps_per_draw": 2, "metric": np.eye(10), "tune": 0}
    with caplog.at_level(logging.WARNING):
        idata = pymc_deer.sample(
            200,
            **(options | fixed),
            kernel="mala",
            chains=3,
            jacobian="preconditioned",
            backend="jax",
            model=eight_schools(),
            random_seed=1,
            progressbar=False,
        )
    told = [r.message for r in caplog.records if "more sweeps than they are allowed" in r.message]
    assert len(told) == 1
    assert idata["sample_stats"].attrs["deer_narrowed"] > 0


def test_warm_up_is_narrowed_silently_and_starts_again_with_each_metric(
    starved: Any, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        idata = sample(starved, tune=300, draws=2, discard_tuned_samples=False)
    windows = idata["warmup_sample_stats"]["window"].to_numpy()
    assert windows.min() < 64
    assert (np.diff(windows, axis=1) > 0).any(), "wide again after a new metric"


def test_solvers_of_other_windows_share_what_is_compiled(starved: Any) -> None:
    solver = starved.solver
    here = np.zeros(10), identity_metric("dense", 10), ()
    # Both are sequential, and derived from the solver one by one.
    first, second = (solver.with_plan(solver.plan.narrowed(times)) for times in (3, 4))
    assert first.plan.window == second.plan.window == 1
    first.evaluate(*here)
    before = dict(solver._programs)
    assert "sequential" in before
    second.evaluate(*here)
    assert solver._programs == before


def test_slow_mixing_is_said_with_the_last_draw(caplog: pytest.LogCaptureFixture) -> None:
    with pm.Model():
        pm.Normal("x", shape=2)
        # A scale that is wrong by a factor of 100 makes one coordinate crawl.
        crawling = DeerMALA(
            backend="jax", window=1, metric=np.array([1.0, 1e-4]), steps_per_draw=1, step_size=0.5
        )
        lively = DeerMALA(backend="jax", window=1, metric=np.ones(2), steps_per_draw=8)
    with caplog.at_level(logging.WARNING):
        sample(crawling, draws=400)
    messages = [record.message for record in caplog.records]
    assert sum("draws of this chain are worth about" in m for m in messages) == 2
    assert any("non-centred" in m for m in messages)
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        sample(lively, draws=400)
    assert not any("worth about" in record.message for record in caplog.records)


def test_jitter_varies_the_step_size_and_keeps_the_posterior() -> None:
    with pm.Model():
        pm.Normal("x", 3.0, 2.0, shape=3)
        step = DeerMALA(
            backend="jax", window=16, step_size_jitter=0.5, jacobian="secant", curvature=1.5
        )
    idata = sample(step, draws=1000, tune=500, chains=4)
    x = idata["posterior"]["x"].to_numpy()
    assert np.abs(x.mean(axis=(0, 1)) - 3.0).max() < 0.3
    assert np.abs(x.std(axis=(0, 1)) - 2.0).max() < 0.2


def test_windows_of_chains_in_one_batch_are_measured_together(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where a batch of chains fills what one chain's window would leave idle."""
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    monkeypatch.setattr("pymc_deer.chains.calibration._COMPILATION", 0.0)
    monkeypatch.setattr("pymc_deer.chains.calibration._WIDTHS", {"cpu": (256,)})
    run_together, widths = JaxSolver.run_together, Counter()
    taken = support.buffers_taken(monkeypatch)
    options: dict[str, Any] = {"draws": 5, "tune": 5, "chains": 3, "kernel": "mala", "quiet": True}
    options |= {"backend": "jax", "jacobian": "secant", "random_seed": 1}

    def counted(solver: Solver, chains: Any, *arguments: Any) -> Any:
        widths[solver.plan.window > 1, len(chains)] += 1
        return run_together(solver, chains, *arguments)

    monkeypatch.setattr(JaxSolver, "run_together", counted)
    with correlated_logistic(20, 2):
        step = DeerMALA(backend="jax", jacobian="secant")
        assert widths[True, 1]
        assert not widths[True, 3]
        assert "chains in one batch" not in step.calibration.reason
        widths.clear()
        taken.clear()
        idata = pymc_deer.sample(**options)
    assert widths[True, 3]
    assert not widths[True, 1]
    # The pilot chain too: there is one program.
    assert {n_chains for _, n_chains in taken} == {3}
    trials = json.loads(idata.sample_stats.attrs["deer_trials"])
    assert [trial["window"] for trial in trials][:2] == [1, 256]
    # But for many, whose steps would take the pilot longer than it takes to compile another.
    taken.clear()
    monkeypatch.setattr("pymc_deer.chains.prepare._FEW_CHAINS", 2)
    with correlated_logistic(20, 2):
        pymc_deer.sample(**options)
    assert {n_chains for _, n_chains in taken} == {1, 3}


def test_a_short_run_compiles_no_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU; of a step by itself the length of the run is not known."""
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    with correlated_logistic(20, 2):
        idata = pymc_deer.sample(
            5, tune=5, chains=3, kernel="mala", backend="jax", random_seed=1, quiet=True
        )
    attrs = idata.sample_stats.attrs
    assert attrs["deer_window"] == 1
    assert "longer to compile" in attrs["deer_reason"]
