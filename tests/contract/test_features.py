"""PyMC's features beside DeerMALA; `docs/pymc_features.md` names a test for each."""

import copy
import logging
from collections.abc import Callable
from functools import cache
from types import SimpleNamespace
from typing import Any

import arviz as az
import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.exceptions import ImputationWarning
from pymc.logprob.transforms import Transform
from pytensor.raise_op import Assert

from pymc_deer import DeerMALA
from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.options import BackendName
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, sample

Y = np.array([0.4, 1.9, 1.1])
MEAN, DEVIATION = Y.sum() / 4, np.sqrt(1 / 4)
"""Posterior of mu ~ N(0, 1) after y ~ N(mu, 1): the models below all say this, each its own way, of
each of their variables named mu."""


def potentials() -> pm.Model:
    """Of numbers, and of variables whose axes have names."""
    with pm.Model(coords={"i": range(3)}) as model:
        mu = pm.Normal("mu")
        pm.Potential("likelihood", -0.5 * pt.sum((Y - mu) ** 2))
        y, named = pmd.Data("y", Y, dims="i"), pmd.Normal("mu, named")
        pmd.Potential("likelihood, named", -0.5 * ((y - named) ** 2).sum())
    return model


def custom() -> pm.Model:
    """By a logp, and by a random graph from which PyMC derives the logp of a log-normal."""

    def logp(value: Any, mu: Any) -> Any:
        return -0.5 * (value - mu) ** 2

    def dist(mu: Any, size: Any) -> Any:
        return pm.math.exp(pm.Normal.dist(mu, 1.0, size=size))

    with pm.Model() as model:
        by_logp = pm.CustomDist("mu, logp", 0.0, logp=logp)
        pm.CustomDist("y, logp", by_logp, logp=logp, observed=Y)
        pm.CustomDist("y, dist", pm.Normal("mu, dist"), dist=dist, observed=np.exp(Y))
    return model


class Cubic(Transform):
    """A user's own: the line, stretched."""

    name = "cubic"

    def forward(self, value: Any, *inputs: Any) -> Any:
        # The root of u + u^3 = value.
        half = value / 2
        root = pt.sqrt(half**2 + 1 / 27)
        return pt.sign(half + root) * pt.abs(half + root) ** (1 / 3) + (
            pt.sign(half - root) * pt.abs(half - root) ** (1 / 3)
        )

    def backward(self, value: Any, *inputs: Any) -> Any:
        return value + value**3

    def log_jac_det(self, value: Any, *inputs: Any) -> Any:
        return pt.log1p(3 * value**2)


def own_transform() -> pm.Model:
    with pm.Model() as model:
        given, default = {"transform": Cubic()}, {"default_transform": Cubic()}
        pm.Normal("y", pm.Normal("mu", **given), 1.0, observed=Y)
        pm.Normal("y, default", pm.Normal("mu, default", **default), 1.0, observed=Y)
    return model


def checked() -> pm.Model:
    """A check that no proposal near the posterior fails, and one that many do."""
    with pm.Model() as model:
        mu, half = pm.Normal("mu"), pm.Flat("half", initval=1.0)
        pm.Potential("bell", -0.5 * Assert("half is negative")(half, pt.gt(half, 0.0)) ** 2)
        pm.Normal("y", Assert("mu is far off")(mu, pt.lt(mu, 50.0)), observed=Y)
    return model


def without_transform() -> pm.Model:
    """A bounded variable as it is, beside which the density is flat."""
    with pm.Model() as model:
        pm.Uniform("flat", 0.0, 1.0, default_transform=None)
        mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=Y)
    return model


def missing() -> pm.Model:
    values = np.array([*Y, np.nan])
    with pm.Model() as model:
        for name, observed in (("nan", values), ("masked", np.ma.masked_invalid(values))):
            mu = pm.Normal(f"mu, {name}")
            with pytest.warns(ImputationWarning, match="missing values"):
                pm.Normal(name, mu, 1.0, observed=observed)
    return model


def intervened_and_observed() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        sigma = pm.Exponential("sigma", 1.0)
        pm.Normal("y", mu, sigma, shape=3)
    return pm.observe(pm.do(model, {"sigma": 1.0}), {"y": Y})


def nested() -> pm.Model:
    with pm.Model() as model:
        with pm.Model(name="inner"):
            mu = pm.Normal("mu")
        pm.Normal("y", mu, 1.0, observed=Y)
    return model


MODELS: tuple[Callable[[], pm.Model], ...] = (
    potentials,
    custom,
    own_transform,
    checked,
    without_transform,
    missing,
    intervened_and_observed,
    nested,
)


CASES = [pytest.param(make, "jax", id=make.__name__) for make in MODELS] + [
    pytest.param(make, "numba", id=f"{make.__name__}, Numba", marks=pytest.mark.slow)
    for make in (custom, own_transform, checked, missing)
]


@pytest.mark.parametrize(
    ("make", "backend"), [case for case in CASES if case.values[1] in BACKENDS]
)
def test_model_has_its_posterior(make: Callable[[], pm.Model], backend: str) -> None:
    with make():
        step = DeerMALA(backend=backend, window=1)
    posterior = sample(step, draws=600, tune=300)["posterior"]
    names = [rv.name for rv in step.model.free_RVs if "mu" in rv.name]
    assert names
    for name in names:
        mu = posterior[name].values
        error = float(az.mcse(mu))
        assert error < 0.05
        assert mu.mean() == pytest.approx(MEAN, abs=4 * error)
        assert mu.std() == pytest.approx(DEVIATION, rel=0.15)
    if make is missing:
        for name in ("nan", "masked"):
            # What was not observed is predicted.
            predicted = posterior[f"{name}_unobserved"]
            assert predicted.shape == (2, 600, 1)
            assert predicted.std() == pytest.approx(np.sqrt(1.25), rel=0.15)
            assert_array_equal(posterior[name].values[0, 0, :3], Y)
    if make is checked:
        # Half of a normal distribution.
        half = posterior["half"].values
        assert half.min() > 0
        assert half.mean() == pytest.approx(np.sqrt(2 / np.pi), abs=4 * float(az.mcse(half)))
    if make is without_transform:
        flat = posterior["flat"].values
        assert 0 < flat.min() < 0.1
        assert 0.9 < flat.max() < 1
        assert flat.std() == pytest.approx(np.sqrt(1 / 12), rel=0.15)


def test_zero_sum_normal_sums_to_zero() -> None:
    y = np.array([-1.0, 0.5, 2.0, -0.3])
    with pm.Model(coords={"group": list("abcd")}):
        effect = pm.ZeroSumNormal("effect", dims="group")
        pm.Normal("y", effect, 1.0, observed=y, dims="group")
        step = DeerMALA(backend="jax", window=1)
    effect = sample(step, draws=600, tune=300)["posterior"]["effect"]
    assert effect.dims == ("chain", "draw", "group")
    assert_allclose(effect.sum("group"), 0.0, atol=1e-10)
    # Prior and likelihood count alike in each direction that sums to 0.
    assert_allclose(effect.mean(("chain", "draw")), (y - y.mean()) / 2, atol=0.15)


@pytest.mark.usefixtures("uncompiled")
def test_nested_variables_are_chosen_by_their_full_name() -> None:
    with nested() as model:
        pm.Normal("other")
        step = DeerMALA(["inner::mu"], backend="jax", window=1)
    assert [var.name for var in step.vars] == ["inner::mu"]
    assert step.model is model


@cache
def line() -> DeerStep:
    """A regression with data, dimensions and a deterministic, compiled once for many runs."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=12)
    with pm.Model(coords={"time": np.arange(2000, 2012)}):
        features = pm.Data("x", x, dims="time")
        slope = pm.Normal("slope", 0.0, 2.0)
        sigma = pm.HalfNormal("sigma", 1.0)
        mean = pm.Deterministic("mean", slope * features, dims="time")
        observed = 1.5 * x + 0.5 * rng.normal(size=12)
        pm.Normal("y", mean, sigma, observed=observed, dims="time")
        step = DeerMALA(backend="jax", window=1)
    assert isinstance(step, DeerStep)
    return step


def test_coordinates_come_from_the_model_and_from_idata_kwargs() -> None:
    idata = sample(line())
    assert list(idata["posterior"]["mean"]["time"].values) == list(range(2000, 2012))
    years = {"time": np.arange(1900, 1912)}
    idata = sample(line(), idata_kwargs={"coords": years})
    assert list(idata["posterior"]["mean"]["time"].values) == list(range(1900, 1912))


def test_log_likelihood_prediction_and_loo() -> None:
    with pytest.warns(FutureWarning, match="log_likelihood"):
        # As many draws as Pareto shapes are known well from.
        idata = sample(line(), draws=1000, tune=200, idata_kwargs={"log_likelihood": True})
    posterior, model = idata["posterior"], line().model
    y = model["y"].owner and model.rvs_to_values[model["y"]].eval()
    deviation = (y - posterior["mean"]) / posterior["sigma"]
    expected = -0.5 * deviation**2 - np.log(posterior["sigma"] * np.sqrt(2 * np.pi))
    found = idata["log_likelihood"]["y"]
    assert_allclose(found, expected.transpose(*found.dims), rtol=1e-8)

    with model:
        later = pm.compute_log_likelihood(
            sample(line(), draws=1000, tune=200), progressbar=False, extend_inferencedata=False
        )
        pm.sample_posterior_predictive(
            idata, extend_inferencedata=True, progressbar=False, random_seed=1
        )
    assert_allclose(later["y"], found, rtol=1e-8)
    loo = az.loo(idata)
    assert loo.n_data_points == 12
    assert np.isfinite(loo.elpd)
    assert idata["posterior_predictive"]["y"].dims == ("chain", "draw", "time")
    assert float(abs(idata["posterior_predictive"]["y"] - posterior["mean"]).mean()) < 1.0


def test_data_set_after_sampling_moves_predictions() -> None:
    step = line()
    idata = sample(step)
    before = step.model["x"].get_value()
    with step.model:
        pm.set_data({"x": np.full(12, 100.0)})
        found = pm.sample_posterior_predictive(idata, progressbar=False, random_seed=1)
        pm.set_data({"x": before})
    assert float(found["posterior_predictive"]["y"].mean()) > 100.0


@pytest.mark.default_mode
def test_multitrace() -> None:
    with pytest.warns(FutureWarning, match="return_inferencedata"):
        trace = sample(line(), return_inferencedata=False)
    idata = sample(line())
    assert trace.nchains == 2
    assert len(trace) == 20
    for chain in range(2):
        values = trace.get_values("slope", chains=chain)
        assert_array_equal(values, idata["posterior"]["slope"].values[chain])
    assert_array_equal(
        trace.get_sampler_stats("acceptance_rate", chains=0).ravel(),
        idata["sample_stats"]["acceptance_rate"].values[0],
    )


@pytest.mark.parametrize(
    ("option", "bars", "statistics"),
    [
        (False, 0, False),
        (True, 2, True),
        ("combined", 1, False),
        ("split", 2, False),
        ("combined+stats", 1, True),
        ("stats+combined", 1, True),
        ("split+stats", 2, True),
        ("stats+split", 2, True),
    ],
)
@pytest.mark.parametrize("beside", [False, True], ids=["alone", "beside Slice"])
def test_progress_bar(
    option: bool | str,
    bars: int,
    statistics: bool,
    beside: bool,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    step = [half_of_line(), pm.Slice([line().model["sigma"]], model=line().model)]
    with line().model:
        pm.sample(
            step=step if beside else line(),
            draws=5,
            tune=5,
            chains=2,
            cores=1,
            random_seed=1,
            progressbar=option,
            compute_convergence_checks=False,
        )
    shown = capsys.readouterr().out
    assert ("Draw" in shown) == (bars > 0)
    for column in ("Step size", "Accept", "Window", "Sweeps/1000"):
        assert (column in shown) == statistics
    assert shown.count("━━━ ") >= bars
    assert (f" {10 if bars == 1 else 5} " in shown) == (bars > 0)


@cache
def half_of_line() -> DeerStep:
    model = line().model
    step = DeerMALA([model["slope"]], model=model, backend="jax")
    assert isinstance(step, DeerStep)
    return step


def test_every_progress_column_has_its_value() -> None:
    step = line()
    step.setup_chain(np.random.default_rng(0), 0, 1)
    _, [stats] = step.step(step.model.initial_point())
    columns, first = step._progressbar_config(2)
    [update] = step._make_progressbar_update_functions()
    shown = update(stats)
    assert set(shown) == {*first, "failing"}
    # Once there was one, the bar stays red, as that of NUTS.
    assert [update(stats | {"divergences": n})["failing"] for n in (0, 1)] == [False, True]
    assert [len(values) for values in first.values()] == [2] * len(columns)
    fields = SimpleNamespace(fields=shown)
    for column in columns:
        assert column.text_format.format(task=fields)


def test_quiet_says_nothing(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO):
        sample(line(), quiet=True, progressbar=True, compute_convergence_checks=True, draws=200)
    assert capsys.readouterr().out == ""
    assert not [r for r in caplog.records if r.name.startswith("pymc")]
    with caplog.at_level(logging.INFO):
        sample(line())
    assert "DeerMALA: [slope, sigma]" in caplog.text


def test_another_models_step_is_refused_by_pymc() -> None:
    with pm.Model():
        pm.Normal("slope")
        with pytest.raises(ValueError, match="is not a value variable in the model"):
            pm.sample(step=copy.copy(line()), progressbar=False)


@pytest.mark.parametrize(
    ("backend", "sorted_rows"),
    [
        pytest.param(BACKENDS[-1], False, id="as given"),
        *(pytest.param(b, True, id=f"in another order-{b}") for b in BACKENDS),
    ],
)
def test_data_written_to_where_they_are(backend: BackendName, sorted_rows: bool) -> None:
    """Between runs; PyTensor hands out the array that a shared variable has."""
    group = np.repeat(np.arange(2), 30)
    with pm.Model() as model:
        data = pm.Data("data", np.zeros(60))
        level = pm.Normal("level", 0.0, 10.0, shape=2)
        mean = level[group] if sorted_rows else level[0] + 0 * level[1]
        pm.Normal("y", mean, 0.1, observed=data)
        step = DeerMALA(backend=backend, window=1)
    before = step.density.param_values({})
    sample(step)
    model["data"].get_value(borrow=True)[:] = 5.0
    idata = sample(step, tune=200, draws=50)
    assert any(np.shape(value) == (60,) for value in before)
    assert abs(float(idata["posterior"]["level"].isel(level_dim_0=0).mean()) - 5.0) < 0.5


def test_that_check_finds_data_that_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Solver, "forget_data", lambda solver: None)
    monkeypatch.setattr(JaxSolver, "forget_data", lambda solver: None)
    for sorted_rows in (False, True):
        with pytest.raises(AssertionError):
            test_data_written_to_where_they_are("jax", sorted_rows)


@pytest.mark.usefixtures("uncompiled")
def test_a_variable_named_twice_is_one() -> None:
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        step = DeerMALA([scale, model.rvs_to_values[scale], "scale"], backend="jax", window=1)
    assert [var.name for var in step.vars] == ["scale_log__"]
