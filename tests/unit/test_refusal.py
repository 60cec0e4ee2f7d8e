"""What is refused before a chain runs is impossible; what looks like it is not."""

from collections.abc import Callable

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pymc.distributions.transforms import circular

from pymc_deer import DeerMALA
from pymc_deer.chains.refusal import refuse_data
from pymc_deer.status import ModelError
from tests.support import sample

pytestmark = pytest.mark.usefixtures("pymc_in_python")


def plateau() -> None:
    """Proper, and flat around its start."""
    x = pm.Flat("x")
    pm.Potential("walls", -pt.sum(pt.maximum(pt.abs(x) - 50.0, 0.0)))


def far_from_data() -> None:
    """No gradient is left at either end, as in any posterior of a separable logistic."""
    pm.Bernoulli("y", logit_p=pm.Flat("x"), observed=[0, 1, 1])


def at_its_mode() -> None:
    """The gradient is 0 in every element, where PyMC starts."""
    pm.Normal("x", shape=3)


def steps() -> None:
    """Proper, and flat between its steps."""
    pm.Potential("steps", -pt.abs(pt.floor(pm.Flat("x"))))


def masked() -> None:
    """NaN in a covariate, which the model leaves out."""
    covariate = pt.as_tensor([0.3, np.nan])
    known = pt.where(pt.isnan(covariate), 0.0, covariate)
    pm.Normal("y", pm.Normal("x") * known, observed=[1.0, 2.0])


def nan_in_shared_data() -> None:
    pm.Normal("y", pm.Normal("x") * pytensor.shared(np.array([1.0, np.nan])), observed=[1.0, 2.0])


def nan_in_what_was_observed() -> None:
    observed = pytensor.shared(np.array([1.0, np.nan]))
    pm.Normal("y", pm.Normal("x"), observed=observed, shape=2)


def nan_in_a_potential() -> None:
    pm.Potential("y", -((pm.Normal("x") - pt.as_tensor([1.0, np.nan])) ** 2).sum())


@pytest.mark.parametrize(
    "build", [nan_in_shared_data, nan_in_what_was_observed, nan_in_a_potential]
)
def test_nan_is_found_wherever_data_are(build: Callable[[], None]) -> None:
    with pm.Model() as model:
        build()
        # Its own data are in order, wherever it starts.
        pm.Potential("wall", pt.switch(pt.gt(model["x"], 1.0), 0.0, -np.inf))
    with pytest.raises(ModelError, match=r"^logp of y is NaN, and there is NaN in the data"):
        refuse_data(model, model.initial_point())


def any_angle() -> None:
    """Uniform all round the circle."""
    pm.Uniform("phi", -np.pi, np.pi, shape=2, default_transform=circular)


@pytest.mark.parametrize("build", [plateau, far_from_data, at_its_mode, steps, masked, any_angle])
def test_proper_posteriors_pass(build: Callable[[], None]) -> None:
    with pm.Model():
        build()
        DeerMALA(backend="jax", window=1)


def test_the_first_idle_element_of_each_variable_is_named() -> None:
    with pm.Model():
        table, row = pm.Flat("table", shape=(2, 2)), pm.HalfFlat("row", shape=2)
        pm.Normal("y", table[0, 0] + row, observed=[1.0, 2.0])
        pm.Normal("z", pm.Flat("column", shape=3)[1], observed=1.0)
        with pytest.raises(ModelError, match=r"^table\[0, 1\], column\[0\]: logp does not change"):
            DeerMALA(backend="jax", window=1)


def test_an_idle_element_is_named_beside_one_that_is_flat_around_its_start() -> None:
    with pm.Model():
        plateau()
        pm.Normal("z", pm.Flat("idle", shape=2)[0], observed=1.0)
        with pytest.raises(ModelError, match=r"^idle\[1\]: logp does not change"):
            DeerMALA(backend="jax", window=1)


def test_a_bad_default_start_is_not_the_datas_fault() -> None:
    """NaN lies in data that logp survives; where it starts decides, and the user may yet say."""
    with pm.Model() as model:
        masked()
        pm.Potential("root", pt.sqrt(model["x"] - 1.0))
        step = DeerMALA(backend="jax", window=1)
    drawn = sample(step, initvals={"x": 3.0}, tune=5, draws=5)
    assert (drawn["posterior"]["x"] > 1.0).all()


def test_a_window_beyond_memory_is_made_narrower(monkeypatch: pytest.MonkeyPatch) -> None:
    """The chain is the same, and the user is told."""

    def draws(free: float, warning: str | None) -> tuple[int, np.ndarray]:
        monkeypatch.setattr("pymc_deer.backends.base.available_memory", lambda: free)
        with pm.Model():
            pm.Normal("x", shape=4)
            arguments = {"backend": "jax", "window": 64, "jacobian": "secant", "curvature": 1.5}
            if warning is None:
                step = DeerMALA(**arguments)
            else:
                with pytest.warns(UserWarning, match=warning) as warned:
                    step = DeerMALA(**arguments)
                assert [one.filename for one in warned] == [__file__]
        drawn = sample(step, tune=5, draws=5, chains=1)
        return step.calibration.window, np.asarray(drawn["posterior"]["x"])

    window, wide = draws(1e12, None)
    assert window == 64
    window, narrow = draws(2e5, r"^Windows of 64 transitions do not fit .* are \d+ wide\.$")
    assert 8 <= window < 64
    np.testing.assert_allclose(narrow, wide, atol=1e-4)
    window, single = draws(100.0, r"^Windows of 64 .* so the chain runs step by step\.$")
    assert window == 1
    np.testing.assert_allclose(single, wide, atol=1e-4)
