"""Logistic terms are evaluated for what was observed, and every number stays the same."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_array_equal
from pymc.pytensorf import rewrite_pregrad
from pytensor.compile.mode import Mode
from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.graph.traversal import ancestors
from pytensor.scalar.math import Sigmoid, Softplus
from pytensor.tensor.elemwise import Elemwise
from pytensor.tensor.math import All

from pymc_deer.graphs.logistic import evaluated_once

PYTHON = Mode("py", "fast_run")
OUTCOMES = np.array([1, 0, 0, 1, 1])
LOGITS = np.array([[0.3, -2.0, 0.0, 40.0, -1.5], [800.0, -800.0, 800.0, -800.0, np.inf]])


def by_logit(x: Any) -> None:
    pm.Bernoulli("y", logit_p=x, observed=OUTCOMES)


def by_probability(x: Any) -> None:
    pm.Bernoulli("y", p=pm.math.invlogit(x), observed=OUTCOMES)


def of_data(x: Any) -> None:
    pm.Bernoulli("y", logit_p=x, observed=pm.Data("outcomes", OUTCOMES))


def of_missing(x: Any) -> None:
    pm.Potential("y", pm.logp(pm.Bernoulli.dist(logit_p=x), np.array([1, 0, 2, -1, 1])).sum())


def binomial(x: Any) -> None:
    pm.Binomial("y", n=3, logit_p=x, observed=OUTCOMES)


LIKELIHOODS = [by_logit, by_probability, of_data, of_missing, binomial]


def graphs(likelihood: Callable[[Any], None]) -> tuple[Any, Any, Any]:
    """Logits, their logp as the density has it before the rewrites, and after them."""
    with pm.Model() as model:
        likelihood(pm.Flat("x", shape=OUTCOMES.size))
    [x] = model.value_vars
    include = ("canonicalize", "local_check_parameter_to_ninf_switch")

    def canonical() -> Any:
        return rewrite_graph(rewrite_pregrad(model.logp()), include=include)

    return x, canonical(), evaluated_once(canonical())


def count(kind: type, *outputs: Any) -> int:
    """Elementwise Ops of this kind in a graph as backends get it."""
    specialized: Any = rewrite_graph(
        list(outputs), include=("canonicalize", "stabilize", "specialize")
    )
    nodes = {v.owner for v in ancestors(specialized) if v.owner is not None}
    of = [n.op.scalar_op if isinstance(n.op, Elemwise) else n.op for n in nodes]
    return sum(isinstance(op, kind) for op in of)


@pytest.mark.parametrize("likelihood", LIKELIHOODS)
def test_values_and_gradients_are_the_same_to_the_last_bit(
    likelihood: Callable[[Any], None],
) -> None:
    """Of moderate logits and of huge ones."""
    x, before, after = graphs(likelihood)
    outputs = [before, after, pytensor.grad(before, x), pytensor.grad(after, x)]
    function: Any = pytensor.function([x], outputs, mode=PYTHON)
    for logits in LOGITS:
        logp, of_chosen, dlogp, of_chosen_dlogp = function(logits)
        assert_array_equal(of_chosen, logp)
        assert_array_equal(of_chosen_dlogp, dlogp)
        assert np.any(dlogp != 0.0) or likelihood is of_missing


@pytest.mark.parametrize("likelihood", [by_logit, by_probability, of_data])
def test_each_observation_takes_one_softplus_and_one_sigmoid(
    likelihood: Callable[[Any], None],
) -> None:
    x, before, after = graphs(likelihood)
    before, after = ([logp, pytensor.grad(logp, x)] for logp in (before, after))
    assert count(Softplus, *before) == 2
    assert [count(kind, *after) for kind in (Softplus, Sigmoid)] == [1, 1]
    assert count(All, *before) > 0 == count(All, *after)


def test_a_logit_that_is_nan_has_no_finite_density() -> None:
    x, _, after = graphs(by_logit)
    assert np.isnan(after.eval({x: np.array([0.0, np.nan, 0.0, 0.0, 0.0])}, mode=PYTHON))


@pytest.mark.parametrize(
    "checked",
    [
        lambda p, x: p <= 0.5,
        lambda p, x: p >= 0.5,
        lambda p, x: p <= x,
        lambda p, x: x >= 0.0,
        lambda p, x: p > 0.0,
    ],
)
def test_checks_that_may_fail_stay(checked: Callable[[Any, Any], Any]) -> None:
    x = pt.vector("x")
    logp = pt.switch(pt.all(checked(pt.sigmoid(x), x)), x.sum(), -np.inf)
    after = evaluated_once(rewrite_graph(logp, clone=True))
    for logits in (np.array([-800.0, 1.0]), np.array([0.5, 3.0])):
        found, expected = (of.eval({x: logits}, mode=PYTHON) for of in (after, logp))
        assert_array_equal(found, expected)


@pytest.mark.parametrize(
    "choice",
    [
        # Two numbers to choose from take two evaluations, however many elements choose.
        lambda y, x: pt.switch(y, *(-pt.softplus(pt.expand_dims(x[i], 0)) for i in (0, 1))),
        lambda y, x: pt.switch(y, -pt.softplus(x), -pt.exp(x)),
        lambda y, x: pt.switch(y, -2.0 * pt.softplus(x), -pt.softplus(x)),
        lambda y, x: pt.switch(y, -pt.softplus(x), -x * pt.softplus(x)),
    ],
)
def test_other_choices_stay(choice: Callable[[Any, Any], Any]) -> None:
    x, y = pt.vector("x"), pt.vector("y", dtype="bool")
    logp = choice(y, x).sum()
    after = evaluated_once(rewrite_graph(logp, clone=True))
    assert count(Softplus, after) == count(Softplus, logp)
    at = {x: LOGITS[0], y: OUTCOMES.astype(bool)}
    assert_array_equal(after.eval(at, mode=PYTHON), logp.eval(at, mode=PYTHON))
