"""Sums of all rows by the sums of their groups, where the gradient has both."""

from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Sum

from pymc_deer import density
from pymc_deer.density import build_density
from pymc_deer.graphs.sums_by_group import summed_by_group_first, sums_by_group

GROUPS, N = 6, 50
_rng = np.random.default_rng(20_261_127)
INDEX, X, Y = _rng.integers(0, GROUPS, N), _rng.normal(size=(N, 3)), _rng.normal(size=N)


def slopes(known: bool) -> pm.Model:
    with pm.Model() as model:
        index = INDEX if known else pm.Data("index", INDEX)
        alpha, beta = pm.Normal("alpha"), pm.Normal("beta", shape=3)
        a, b = pm.Normal("a", shape=GROUPS), pm.Normal("b", shape=(GROUPS, 3))
        tau = pm.HalfNormal("tau", shape=2)
        slope = beta + (tau[0] * b)[index]
        eta = alpha + (tau[1] * a)[index] + (X * slope).sum(axis=1)
        pm.Bernoulli("y", logit_p=eta, observed=Y > 0)
    return model


@pytest.mark.parametrize("rule", ["set_instead_of_inc", "ignore_duplicates"])
def test_where_the_last_row_of_a_group_counts_there_is_no_sum(rule: str) -> None:
    rows, index, start = pt.vector("rows", shape=(N,)), pt.constant(INDEX), pt.zeros(GROUPS)
    assert sums_by_group(pt.inc_subtensor(start[index], rows).owner) is not None
    assert sums_by_group(pt.inc_subtensor(start[index], rows, **{rule: True}).owner) is None


def sums_of_rows(outputs: Any) -> int:
    """Sums in a graph that add up arrays of N rows along them."""
    nodes = {v.owner for v in ancestors(outputs) if v.owner and isinstance(v.owner.op, Sum)}
    along = [node for node in nodes if node.op.axis in ((0,), None)]
    return sum(node.inputs[0].type.shape[0] == N for node in along)


@pytest.mark.parametrize("known", [True, False], ids=["known", "data"])
def test_the_gradient_adds_up_groups_and_is_the_same(
    known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = slopes(known)
    ours = build_density(model)
    monkeypatch.setattr(density, "summed_by_group_first", list)
    given = build_density(model)
    # The intercept and the slopes that all groups have in common.
    assert sums_of_rows([given.dlogp]) == sums_of_rows([ours.dlogp]) + 2
    state, found = np.random.default_rng(0).normal(size=ours.size), []
    for each in (given, ours):
        inputs, outputs = [each.x, *each.params], [each.logp, each.dlogp]
        function: Any = pytensor.function(inputs, outputs, mode="FAST_COMPILE")
        found.append(function(state, *each.param_values(model.initial_point())))
    for one, other in zip(*found, strict=True):
        assert_allclose(other, one, rtol=1e-12, atol=1e-12)


rows, start = pt.tensor("rows", shape=(N, 3)), np.zeros((GROUPS, 3))
narrow = pt.tensor("narrow", shape=(N, 1))


def by_group(**changes: Any) -> Any:
    given = {"start": start, "index": INDEX, "rows": rows} | changes
    return pt.as_tensor(given["start"])[given["index"]].inc(given["rows"])


LEFT = {
    "sums that begin with something": [rows.sum(axis=0), by_group(start=start + 1)],
    "sums along another axis": [rows.sum(axis=1), by_group()],
    "sums of other rows": [(2 * rows).sum(axis=0), by_group()],
    "rows that all columns share": [narrow.sum(), by_group(rows=narrow)],
    "more groups than half the rows": [rows.sum(axis=0), by_group(start=np.zeros((N // 2 + 1, 3)))],
    "numbers that are set": [rows.sum(axis=0), pt.as_tensor(start)[INDEX].set(rows)],
    "masks": [rows[:GROUPS].sum(axis=0), by_group(index=np.full(GROUPS, True), rows=rows[:GROUPS])],
}


@pytest.mark.parametrize("outputs", LEFT.values(), ids=LEFT.keys())
def test_other_sums_stay_as_they_are(outputs: list[Any]) -> None:
    total, _ = summed_by_group_first(outputs)
    assert total.owner.inputs == outputs[0].owner.inputs


@pytest.mark.parametrize("axis", [0, None, (0, 1)])
def test_sums_along_more_axes_are_those_of_the_groups(axis: Any) -> None:
    outputs = [rows.sum(axis=axis), by_group()]
    ours = summed_by_group_first(outputs)
    assert ours[0].owner.inputs == [ours[1]]
    values = np.random.default_rng(1).normal(size=(N, 3))
    found = pytensor.function([rows], ours[0], mode="FAST_COMPILE")(values)
    assert_allclose(found, values.sum(axis=axis), rtol=1e-12)
