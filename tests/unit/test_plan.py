"""How long the calls of a solver are."""

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pymc as pm
import pytest

from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.plan import window_plan
from pymc_deer.chains.prepare import metric_kind, prepare
from pymc_deer.chains.trials import Foreseen
from pymc_deer.density import Density, build_density
from pymc_deer.metric import MetricKind
from pymc_deer.options import OPTIONS, HMCOptions
from tests.support import BACKENDS, quick_xla


def density_of(size: int) -> Density:
    return cast(Any, SimpleNamespace(size=size, n_numbers=1000))


@pytest.mark.parametrize(
    ("n_chains", "capacity"), [(1, 2621), (4, 2621), (64, 327), (256, 256), (10_000, 256)]
)
def test_many_chains_in_a_batch_are_called_for_fewer_transitions(
    n_chains: int, capacity: int
) -> None:
    """Their states, which come back with each call, are then no more than those of few."""
    assert window_plan(1, None, 1e-6, density_of(50), n_chains).capacity == capacity


def test_many_chains_of_large_states_are_called_for_a_few_transitions() -> None:
    """Rows that a batch of few may have each would be tens of gigabytes of many."""
    plans = [window_plan(1, None, 1e-6, density_of(200_000), n) for n in (1, 8, 64, 10_000)]
    assert [plan.capacity for plan in plans] == [83, 83, 10, 1]


def test_windows_are_as_wide_for_many_chains() -> None:
    plans = [window_plan(1024, None, 1e-6, density_of(50), n) for n in (1, 256)]
    assert [plan.capacity for plan in plans] == [4096, 4096]


@pytest.mark.parametrize(
    ("max_sweeps", "narrowed"), [(None, [34, 9]), (16, [6, 6]), (96, [24, 6]), (4, [4, 4])]
)
def test_a_sweep_of_narrower_windows_has_to_pay_as_well(
    max_sweeps: int | None, narrowed: list[int | None]
) -> None:
    """With all the sweeps of the wide ones they would never be narrowed again."""
    plan = WindowPlan(256, max_sweeps, 1e-6, 1024)
    assert [plan.narrowed(times).max_sweeps for times in (1, 2)] == narrowed
    assert [plan.narrowed(times).window for times in (1, 2, 3)] == [64, 16, 1]


@pytest.mark.parametrize("window", [*range(2, 17), 24, 32, 64, 256])
def test_windows_of_any_width_run_out_of_sweeps_before_each_commits_one(window: int) -> None:
    """One transition is sure of each: they would never be narrowed, however little they pay."""
    assert WindowPlan(window, None, 1e-6, 1024).sweep_budget(window) < window


@pytest.mark.parametrize(
    ("window", "size", "capacity"), [(8192, 1000, 16_384), (100, 50_000, 300), (1024, 10**6, 1024)]
)
def test_calls_in_windows_are_whole_windows(window: int, size: int, capacity: int) -> None:
    """Where memory bounds them too; a window that is larger than that has been asked for."""
    assert window_plan(window, None, 1e-6, density_of(size)).capacity == capacity


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_the_chains_of_a_run_count_where_they_are_one_batch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=50)
    density = build_density(model)
    alone = prepared(model, density, 64)
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    batch = prepared(model, density, 64)
    assert (alone.n_together, batch.n_together) == (1, 64)
    assert (alone.plan.capacity, batch.plan.capacity) == (2621, 327)


def prepared(model: pm.Model, density: Density, n_chains: int) -> Any:
    options = HMCOptions.from_arguments({"window": 1, "backend": "jax"})
    with quick_xla():
        return prepare(options, density, model, "jax", alone=True, run=Foreseen(n_chains)).solver


@pytest.mark.parametrize(
    ("kernel", "size", "n_numbers", "kind"),
    [
        ("mala", 100, 1, "dense"),
        ("mala", 101, 10**9, "low_rank"),
        ("hmc", 32, 1, "dense"),
        ("hmc", 33, 33**2 - 1, "low_rank"),
        ("hmc", 33, 33**2, "dense"),
        ("hmc", 101, 10**9, "low_rank"),
    ],
)
def test_a_metric_is_dense_where_its_product_is_cheap(
    kernel: str, size: int, n_numbers: int, kind: MetricKind
) -> None:
    density: Any = SimpleNamespace(size=size, n_numbers=n_numbers)
    options = OPTIONS[kernel].from_arguments({})
    assert metric_kind(options, density) == kind


def test_a_metric_that_is_given_says_what_it_is() -> None:
    kinds = {"diag": np.ones(2), "dense": np.eye(2), "low_rank": "low_rank"}
    for kind, metric in kinds.items():
        options = HMCOptions.from_arguments({"metric": metric})
        assert metric_kind(options, density_of(2)) == kind
