"""What a user is told when something is missing, forbidden or impossible."""

import importlib.util
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
from pymc_deer.backends import resolve_backend
from pymc_deer.options import BackendName
from pymc_deer.status import (
    BackendError,
    DeerError,
    ForkError,
    ModelError,
    OptionError,
    StartError,
)
from pymc_deer.step import DeerStep
from tests.support import SAMPLERS

BOTH_SAMPLERS = pytest.mark.parametrize("sampler", SAMPLERS)


def one_variable() -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, 2.0)
        pm.Deterministic("double", 2 * x)
        pm.Normal("y", x, observed=0.5)
    return model


@pytest.mark.parametrize("name", ["numba", "jax"])
def test_missing_backend_names_its_install_command(
    name: BackendName, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda wanted: None if wanted == name else found(wanted)
    )
    with pytest.raises(BackendError, match=f"The {name} backend needs {name}: pip install {name}"):
        resolve_backend(name)
    with one_variable(), pytest.raises(BackendError, match=f"pip install {name}"):
        DeerMALA(backend=name)


def test_auto_is_numba_without_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pymc_deer.backends, "_jax_has_gpu", lambda: False)
    assert resolve_backend("auto") == "numba"
    monkeypatch.setattr(pymc_deer.backends, "_jax_has_gpu", lambda: True)
    assert resolve_backend("auto") == "jax"


def test_jax_in_another_process_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with one_variable() as model:
        step = DeerMALA(backend="jax")
    step.setup_chain(np.random.default_rng(0), 0, 5)
    point, _ = step.step(model.initial_point())
    step.setup_chain(np.random.default_rng(0), 0, 5)
    with monkeypatch.context() as patch:
        patch.setattr(pymc_deer.backends.jax, "os", SimpleNamespace(getpid=lambda: -1))
        with pytest.raises(ForkError, match=r"mp_ctx='forkserver'.*cores=1.*backend='numba'"):
            step.step(model.initial_point())
    step.setup_chain(np.random.default_rng(0), 0, 5)
    again, _ = step.step(model.initial_point())
    assert again == point


def start_error(model: pm.Model, changes: dict[str, Any] | None = None) -> StartError:
    with model:
        step = DeerMALA(backend="jax")
    step.setup_chain(np.random.default_rng(0), 0, 5)
    with pytest.raises(StartError) as caught:
        step.step({**model.initial_point(), **(changes or {})})
    return caught.value


def test_start_outside_a_potential_names_it() -> None:
    with one_variable() as model:
        pm.Potential("forbidden", pt.switch(model["x"] < 1e6, -np.inf, 0.0))
    error = start_error(model)
    assert str(error).startswith("The chain cannot start: logp of forbidden is -inf.")
    assert "initvals" in str(error)
    assert "model.debug()" in str(error)
    assert isinstance(error, SamplingError)


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


def test_start_without_gradient() -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        # At its minimum the root has a finite value and no slope.
        pm.Potential("root", pt.sqrt(pt.abs(x - 1.0)))
    assert "the gradient of logp is not finite" in str(start_error(model, {"x": np.array(1.0)}))


def test_jitter_avoids_a_bad_start() -> None:
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Potential("hole", pt.switch(pt.abs(x) < 0.5, -np.inf, 0.0))
        step = DeerMALA(backend="jax")
    for seed in range(5):
        step.setup_chain(np.random.default_rng(seed), 0, 5)
        point, _ = step.step(model.initial_point())
        assert abs(point["x"]) >= 0.5


@BOTH_SAMPLERS
def test_compile_kwargs_are_refused(sampler: type[DeerStep]) -> None:
    advice = rf"write {sampler.__name__}\(backend=.* in place of compile_kwargs=\{{'mode'"
    with one_variable(), pytest.raises(OptionError, match=advice):
        sampler(compile_kwargs={"mode": "JAX"})


def test_empty_compile_kwargs_are_accepted() -> None:
    with one_variable():
        assert DeerMALA(backend="jax", compile_kwargs={}).backend == "jax"


@pytest.mark.parametrize("name", ["zz", "double", "y"])
@BOTH_SAMPLERS
def test_not_a_free_variable(name: str, sampler: type[DeerStep]) -> None:
    message = rf"^{sampler.__name__}: {name} is not a free.*are x"
    with one_variable() as model, pytest.raises(OptionError, match=message):
        sampler(name if name == "zz" else [model[name]], backend="jax")


def test_variables_by_name_object_and_value() -> None:
    with one_variable() as model:
        for var in ("x", model["x"], model.rvs_to_values[model["x"]]):
            assert [v.name for v in DeerMALA(var, backend="jax").vars] == ["x"]


@BOTH_SAMPLERS
def test_unknown_argument(sampler: type[DeerStep]) -> None:
    message = rf"^{sampler.__name__} has no argument draws; it takes vars, "
    with one_variable(), pytest.raises(OptionError, match=message):
        sampler(draws=100)


@pytest.mark.parametrize("argument", [{"n_leapfrog": 4}, {"path_length": 1.5}])
def test_paths_are_arguments_of_hmc_alone(argument: dict[str, Any]) -> None:
    with one_variable(), pytest.raises(OptionError, match=r"^DeerMALA has no argument"):
        DeerMALA(**argument)
    with one_variable():
        assert DeerHMC(backend="jax", window=1, **argument).options.kernel == "hmc"


@pytest.mark.parametrize("metric", [np.ones(2), [[1.0], [1.0, 2.0]], None, {"x": 1.0}])
@BOTH_SAMPLERS
def test_wrong_metric_is_reported_when_the_step_is_made(
    metric: Any, sampler: type[DeerStep]
) -> None:
    with one_variable(), pytest.raises(OptionError, match=rf"^{sampler.__name__}\(metric="):
        sampler(backend="jax", metric=metric)


def test_outside_a_model() -> None:
    with pytest.raises(TypeError, match="No model on context stack"):
        DeerMALA()


@BOTH_SAMPLERS
def test_only_discrete_variables(sampler: type[DeerStep]) -> None:
    with pm.Model():
        pm.Bernoulli("k", 0.5)
        message = f"no continuous free variables: {sampler.__name__} has nothing"
        with pytest.raises(ModelError, match=message):
            sampler(backend="jax")


def test_discrete_variable() -> None:
    with pm.Model():
        pm.Normal("x")
        k = pm.Bernoulli("k", 0.5)
        with pytest.raises(ModelError, match=r"^k: discrete variables have no gradient"):
            DeerMALA([k], backend="jax")


def test_data_of_another_shape() -> None:
    with pm.Model() as model:
        data = pm.Data("data", np.zeros(3))
        x = pm.Normal("x")
        pm.Normal("y", x, observed=data)
        step = DeerMALA(backend="jax")
        pm.set_data({"data": np.zeros(4)})
    with pytest.raises(ModelError, match=r"data changed from shape \(3,\) to \(4,\)"):
        step.step(model.initial_point())


def test_dimension_of_another_length() -> None:
    with pm.Model(coords={"group": [1, 2, 3]}) as model:
        pm.Normal("x", dims="group")
        step = DeerMALA(backend="jax")
    model.set_dim("group", 4, coord_values=[1, 2, 3, 4])
    with pytest.raises(ModelError, match=r"x changed from shape \(3,\) to \(4,\)"):
        step.step(model.initial_point())


@pytest.mark.parametrize("error", [OptionError, ModelError, BackendError, ForkError, StartError])
def test_errors_share_a_base(error: type[Exception]) -> None:
    assert issubclass(error, DeerError)
