"""Sums by group by tables of each group's rows, as on a GPU, are those of rows one by one."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.graph.traversal import ancestors
from pytensor.tensor.subtensor import AdvancedIncSubtensor

import pymc_deer.ops.group_tables_jax  # noqa: F401
from pymc_deer.backends import make_solver
from pymc_deer.backends.placement import OneDevice
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import Density, build_density
from pymc_deer.metric import identity_metric
from pymc_deer.ops.group_tables import Tables, summed_by_tables
from pymc_deer.sweep import SweepSpec
from tests.support import quick_xla

GROUPS, N = 40, 150
_rng = np.random.default_rng(20_261_126)
# All groups but the last one, of different sizes.
INDEX = _rng.permutation(np.concatenate([np.arange(GROUPS - 1), _rng.integers(0, GROUPS - 1, 111)]))
FEATURES, Y = _rng.normal(size=(N, 3)), _rng.normal(size=N)


@pytest.fixture(autouse=True)
def few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymc_deer.ops.group_tables._MANY", GROUPS - 1)


def intercepts(index: Any = INDEX) -> None:
    pm.Normal("y", pm.Normal("a", pm.Normal("mu"), shape=GROUPS)[index], 1.5, observed=Y)


def slopes() -> None:
    a, b = pm.Normal("a", shape=GROUPS), pm.Normal("b", shape=(GROUPS, 3))
    eta = a[INDEX] + (FEATURES * b[INDEX]).sum(axis=1)
    pm.Bernoulli("y", logit_p=eta, observed=Y > 0)


def counted_from_the_last() -> None:
    intercepts(INDEX - GROUPS * (np.arange(N) % 2))


def of_sums() -> None:
    """Sums by group of what follows from other sums by group."""
    sums = pt.zeros(GROUPS)[INDEX].inc(pm.Normal("a", shape=N))
    pm.Normal("y", (sums**2)[INDEX], 1.5, observed=Y)


def added_to_others() -> None:
    sums = pm.Normal("b", shape=GROUPS)[INDEX].inc(pm.Normal("a", shape=N))
    pm.Potential("y", -pt.sum(sums**2))


BY_TABLES = [intercepts, slopes, counted_from_the_last, of_sums, added_to_others]


def data_that_may_change() -> None:
    intercepts(pm.Data("index", INDEX))


def of_very_different_sizes() -> None:
    intercepts(np.where(np.arange(N) < 100, 0, INDEX))


def few_groups() -> None:
    index = INDEX % (GROUPS // 2)
    pm.Normal("y", pm.Normal("a", shape=GROUPS // 2)[index], 1.5, observed=Y)


def of_columns() -> None:
    a = pm.Normal("a", shape=(GROUPS, 4))
    pm.Normal("y", a[INDEX, np.arange(N) % 4], 1.5, observed=Y)


AS_THEY_ARE = [data_that_may_change, of_very_different_sizes, few_groups, of_columns]


def built(rows: Callable[[], None]) -> Density:
    with pm.Model() as model:
        rows()
    return build_density(model)


def count_additions(density: Density) -> int:
    nodes = {v.owner for v in ancestors([density.logp, density.dlogp]) if v.owner}
    return sum(isinstance(node.op, AdvancedIncSubtensor) for node in nodes)


@pytest.mark.parametrize(
    ("rows", "n_tables"),
    # One table and several differ in how sums are joined, whatever the rows are.
    [*((rows, 3) for rows in BY_TABLES), (slopes, 1)],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_logp_and_gradient_are_those_without_tables(
    rows: Callable[[], None], n_tables: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pymc_deer.ops.group_tables._ANOTHER", 10 if n_tables > 1 else 2**21)
    tables = Tables.of(INDEX, (GROUPS,))
    assert tables is not None
    assert len(tables.rows) >= n_tables
    given = built(rows)
    ours = summed_by_tables(given)
    assert count_additions(given) > 0
    assert count_additions(ours) == 0
    sizes = [(given.size,), (4, given.size)]
    x, xs = (pt.tensor(dtype=given.dtype, shape=size) for size in sizes)
    states = [np.random.default_rng(1).normal(size=size) for size in sizes]
    found = []
    for density in (given, ours):
        inputs = [x, xs, *density.params]
        outputs = [*density.single.both(x), *density.batch.both(xs)]
        with quick_xla():
            function: Any = pytensor.function(inputs, outputs, mode="JAX")
            found.append(function(*states, *density.param_values({})))
    for one, other in zip(*found, strict=True):
        assert np.isfinite(one).all()
        assert_allclose(other, one, rtol=1e-11, atol=1e-11)


def test_tables_of_groups_of_similar_sizes_leave_few_places_empty() -> None:
    index = np.random.default_rng(2).integers(0, 50_000, 500_000)
    together = Tables.of(index, (50_000,))
    apart = Tables.of(index, (50_000, 20))
    assert together is not None
    assert apart is not None
    # A table's kernel takes longer than to add up what the places of one number leave empty.
    assert len(together.rows) == 1
    assert 2 <= len(apart.rows) <= 4
    assert sum(table.size for table in apart.rows) < 1.4 * len(index)
    assert sum(table.size for table in together.rows) > 2 * len(index)


def test_tables_are_those_that_take_the_least_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymc_deer.ops.group_tables._ANOTHER", 25)
    counts = np.array([4, 0, 1, 4, 2, 7, 2, 4, 3, 1])
    tables = Tables.of(np.repeat(np.arange(10), counts), (10, 4))
    assert tables is not None
    sizes = np.unique(counts)

    def time(chosen: Sequence[int]) -> int:
        places = np.array(chosen)[np.searchsorted(chosen, counts)]
        return 25 * len(chosen) + 4 * int(places.sum())

    ways = [(*some, 7) for n in range(len(sizes)) for some in combinations(sizes[:-1], n)]
    chosen = [table.shape[1] for table in tables.rows]
    assert time(chosen) == min(map(time, ways))
    assert len({time(way) for way in ways}) > 2


def test_tables_in_the_other_order_than_their_groups(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """PyTensor reports mistakes of its rewrites to the standard error stream, and goes on."""
    monkeypatch.setattr("pymc_deer.ops.group_tables._MANY", 0)
    monkeypatch.setattr("pymc_deer.ops.group_tables._ANOTHER", 1)
    index = np.array([0, 0, 0, 1])
    tables = Tables.of(index, (2,))
    assert tables is not None
    assert tables.order.tolist() == [1, 0]
    rows = pt.dvector("rows", shape=(4,))
    sums: Any = pytensor.function([rows], tables.added_up(rows), mode=Mode("py", "fast_run"))
    assert sums(np.arange(4.0)).tolist() == [3.0, 3.0]
    assert sums(2.0 ** np.arange(4)).tolist() == [7.0, 8.0]
    assert not capfd.readouterr().err


@pytest.mark.parametrize("dtype", ["uint8", "int8", "uint16"])
def test_indices_of_a_type_that_has_not_so_many_numbers(dtype: str) -> None:
    n_groups = int(np.iinfo(dtype).max) + 1
    index = np.random.default_rng(0).permutation(np.arange(2 * n_groups) % n_groups).astype(dtype)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("a", shape=n_groups)[index], 1.5, observed=np.zeros(len(index)))
    assert count_additions(summed_by_tables(build_density(model))) == 0


@pytest.mark.parametrize("rows", AS_THEY_ARE, ids=lambda f: f.__name__)
def test_other_sums_stay_as_they_are(rows: Callable[[], None]) -> None:
    given = built(rows)
    ours = summed_by_tables(given)
    assert count_additions(given) > 0
    assert ours is given


def test_a_gpu_goes_by_tables_and_makes_the_same_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step and in windows, as a CPU does step by step."""
    density = built(slopes)
    params, spec = density.param_values({}), SweepSpec("diag", "secant", kernel="hmc")
    tuning = Tuning(0.1, 1.0, identity_metric("diag", density.size))
    tape = Streams.spawn(np.random.default_rng(2)).tape(60, density.size, tuning)
    tape = replace(tape, n_leapfrog=np.full(60, 3))
    found, summed = [], []

    def by_tables(density: Density) -> Density:
        summed.append(summed_by_tables(density))
        return summed[-1]

    monkeypatch.setattr("pymc_deer.backends.jax_programs.summed_by_tables", by_tables)
    for on_cpu, window in ((True, 1), (False, 1), (False, 16)):
        monkeypatch.setattr(OneDevice, "on_cpu", on_cpu)
        monkeypatch.setattr("pymc_deer.backends.placement.gpu_options", lambda: None)
        solver = make_solver("jax", density, spec, WindowPlan(window, None, 1e-10, 60))
        rng = np.random.default_rng(3)
        with quick_xla():
            found.append(solver.solve(np.zeros(density.size), tape, tuning, params, rng))
    assert list(map(count_additions, summed)) == [0, 0]
    expected, *ours = found
    for one in ours:
        assert one.n_fallback == 0
        assert_allclose(one.z, expected.z, atol=1e-9)
