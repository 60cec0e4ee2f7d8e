"""Observations change places where sums by group are faster for it, and nothing else changes."""

from collections.abc import Callable
from typing import Any
from unittest.mock import patch

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.graph.basic import Constant
from pytensor.graph.traversal import ancestors

from pymc_deer.density import Density, build_density
from pymc_deer.graphs.row_order import _BLOCK, _CACHED, RowOrder, in_fast_order

N, GROUPS = 120, 6
_rng = np.random.default_rng(20_251_125)
SORTED = np.repeat(np.arange(GROUPS), N // GROUPS)
SHUFFLED = _rng.permutation(SORTED)
FEATURES = _rng.normal(size=(N, 3))
Y = _rng.normal(size=N) + SORTED
COUNTS = _rng.poisson(np.exp(SORTED / 4))


def intercepts() -> pt.TensorVariable:
    spread = pm.HalfNormal("spread")
    return pm.Normal("a", 0.0, spread, shape=GROUPS)


def normal(index: np.ndarray = SORTED) -> None:
    pm.Normal("y", intercepts()[index] + FEATURES[:, 0], 1.5, observed=Y)


def regression() -> None:
    b = pm.Normal("b", shape=3)
    pm.Poisson("y", pm.math.exp(intercepts()[SORTED] + FEATURES @ b), observed=COUNTS)


def slopes() -> None:
    b = pm.Normal("b", shape=(GROUPS, 3))
    p = pm.math.invlogit((b[SORTED] * FEATURES).sum(axis=1) + intercepts()[SORTED])
    pm.Bernoulli("y", p, observed=Y > 2)


def columns() -> None:
    """Of a matrix, whose gradient is put together column by column."""
    b = pm.Normal("b", shape=(GROUPS, 2))
    pm.Normal("y", b[SORTED, 0] + b[SORTED][:, 1] * FEATURES[:, 1], 1.0, observed=Y)


def two_indices() -> None:
    b = pm.Normal("b", shape=(GROUPS, 4))
    pm.Normal("y", b[SORTED, np.arange(N) // 10 % 4], 1.0, observed=Y)


def mixture() -> None:
    """An array [N, 2] of log-probabilities, with functions of its rows."""
    mu = intercepts()[SORTED]
    parts = pm.Normal.dist(pt.stack([mu, mu + 3.0], axis=1), 1.0)
    pm.Mixture("y", w=np.array([0.3, 0.7]), comp_dists=parts, observed=Y)


REORDERED = [normal, regression, slopes, columns, two_indices, mixture]


def shuffled() -> None:
    normal(SHUFFLED)


def autoregression() -> None:
    """Rows that follow on one another."""
    residual = Y - intercepts()[SORTED]
    pm.Potential("y", -((residual[1:] - 0.5 * residual[:-1]) ** 2).sum())


def running_sum() -> None:
    pm.Normal("y", pt.cumsum(intercepts()[SORTED]), 1.0, observed=Y)


def effects_of_rows() -> None:
    """Each row has a parameter, whose place is its own; its gradient does not tell."""
    above = pt.gt(pm.Normal("e", shape=N), 0.0)
    pm.Normal("y", intercepts()[SORTED] + above, 1.0, observed=Y)


def some_rows() -> None:
    pm.Normal("y", (intercepts()[SORTED] + FEATURES[:, 0])[::2], 1.0, observed=Y[::2])


def rows_by_rows() -> None:
    """A matrix with an axis of rows at which nobody looks as rows."""
    covariance = np.exp(-np.abs(np.subtract.outer(np.arange(N), np.arange(N))))
    pm.MvNormal("y", intercepts()[SORTED], cov=covariance, observed=Y)


def looked_up_in_data() -> None:
    """Of as many numbers as there are rows, but by another index."""
    index = (np.arange(N) * 7 + 3) % N
    pm.Normal("y", intercepts()[SORTED] + pm.Data("table", Y)[index], 1.0, observed=Y)


def first_rows_of_data() -> None:
    """Of an array whose other rows would take their places."""
    data = pm.Data("data", Y)
    pm.Normal("y", intercepts()[SORTED] + data, 1.0, observed=FEATURES[:, 0])
    pm.Potential("first", -((data[:10] - pm.Normal("m")) ** 2).sum())


def last_of_each_group() -> None:
    """Numbers that are set, not added: which of them stays is a matter of order."""
    residual = Y - intercepts()[SORTED]
    last = pt.set_subtensor(pt.zeros(GROUPS)[SORTED], residual)
    pm.Potential("y", -(last**2).sum() - (residual**2).sum())


def a_column_of_rows() -> None:
    """Put into data, of what is each row's own; its gradient does not tell."""
    above = pt.gt(pm.Normal("e", shape=N), 0.0).astype("float64")
    features = pt.set_subtensor(pt.as_tensor(FEATURES)[:, 1], above)
    pm.Normal("y", intercepts()[SORTED] + features @ pm.Normal("b", shape=3), 1.0, observed=Y)


LEFT_ALONE = [
    *(shuffled, autoregression, running_sum, effects_of_rows, some_rows, rows_by_rows),
    *(looked_up_in_data, first_rows_of_data, last_of_each_group, a_column_of_rows),
]


def built(rows: Callable[[], None]) -> Density:
    with pm.Model() as model:
        rows()
    return build_density(model)


def built_as_it_is(rows: Callable[[], None]) -> Density:
    with patch("pymc_deer.density.in_fast_order", lambda outputs, values: (list(outputs), {})):
        return built(rows)


def compiled(density: Density) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Logp and gradient, of the data as they are when it is called."""
    outputs = [density.logp, density.dlogp]
    inputs = [density.x, *density.params]
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    function: Any = pytensor.function(inputs, outputs, **options)
    return lambda x: function(x, *density.param_values({}))


def data_of(density: Density) -> list[np.ndarray]:
    """All data of N rows, inputs and constants."""
    constants = (v for v in ancestors([density.logp, density.dlogp]) if isinstance(v, Constant))
    arrays = [np.asarray(v.data) for v in constants if isinstance(v.data, np.ndarray)]
    return [a for a in [*density.param_values({}), *arrays] if a.shape[:1] == (N,)]


@pytest.mark.parametrize("rows", REORDERED, ids=lambda f: f.__name__)
def test_rows_change_places_together(rows: Callable[[], None]) -> None:
    ours, plain = built(rows), built_as_it_is(rows)
    order = np.random.default_rng(N).permutation(N)
    moved = {a[order].tobytes() for a in data_of(plain)}
    assert {a.tobytes() for a in data_of(ours)} == moved
    assert moved != {a.tobytes() for a in data_of(plain)}
    of_ours, of_plain = compiled(ours), compiled(plain)
    for x in np.random.default_rng(0).normal(size=(3, ours.size)):
        for found, expected in zip(of_ours(x), of_plain(x), strict=True):
            assert_allclose(found, expected, rtol=1e-11)


@pytest.mark.parametrize("rows", LEFT_ALONE, ids=lambda f: f.__name__)
def test_rows_stay_where_they_are_not_alike_or_nothing_is_gained(rows: Callable[[], None]) -> None:
    calls = []

    def noted(outputs: Any, values: Any) -> Any:
        calls.append((outputs, *in_fast_order(outputs, values)))
        return calls[-1][1:]

    with patch("pymc_deer.density.in_fast_order", noted):
        built(rows)
    [(given, found, orders)] = calls
    assert orders == {}
    assert all(one is other for one, other in zip(found, given, strict=True))


def lagged(residual: Any, own: Any, groups: Any) -> Any:
    """Rows beside those before them, by a row more at either end."""
    none = np.zeros(1)
    here, before = pt.concatenate([residual, none]), pt.concatenate([none, residual])
    return ((here - 0.5 * before) ** 2).sum()


def added_to_data(residual: Any, own: Any, groups: Any) -> Any:
    where = (np.arange(N) * 7 + 3) % N
    return (pt.inc_subtensor(pt.as_tensor(Y)[where], residual) ** 2).sum()


def halves(residual: Any, own: Any, groups: Any) -> Any:
    one, two = pt.split(residual, [N // 2, N // 2], axis=0)
    return ((one - 0.5 * two) ** 2).sum()


def filled(residual: Any, own: Any, groups: Any) -> Any:
    return (pt.alloc(residual, 3, N).max(axis=0) * own).sum()


def filled_by_rows(residual: Any, own: Any, groups: Any) -> Any:
    """What fills an array is the same along its new axis alone."""
    return (pt.alloc(own, 3, N) * residual).sum()


def chosen(residual: Any, own: Any, groups: Any) -> Any:
    """By two indices, one of which stays where it is."""
    columns = pt.outer(groups, pt.as_tensor([1.0, 3.0]))
    return ((Y - columns[SORTED, pt.gt(own, 0).astype("int64")]) ** 2).sum()


def second_axis(residual: Any, own: Any, groups: Any) -> Any:
    rows = pt.outer(pt.as_tensor([1.0, 3.0]), groups)
    return (rows[:, SORTED].max(axis=0) * own).sum()


def added_to_a_column(residual: Any, own: Any, groups: Any) -> Any:
    """Of an array whose rows are others' and stay where they are."""
    return (pt.inc_subtensor(pt.stack([own, own], axis=1)[:, 0], residual) ** 2).sum()


def added_to_each(residual: Any, own: Any, groups: Any) -> Any:
    """By as many dimensions fewer, so that its rows are those of another axis."""
    sums = pt.inc_subtensor(pt.zeros((3, N, 2))[:, :, 0], residual)
    return (sums.max(axis=(0, 2)) * own).sum()


IN_THEIR_PLACES = [
    *(lagged, added_to_data, added_to_a_column, added_to_each, halves, filled, filled_by_rows),
    *(chosen, second_axis),
]


def assert_values_stay(function: Callable[[Any, Any, Any], Any]) -> None:
    """Of a function of residuals (N,), of an input (N,), and of numbers by group."""
    groups, own = pt.vector("groups", shape=(GROUPS,)), pt.vector("own", shape=(N,))
    residual = pt.as_tensor(Y) - groups[SORTED]
    sums = pt.inc_subtensor(pt.zeros(GROUPS)[SORTED], residual)
    outputs = [function(residual, own, groups), sums]
    ours, _ = in_fast_order(outputs, {})
    given = np.linspace(-1.0, 1.0, GROUPS), np.random.default_rng(1).normal(size=N)
    options = {"mode": "FAST_COMPILE", "on_unused_input": "ignore"}
    found, expected = (
        pytensor.function([groups, own], each, **options)(*given) for each in (ours, outputs)
    )
    for value, other in zip(found, expected, strict=True):
        assert_allclose(value, other, rtol=1e-11)


@pytest.mark.parametrize("function", IN_THEIR_PLACES, ids=lambda f: f.__name__)
def test_rows_that_stand_beside_others_in_their_places_keep_them(
    function: Callable[[Any, Any, Any], Any],
) -> None:
    assert_values_stay(function)


def test_rows_that_are_given_out_keep_their_order() -> None:
    """No sum of them is all that is seen."""
    assert_values_stay(lambda residual, own, groups: residual)


def many_groups(index: np.ndarray, n_groups: int, size: int = 1) -> np.ndarray:
    """The groups of rows in the order in which they are added up."""
    with pm.Model() as model:
        a = pm.Normal("a", shape=(n_groups, size))
        pm.Normal("y", a[pm.Data("index", index)].sum(axis=1), 1.0, observed=np.zeros(len(index)))
    [found] = [p for p in build_density(model).param_values({}) if p.dtype.kind == "i"]
    return found


@pytest.mark.parametrize("size", [1, 20])
def test_rows_of_many_groups_lie_in_blocks_of_groups(size: int) -> None:
    """Whatever their order was."""
    n_groups = 2 * _CACHED // size
    index = np.repeat(np.arange(n_groups), 3)
    for given in (index, _rng.permutation(index)):
        found = many_groups(given, n_groups, size)
        assert_array_equal(np.sort(found), index)
        assert np.all(np.diff(found // (_BLOCK // size)) >= 0)
        assert np.mean(found[1:] == found[:-1]) < 0.3


def test_rows_of_few_groups_without_runs_keep_their_order() -> None:
    n_groups = _CACHED // 2
    index = _rng.permutation(np.repeat(np.arange(n_groups), 2))
    assert_array_equal(many_groups(index, n_groups), index)


@pytest.mark.parametrize("size", [1, 20])
def test_rows_that_lie_by_groups_without_runs_keep_their_order(size: int) -> None:
    """As where each row has a parameter of its own."""
    index = np.arange(2 * _CACHED // size)
    assert_array_equal(many_groups(index, len(index), size), index)


def test_groups_counted_from_the_last_are_in_their_blocks() -> None:
    n_groups = 2 * _CACHED
    index = _rng.permutation(np.repeat(np.arange(n_groups), 2))
    found = many_groups(index - n_groups * (np.arange(len(index)) % 2), n_groups) % n_groups
    assert np.all(np.diff(found // _BLOCK) >= 0)


def test_the_larger_sums_say_where_rows_lie() -> None:
    """Rows have a place each in a block of many groups, and in few groups with runs."""
    n_groups = 2 * _CACHED
    index = _rng.permutation(np.repeat(np.arange(n_groups), 2))
    few = np.repeat(np.arange(2), n_groups)
    with pm.Model() as model:
        a, b = pm.Normal("a", shape=n_groups), pm.Normal("b", shape=2)
        rows = a[pm.Data("index", index)] + b[pm.Data("few", few)]
        pm.Normal("y", rows, 1.0, observed=np.zeros(len(index)))
    [found] = [p for p in build_density(model).param_values({}) if p.max(initial=0) > 1]
    assert np.all(np.diff(found // _BLOCK) >= 0)


def test_of_two_orders_that_are_as_fast_the_same_one_is_taken_each_time() -> None:
    """Of senders and receivers: sums in another order round otherwise."""
    n_groups = 2 * _CACHED
    first, second = (_rng.permutation(np.repeat(np.arange(n_groups), 2)) for _ in range(2))
    orders, kept = set(), []
    for _ in range(8):
        with pm.Model() as model:
            a, b = pm.Normal("a", shape=n_groups), pm.Normal("b", shape=n_groups)
            rows = a[pm.Data("first", first)] - b[pm.Data("second", second)]
            pm.Normal("y", rows, 1.0, observed=np.zeros(len(first)))
        density = build_density(model)
        orders.add(b"".join(p.tobytes() for p in density.param_values({}) if p.dtype.kind == "i"))
        kept.append(density)
    assert len(orders) == 1


def test_data_that_stay_are_put_in_order_once() -> None:
    """Between draws: large ones take longer than a gradient to copy, to compare and to send."""
    with pm.Model() as model:
        pm.Normal("y", intercepts()[pm.Data("index", SORTED)], 1.5, observed=pm.Data("data", Y))
    density = build_density(model)
    first, again = density.param_values({}), density.param_values({})
    assert len(first) == 2
    assert all(a is b for a, b in zip(first, again, strict=True))
    model["data"].set_value(Y + 1)
    assert [a is b for a, b in zip(first, density.param_values({}), strict=True)] in (
        [True, False],
        [False, True],
    )


def test_data_that_change_later_are_put_in_the_same_order() -> None:
    with pm.Model() as model:
        index = pm.Data("index", SORTED)
        pm.Normal("y", intercepts()[index], 1.0, observed=pm.Data("observed", Y))
    density = build_density(model)
    x = np.random.default_rng(0).normal(size=density.size)
    function, logp = compiled(density), model.compile_logp(mode="FAST_COMPILE")
    for groups, observed in ((SORTED, Y), (SORTED[::-1], Y), (SHUFFLED, FEATURES[:, 1])):
        groups = groups.astype(index.dtype)
        model["index"].set_value(groups)
        model["observed"].set_value(observed)
        order = np.random.default_rng(N).permutation(N)
        given = density.param_values({})
        assert {a.tobytes() for a in given} == {groups[order].tobytes(), observed[order].tobytes()}
        point = density.layout.unravel(x)
        assert_allclose(function(x)[0], logp(point), rtol=1e-11)


def crossed(data: Callable[[np.ndarray], Any]) -> Density:
    """Effects of the rows and of the columns of a matrix, both sorted by group."""
    columns = np.repeat(np.arange(4), 20)
    outcome = np.random.default_rng(3).normal(size=(N, len(columns)))
    with pm.Model() as model:
        effects = pm.Normal("b", shape=4)[columns]
        mean = intercepts()[SORTED][:, None] + effects
        pm.Normal("y", mean, 1.0 + data(outcome**2), observed=data(outcome))
    return build_density(model)


def as_data(values: np.ndarray) -> Any:
    return pm.Data(f"data_{values.min() >= 0}", values)


def test_data_may_have_rows_along_two_axes() -> None:
    ours, constant = crossed(as_data), crossed(lambda values: values)
    assert all(len(o.order.along) == 2 for o in ours._sources if not isinstance(o, Constant))
    with patch("pymc_deer.density.in_fast_order", lambda outputs, values: (list(outputs), {})):
        plain = crossed(as_data)
    functions = [compiled(density) for density in (plain, ours, constant)]
    for x in np.random.default_rng(0).normal(size=(3, ours.size)):
        expected, *others = (function(x) for function in functions)
        for values in others:
            for found, value in zip(values, expected, strict=True):
                assert_allclose(found, value, rtol=1e-11)


def test_an_order_along_one_of_two_axes_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowOrder, "and_along", lambda order, *along: RowOrder((along,)))
    with pytest.raises(AssertionError):
        test_data_may_have_rows_along_two_axes()
