"""Angles are turned back: on the line, going around would be a walk without end."""

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.density import build_density
from pymc_deer.metric import KINDS, Metric, MetricKind
from pymc_deer.warmup.angles import Angles

SIZE, COLUMNS = 4, np.array([1, 3])
TURN = 2 * np.pi


def some_metric(kind: MetricKind, rank: int = 2) -> Metric:
    rng = np.random.default_rng(3)
    mu, scales = rng.normal(size=SIZE), rng.uniform(0.5, 2.0, SIZE)
    if kind == "low_rank":
        vectors, _ = np.linalg.qr(rng.normal(size=(SIZE, rank)))
        return Metric(mu, scales, vectors, np.array([3.0, -0.7])[:rank])
    factor = np.tril(rng.normal(size=(SIZE, SIZE))) + 2 * np.diag(scales)
    return Metric(mu, scales if kind == "diag" else factor)


@pytest.mark.parametrize("metric", [*map(some_metric, KINDS), some_metric("low_rank", 0)])
def test_states_are_turned_back_in_any_coordinates(metric: Metric) -> None:
    z = 20 * np.random.default_rng(1).normal(size=(50, SIZE))
    angles = Angles.about(COLUMNS, np.array([0.5, -2.0]))
    x, back = metric.to_x(z), metric.to_x(angles.turned_back(metric, z))
    assert_allclose(back, angles.turned_back_in_x(x), atol=1e-11)
    assert (np.abs(back[:, COLUMNS] - angles.centre) <= np.pi + 1e-9).all()
    turns = (x - back)[:, COLUMNS] / TURN
    assert_allclose(turns, np.round(turns), atol=1e-11)
    assert np.abs(turns).max() > 2
    assert_allclose(np.delete(back, COLUMNS, axis=1), np.delete(x, COLUMNS, axis=1), atol=1e-11)


@pytest.mark.parametrize("kind", KINDS)
def test_states_that_do_not_go_around_are_left_as_they_are(kind: MetricKind) -> None:
    z = 0.1 * np.random.default_rng(1).normal(size=(5, SIZE))
    metric = some_metric(kind)
    assert Angles.about_mean(COLUMNS, metric, z).turned_back(metric, z) is z


def test_the_centre_is_where_the_angles_are_whichever_way_they_are_written() -> None:
    """Not at 0, half of whose angles were half a turn off on either side."""
    rng, metric = np.random.default_rng(2), some_metric("diag")
    x = rng.normal(size=(400, SIZE))
    x[:, COLUMNS] = np.pi + 0.1 * rng.normal(size=(400, 2)) + TURN * rng.integers(-3, 4, (400, 2))
    z = (x - metric.mu) / metric.factor
    angles = Angles.about_mean(COLUMNS, metric, z)
    assert_allclose(np.cos(angles.centre), -1.0, atol=1e-3)
    back = metric.to_x(angles.turned_back(metric, z))
    assert_allclose(back[:, COLUMNS].std(axis=0), 0.1, rtol=0.1)


def test_angles_are_the_variables_that_pymc_has_for_such() -> None:
    circular = pm.distributions.transforms.circular
    with pm.Model() as model:
        pm.Normal("a", shape=2)
        pm.VonMises("b", 0.0, 1.0, shape=(2, 2))
        pm.Uniform("c", -np.pi, np.pi, default_transform=circular)
        pm.Uniform("d", -np.pi, np.pi)
    assert_array_equal(build_density(model).layout.columns_of_angles, [2, 3, 4, 5, 6])
    chosen = [model.rvs_to_values[model["d"]], model.rvs_to_values[model["c"]]]
    assert_array_equal(build_density(model, chosen).layout.columns_of_angles, [1])


def test_angles_may_have_axes_with_names() -> None:
    with pm.Model(coords={"i": [0, 1]}) as model:
        pmd.Normal("a", dims="i")
        pmd.VonMises("b", 0.0, 1.0, dims="i")
    assert_array_equal(build_density(model).layout.columns_of_angles, [2, 3])
