"""What is refused and what is not, beyond the rows of docs/errors.md (``tests/contract``)."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pymc.exceptions import SamplingError

import pymc_deer.backends
import pymc_deer.backends.jax
from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.backends import jax_process, make_solver, resolve_backend
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.status import (
    BackendError,
    DeerError,
    ForkError,
    ModelError,
    OptionError,
    StartError,
)
from pymc_deer.sweep import SweepSpec
from tests.support import one_variable

pytestmark = pytest.mark.usefixtures("pymc_in_python")


def test_auto_is_numba_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymc_deer.backends, "_jax_has_gpu", lambda: False)
    assert resolve_backend("auto") == "numba"
    monkeypatch.setattr(pymc_deer.backends, "_jax_has_gpu", lambda: True)
    assert resolve_backend("auto") == "jax"


def test_jax_in_another_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_variable() as model:
        step = DeerMALA(backend="jax", window=1)
    step.setup_chain(np.random.default_rng(0), 0, 5)
    point, _ = step.step(model.initial_point())
    step.setup_chain(np.random.default_rng(0), 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(jax_process, "os", SimpleNamespace(getpid=lambda: -1))
        with pytest.raises(ForkError, match=r"mp_ctx='forkserver'.*cores=1.*backend='numba'"):
            step.step(model.initial_point())
    step.setup_chain(np.random.default_rng(0), 0, 5)
    again, _ = step.step(model.initial_point())
    assert again == point


def start_error(model: pm.Model, changes: dict[str, Any] | None = None) -> StartError:
    with model:
        step = DeerMALA(backend="jax", window=1)
    step.setup_chain(np.random.default_rng(0), 0, 5)
    with pytest.raises(StartError) as caught:
        step.step({**model.initial_point(), **(changes or {})})
    return caught.value


def test_start_with_impossible_data_names_the_observed_variable() -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.HalfNormal("positive", pt.exp(x), observed=-1.0)
    assert "logp of positive is -inf" in str(start_error(model))


def test_start_given_by_the_user_is_not_jittered_away() -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("wall", pt.switch(x > 100.0, -np.inf, 0.0))
    assert "logp of wall is -inf" in str(start_error(model, {"x": np.array(100.1)}))


def test_where_nothing_around_the_models_start_will_do_that_does() -> None:
    """Thirty rates that are to be positive, each likely to be jittered below 0."""
    with pm.Model() as model:
        rate = pm.Normal("rate", 0.5, 0.1, shape=30)
        pm.Normal("y", pm.math.log(rate), 0.1, observed=np.full(30, np.log(0.5)))
        step = DeerMALA(backend="jax", window=1)
    step.setup_chain(np.random.default_rng(0), 10, 10)
    after, _ = step.step(model.initial_point())
    assert np.abs(after["rate"] - 0.5).max() < 0.5


def test_jitter_avoids_a_bad_start() -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("hole", pt.switch(pt.abs(x) < 0.5, -np.inf, 0.0))
        step = DeerMALA(backend="jax", window=1)
    for seed in range(5):
        step.setup_chain(np.random.default_rng(seed), 0, 5)
        point, _ = step.step(model.initial_point())
        assert abs(point["x"]) >= 0.5


def test_jitter_finds_a_start_where_few_points_are_one() -> None:
    """One of 25, as of censored survival times that overflow elsewhere."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("narrow", pt.switch(x < 0.92, -np.inf, 0.0))
        step = DeerMALA(backend="jax", window=1)
    for seed in range(5):
        step.setup_chain(np.random.default_rng(seed), 0, 5)
        point, _ = step.step(model.initial_point())
        assert point["x"] >= 0.92


@pytest.mark.usefixtures("uncompiled")
def test_empty_compile_kwargs_are_accepted() -> None:
    with one_variable():
        assert DeerMALA(backend="jax", window=1, compile_kwargs={}).backend == "jax"


@pytest.mark.usefixtures("uncompiled")
def test_variables_by_name_object_and_value() -> None:
    with one_variable() as model:
        for var in ("x", model["x"], model.rvs_to_values[model["x"]], ["x", model["x"]]):
            assert [v.name for v in DeerMALA(var, backend="jax", window=1).vars] == ["x"]


@pytest.mark.usefixtures("uncompiled")
@pytest.mark.parametrize("argument", [{"n_leapfrog": 4}, {"path_length": 1.5}])
def test_paths_are_arguments_of_hmc_alone(argument: dict[str, Any]) -> None:
    with one_variable(), pytest.raises(OptionError, match=r"^DeerMALA has no argument"):
        DeerMALA(**argument)
    with one_variable():
        assert DeerHMC(backend="jax", window=1, **argument).options.kernel == "hmc"


def test_dimension_of_another_length() -> None:
    with pm.Model(coords={"group": [1, 2, 3]}) as model:
        pm.Normal("x", dims="group")
        step = DeerMALA(backend="jax", window=1)
    model.set_dim("group", 4, coord_values=[1, 2, 3, 4])
    with pytest.raises(ModelError, match=r"group changed from shape \(3,\) to \(4,\)"):
        step.step(model.initial_point())


def test_data_in_another_place_are_copied_once() -> None:
    """Column by column, or not to be written to, as pandas gives them."""
    features = np.asfortranarray(np.random.default_rng(0).normal(size=(50, 2)))
    outcome = np.zeros(50)
    outcome.flags.writeable = False
    with pm.Model() as model:
        level = pm.Normal("level", shape=2)
        pm.Normal("y", pm.Data("features", features) @ level, observed=pm.Data("outcome", outcome))
    density, plan = build_density(model), WindowPlan(1, None, 1e-6, 8)
    solver: Any = make_solver("numba", density, SweepSpec("diag", "secant"), plan)
    model["features"].set_value(features, borrow=True)
    model["outcome"].set_value(outcome, borrow=True)
    params = density.param_values({})
    assert not all(p.flags.carray for p in params)
    first, again = solver._writeable(params), solver._writeable(params)
    assert all(a is b and a.flags.carray for a, b in zip(first, again, strict=True))
    solver.forget_data()
    assert not all(a is b for a, b in zip(first, solver._writeable(params), strict=True))


@pytest.mark.parametrize("error", [OptionError, ModelError, BackendError, ForkError, StartError])
def test_errors_share_a_base(error: type[Exception]) -> None:
    assert issubclass(error, DeerError)


def test_a_bad_start_is_an_error_of_sampling() -> None:
    assert issubclass(StartError, SamplingError)
