"""What a model is known by, where a run of it goes on."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.sampling.fingerprint import Fingerprint, _digest
from pymc_deer.sampling.recorder import Values, traced
from pymc_deer.status import ModelError
from pymc_deer.sweep import SweepSpec
from tests.support import BACKENDS


def test_arrays_of_the_same_bytes_are_told_apart() -> None:
    numbers = np.zeros(4)
    others = [numbers.reshape(2, 2), numbers.astype(int), numbers.astype(">i8"), numbers[:3]]
    assert len({_digest(array) for array in (numbers, *others)}) == 5
    matrix = np.arange(6.0).reshape(2, 3)
    assert _digest(matrix.T) == _digest(matrix.T.copy())
    assert _digest(np.array(["a", None], object)) == _digest(np.array(["a", None], object))
    assert _digest(np.array(["a", None], object)) != _digest(np.array(["a", 1], object))


@pytest.fixture(scope="module")
def steep() -> tuple[Fingerprint, Solver, Values]:
    """Of a model whose gradient is 1e8, with the solver of its density and what is recorded."""
    with pm.Model() as model:
        x = pm.Normal("x", 0.0, 1e-4, shape=2)
        pm.Deterministic("none", x * np.nan)
    density = build_density(model)
    plan, spec = WindowPlan(1, None, 1e-6, 256), SweepSpec("diag", "secant", kernel="mala")
    solver = make_solver(BACKENDS[-1], density, spec, plan)
    values = Values(model, density, traced(model, None), 1)
    fingerprint = Fingerprint.of(values, solver, np.ones(2), density.param_values({}))
    return fingerprint, solver, values


@pytest.mark.parametrize(("share", "is_other"), [(1e-9, False), (1e-6, True)])
def test_gradients_differ_by_rounding_where_they_are_large(
    steep: tuple[Fingerprint, Solver, Values], share: float, is_other: bool
) -> None:
    fingerprint, solver, _ = steep
    params = solver.density.param_values({})
    assert np.abs(fingerprint.dlogp).min() >= 1e8
    fingerprint.refuse_other_density(solver, params)
    moved = replace(fingerprint, dlogp=fingerprint.dlogp * (1 + share))
    if is_other:
        with pytest.raises(ModelError, match="another gradient"):
            moved.refuse_other_density(solver, params)
    else:
        moved.refuse_other_density(solver, params)


def test_values_that_are_nan_are_the_same(steep: tuple[Fingerprint, Solver, Values]) -> None:
    fingerprint, _, values = steep
    assert np.isnan(fingerprint.sums["none"])
    fingerprint.refuse_other_values(values)
    with pytest.raises(ModelError, match="other values of none"):
        replace(fingerprint, sums={"x": fingerprint.sums["x"], "none": 1.0}).refuse_other_values(
            values
        )
