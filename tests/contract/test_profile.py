"""A profile of small models: what belongs together does, and what cannot run says why."""

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_allclose

import pymc_deer
from pymc_deer.examples import eight_schools
from pymc_deer.profiling.cost_shares import FUNCTION_COST
from pymc_deer.profiling.report import Profile
from pymc_deer.status import StartError
from tests.support import BACKENDS, Parabola, hide_package, one_variable

WINDOWS = (4, 16)


@pytest.fixture(scope="module")
def report() -> Profile:
    """Eight schools, whose programs other tests compile too, on all backends under test."""
    return pymc_deer.profile(eight_schools(), windows=WINDOWS, backends=BACKENDS)


def test_each_backend_has_its_widths(report: Profile) -> None:
    frame = report.to_dataframe()
    rows = list(zip(frame["backend"], frame["window"], strict=True))
    assert rows == [(backend, width) for backend in BACKENDS for width in (1, *WINDOWS)]
    assert set(report.libraries) == set(BACKENDS)
    assert not frame["note"].any()
    assert (report.n_dim, report.dtype, report.metric) == (10, "float64", "dense")


def test_the_numbers_belong_together(report: Profile) -> None:
    for backend, frame in report.to_dataframe().groupby("backend"):
        alone, windowed = frame.iloc[0], frame.iloc[1:]
        assert alone["sweeps_per_1000"] == 0, backend
        assert_allclose(1e6 / alone["gradient_us"], alone["transitions_per_second"])
        # A transition takes its sweeps, each 2 W gradients.
        sweep = 2 * windowed["window"] * windowed["gradient_us"]
        seconds = 1e-6 * sweep * windowed["sweeps_per_1000"] / 1000
        assert_allclose(seconds * windowed["transitions_per_second"], 1.0)
        gain = windowed["transitions_per_second"] / alone["transitions_per_second"]
        assert_allclose(gain, windowed["pays_below"] / windowed["sweeps_per_1000"])
        assert_allclose(frame["memory_bytes"] / frame["window"], alone["memory_bytes"])
        assert (frame["compile_seconds"] > 0).all()


def test_sweeps_are_a_matter_of_the_chain_not_of_the_backend(report: Profile) -> None:
    frame = report.to_dataframe().pivot_table(
        index="window", columns="backend", values="sweeps_per_1000"
    )
    assert (frame.loc[4] > frame.loc[16]).all()
    # At most one sweep for each transition, at least one for each window.
    assert (frame.loc[16] >= 1000 / 16).all()
    assert (frame.loc[4] <= 1000).all()
    for column in frame:
        assert_allclose(frame[column], frame[frame.columns[0]], rtol=0.05)


def test_a_model_that_jax_cannot_compile_says_so() -> None:
    with pm.Model() as model:
        pm.Potential("term", Parabola()(pm.Normal("x")))
    report = pymc_deer.profile(model, windows=WINDOWS, backends=["jax"])
    frame = report.to_dataframe()
    assert frame["note"].str.startswith("JAX cannot compile this model").all()
    assert frame["transitions_per_second"].isna().all()
    assert "JAX cannot compile this model" in str(report)
    assert report.recommendation.startswith("No backend that was measured runs this model")
    assert "try profile(backends=['numba'])" in report.recommendation


def test_a_backend_that_is_missing_leaves_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    hide_package(monkeypatch, "numba")
    report = pymc_deer.profile(one_variable(), windows=[1])
    numba, jax = report.costs
    assert numba.note == "The numba backend needs numba: pip install numba"
    assert jax.is_measured
    assert list(report.libraries) == ["jax"]


def test_variables_of_other_steps_stay_where_they_are() -> None:
    with pm.Model() as model:
        pm.Normal("x", pm.Bernoulli("k", 0.5))
    report = pymc_deer.profile(model, windows=[1], backends=["jax"])
    assert (report.n_dim, report.discrete) == (1, ("k",))
    assert "beside PyMC's steps for k" in report.recommendation


@pytest.mark.parametrize("n", [10, 100])
def test_data_are_counted(n: int) -> None:
    """The few are constants of what is compiled, the many are given to it."""
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("m"), 1.0, observed=np.linspace(0.0, 1.0, n))
    report = pymc_deer.profile(model, windows=[1], backends=["jax"])
    assert (report.n_data, report.data_bytes) == (n, 8 * n)


def test_probabilities_that_depend_on_data_are_counted() -> None:
    rng = np.random.default_rng(0)
    with pm.Model() as model:
        x = pm.Data("x", rng.normal(size=(60, 2)))
        p = pm.math.softmax(x @ pm.Normal("beta", shape=(2, 3)), axis=-1)
        pm.Categorical("y", p, observed=rng.integers(0, 3, size=60))
    report = pymc_deer.profile(model, windows=[1], backends=["jax"])
    assert report.costs[0].is_measured
    # Products with the data, and at least an exponential and a logarithm for each probability.
    assert report.work.matrix >= 2 * 2 * 60 * 2 * 3
    assert report.work.elementwise >= 2 * FUNCTION_COST * 60 * 3


def test_a_model_that_cannot_start_is_an_error() -> None:
    with pm.Model() as model:
        pm.Potential("wall", pm.math.switch(pm.Normal("x") < 100.0, -np.inf, 0.0))
    with pytest.raises(StartError, match="logp of wall is -inf"):
        pymc_deer.profile(model, backends=["jax"])
