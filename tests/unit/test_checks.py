"""Checks in a model: those of the state reject it, others raise as PyTensor has them."""

from typing import Any

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.logprob.utils import CheckParameterValue, ParameterValueError
from pytensor.raise_op import Assert

from pymc_deer.density import build_density
from pymc_deer.graphs.checks import failures_rejected, term_logps

POSITIVE, BELOW_TWO = Assert("x is negative"), CheckParameterValue("x is large")


def compiled(inputs: list[Any], output: Any) -> Any:
    return pytensor.function(inputs, output, mode="FAST_COMPILE")


def test_a_state_that_fails_a_check_has_no_density() -> None:
    x = pt.dscalar("x")
    checked = BELOW_TWO(POSITIVE(x, pt.gt(x, 0.0)), pt.lt(x, 2.0))
    logp = compiled([x], failures_rejected(checked**2, [x]))
    assert [float(logp(at)) for at in (1.5, -1.0, 3.0)] == [2.25, -np.inf, -np.inf]


def test_a_check_of_what_has_passed_another_holds_both() -> None:
    x = pt.dscalar("x")
    passed = POSITIVE(x, pt.gt(x, 0.0))
    logp = compiled([x], failures_rejected(BELOW_TWO(passed, pt.lt(passed, 2.0)), [x]))
    assert [float(logp(at)) for at in (1.5, -1.0, 3.0)] == [1.5, -np.inf, -np.inf]


def test_a_check_of_data_raises() -> None:
    x, data = pt.dscalar("x"), pt.dvector("data")
    good = BELOW_TWO(data, pt.all(pt.lt(data, 2.0)), pt.gt(x, 0.0))
    logp = compiled([x, data], failures_rejected(x * good.sum(), [x]))
    assert logp(1.0, [0.5, 1.0]) == 1.5
    assert logp(-1.0, [0.5, 1.0]) == -np.inf
    with pytest.raises(ParameterValueError, match="x is large"):
        logp(1.0, [3.0])


def test_without_checks_nothing_is_added() -> None:
    x = pt.dscalar("x")
    assert failures_rejected(x, [x]) is x


def test_each_state_of_a_batch_is_checked_by_itself() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("term", -(POSITIVE(x, pt.all(pt.gt(x, 0.0))) ** 4).sum())
    density = build_density(model)
    rows = pt.matrix("rows", shape=(3, 2))
    batch = compiled([rows], density.batch.both(rows))
    logp, dlogp = batch([[1.0, 2.0], [-1.0, 2.0], [0.5, 0.1]])
    assert_array_equal(np.isfinite(logp), [True, False, True])
    assert np.isfinite(dlogp).all()


@pytest.mark.usefixtures("pymc_in_python")
@pytest.mark.parametrize("check_bounds", [True, False])
def test_parameters_are_checked_in_loops_as_the_model_asks(check_bounds: bool) -> None:
    """Of Gamma's logp the formula alone is finite where alpha is negative."""

    def term(now: Any, total: Any, alpha: Any) -> Any:
        return total + pm.logp(pm.Gamma.dist(alpha, 1.0), now)

    y, zero = pt.as_tensor(np.array([0.1, 0.4, 0.2])), pt.constant(0.0, dtype="float64")
    with pm.Model(check_bounds=check_bounds) as model:
        loop: Any = pytensor.scan(term, y, zero, [pm.Normal("alpha")], return_updates=False)
        pm.Potential("steps", loop[-1])
    density = build_density(model)
    ours, theirs = compiled([density.x], density.logp), model.compile_logp()
    for alpha in (0.5, -0.5):
        assert_allclose(ours([alpha]), theirs({"alpha": np.array(alpha)}), rtol=1e-12)
    assert np.isfinite(ours([-0.5])) == (not check_bounds)
    assert np.isfinite(term_logps(model, {"alpha": np.array(-0.5)})["steps"]) == (not check_bounds)


def test_checks_that_the_model_leaves_out_are_no_terms() -> None:
    with pm.Model(check_bounds=False) as model:
        pm.Gamma("y", pm.Normal("alpha"), 1.0, observed=1.0)
    for alpha in (0.5, -0.5):
        assert np.isfinite(term_logps(model, {"alpha": np.array(alpha)})["y"])


@pytest.mark.usefixtures("pymc_in_python")
def test_terms_are_pymcs_but_for_checks() -> None:
    with pm.Model(coords={"i": range(2)}) as model:
        x = pm.Normal("x", initval=-1.0)
        z = pmd.Normal("z", dims="i")
        pm.Normal("y", POSITIVE(x, pt.gt(x, 0.0)), observed=[1.0, 2.0])
        pmd.Potential("wall", -(z**4).sum())
    point = model.initial_point()
    terms = term_logps(model, point)
    assert terms["y"] == -np.inf
    with pytest.raises(AssertionError, match="x is negative"):
        model.point_logps(point)
    expected = model.point_logps(point | {"x": np.array(1.0)})
    found = term_logps(model, point | {"x": np.array(1.0)})
    assert list(found) == list(expected) == ["x", "z", "y", "wall"]
    assert {name: np.round(value, 2) for name, value in found.items()} == expected
