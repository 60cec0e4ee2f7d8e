"""Indices of what is not there are refused, wherever they come from: JAX would not say so."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.conditional.op import ifelse

from pymc_deer.density import build_density
from pymc_deer.status import ModelError

pytestmark = pytest.mark.usefixtures("pymc_in_python")

MASK = np.arange(10).reshape(2, 5) % 4 == 1
LOOKUPS: dict[str, tuple[int, Callable[[Any, Any], Any]]] = {
    "vector": (4, lambda alpha, i: alpha[i]),
    "another type": (4, lambda alpha, i: alpha[i.astype("int32")]),
    "another shape": (4, lambda alpha, i: alpha[i[:, None]][:, 0]),
    "second axis": (4, lambda alpha, i: pt.stack([alpha, alpha])[1, i]),
    "beside a slice": (4, lambda alpha, i: pt.stack([alpha, alpha])[:, i].sum(axis=0)),
    "behind a mask": (4, lambda alpha, i: pt.stack([pt.stack([alpha] * 5)] * 2)[MASK, i]),
    "of a computed array": (5, lambda alpha, i: pt.concatenate([[0.0], 2.0 * alpha])[i]),
    "added to": (4, lambda alpha, i: pt.zeros(4)[i].inc(1.0)[:1] * alpha.sum()),
    "two of different lengths": (4, lambda alpha, i: alpha[i] + pt.concatenate([alpha, alpha])[i]),
}
"""Of an axis of so many elements."""


def looked_up(index: Any, lookup: Callable[[Any, Any], Any]) -> pm.Model:
    with pm.Model(coords={"group": range(4)}) as model:
        alpha = 1.0 + pm.Normal("z", dims="group")
        pm.Normal("y", lookup(alpha, index()), 1.0, observed=np.zeros(3))
    return model


@pytest.mark.parametrize(("n", "lookup"), LOOKUPS.values(), ids=LOOKUPS)
@pytest.mark.parametrize("shared", [False, True], ids=["in the model", "in pm.Data"])
def test_indices_outside_are_refused(
    n: int, lookup: Callable[[Any, Any], Any], shared: bool
) -> None:
    def index(values: list[int], dtype: str = "int64") -> Callable[[], Any]:
        array = np.array(values, dtype)
        return lambda: pm.Data("i", array) if shared else pt.as_tensor(array)

    for outside in ([0, n, 1], [0, 1, -n - 1]):
        of = "i: it looks up" if shared else "The model looks up"
        with pytest.raises(ModelError, match=rf"^{of} element {max(outside, key=abs)}.* of {n}\."):
            build_density(looked_up(index(outside), lookup))
    with pytest.raises(ModelError, match=f"from 0 to {n - 1}"):
        build_density(looked_up(index([n, 0, 0], "uint8"), lookup))
    density = build_density(looked_up(index([-n, 0, n - 1]), lookup))
    density.param_values({})


@pytest.mark.parametrize("longer_first", [False, True])
def test_new_data_are_looked_at(longer_first: bool) -> None:
    def lookup(alpha: Any, i: Any) -> Any:
        short, long = alpha[i], pt.concatenate([alpha, alpha])[i]
        return long + short if longer_first else short + long

    model = looked_up(lambda: pm.Data("i", np.array([0, 1, 3])), lookup)
    density = build_density(model)
    with model:
        for outside in (4, -5):
            pm.set_data({"i": np.array([0, 1, outside])})
            with pytest.raises(ModelError, match=rf"^i: it looks up element {outside}, along"):
                density.param_values({})
        pm.set_data({"i": np.array([3, -4, 3])})
        density.param_values({})


LEGAL: dict[str, Callable[[Any], Any]] = {
    "no index": lambda alpha: alpha[pt.as_tensor(np.zeros(0, int))],
    "of no elements": lambda alpha: alpha[:0][pt.as_tensor(np.zeros(0, int))],
    "0 or 1": lambda alpha: alpha[pt.as_tensor([0, 7, 3]).astype("bool").astype("int64")],
    "modulo 256": lambda alpha: alpha[pt.as_tensor([256, 257]).astype("uint8")],
    "the whole part": lambda alpha: alpha[pt.as_tensor([-4.5, 3.9]).astype("int64")],
    "computed": lambda alpha: alpha[pt.as_tensor([1, 4]) - 1] + alpha[pt.as_tensor([3, 6]) % 4],
    "computed from two": lambda alpha: alpha[pt.as_tensor([0, 1]) * 2 + pt.as_tensor([1, 1])],
    "a mask": lambda alpha: alpha[np.array([True, False, False, True])],
    "a slice": lambda alpha: alpha[2:9],
    "in the branch not taken": lambda alpha: pt.switch(alpha.shape[0] > 4, alpha[4], alpha[0]),
    "not taken if": lambda alpha: ifelse(alpha.shape[0] > 4, alpha[4], alpha[0]),
    "put into a slice": lambda alpha: pt.zeros(6)[:4].set(alpha),
}


@pytest.mark.parametrize("lookup", LEGAL.values(), ids=LEGAL)
def test_what_is_there_is_looked_up(lookup: Callable[[Any], Any]) -> None:
    with pm.Model() as model:
        pm.Potential("y", lookup(pm.Normal("alpha", shape=4)).sum())
    density = build_density(model)
    density.param_values({})


def test_a_single_element_may_be_outside_too() -> None:
    with pytest.raises(ModelError, match=r"^The model looks up element 4 of z, along an axis of 4"):
        build_density(looked_up(lambda: 4, lambda alpha, i: alpha[i]))


def test_what_another_step_moves_is_no_data() -> None:
    """It is where its own logp allows it to be, or else no lookup of it is in a posterior."""
    with pm.Model() as model:
        k = pm.Categorical("k", np.ones(4) / 4)
        z = pm.Normal("z", shape=4)
        pm.Normal("y", z[k], 1.0, observed=0.0)
    density = build_density(model, [model.rvs_to_values[z]])
    density.param_values({"k": np.array(3)})
