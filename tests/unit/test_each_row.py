"""Values at each row: the same as of one state at a time, whatever the graph does."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytensor
import pytensor.sparse as sparse
import pytensor.tensor as pt
import pytest
import scipy.sparse
from numpy.testing import assert_allclose

from pymc_deer.graphs import each_row
from pymc_deer.graphs.each_row import MODE, at_each_row, bytes_of_largest
from pymc_deer.status import ModelError

SIZE, N = 4, 12
ROWS = np.random.default_rng(1).normal(size=(N, SIZE))
MATRIX = scipy.sparse.csr_matrix(np.arange(20.0).reshape(5, SIZE))
SHARED = pytensor.shared(np.arange(12.0).reshape(3, SIZE), name="data", shape=(None, SIZE))

Function = Callable[[Any], Any]


def by_its_length(vector: Any) -> Any:
    return pt.repeat(vector[vector.shape[0] - 2 :], 2)


REGULAR: dict[str, Function] = {
    "elements": lambda x: pt.exp(x[1:]) + x[0],
    "data of any shape": lambda x: pt.dot(SHARED, x),
    "half of as many": lambda x: pt.dot(SHARED, x)[SHARED.shape[0] // 2 :],
    "as many as its own length says": lambda x: by_its_length(pt.dot(SHARED, x)),
    "a loop over as many": lambda x: pytensor.scan(
        lambda value, before: before / 2 + value,
        sequences=[pt.dot(SHARED, x)],
        outputs_info=[pt.zeros(())],
        return_updates=False,
    ),
    "sorted": lambda x: pt.sort(x)[:2],
    "a decomposition": lambda x: pt.linalg.cholesky(pt.eye(SIZE) + pt.outer(x, x)),
    "no state": lambda x: pt.as_tensor([1.0, 2.0]),
}

ONE_BY_ONE: dict[str, Function] = {
    "a slice as long as the state says": lambda x: x[: pt.argmax(x) + 1].sum(),
    "elements that the state chooses": lambda x: x[x > 0].sum(),
    "a range that the state ends": lambda x: pt.arange((x > 0).sum()).sum(),
    "a sparse product": lambda x: sparse.dot(sparse.as_sparse_variable(MATRIX), x),
    "a median": pt.median,
    "as many numbers as there are": lambda x: pt.unique(pt.round(x)).sum(),
}


def check(functions: dict[str, Function]) -> Any:
    x = pt.vector("x", shape=(SIZE,))
    outputs = {name: function(x) for name, function in functions.items()}
    at = at_each_row(outputs, x, ROWS[0])
    single: Any = pytensor.function(
        [x], list(outputs.values()), mode=MODE, on_unused_input="ignore"
    )
    for n in (1, N):
        expected = zip(*map(single, ROWS[:n]), strict=True)
        for found, values in zip(at(ROWS[:n]), expected, strict=True):
            assert_allclose(found, np.stack(values))
    return at


@pytest.mark.parametrize("name", REGULAR)
def test_all_at_once(name: str) -> None:
    assert check({name: REGULAR[name]}).maker


@pytest.mark.parametrize("name", ONE_BY_ONE)
def test_one_row_after_the_other(name: str) -> None:
    assert not hasattr(check({name: ONE_BY_ONE[name]}), "maker")


def test_all_together() -> None:
    check({**REGULAR, **ONE_BY_ONE})
    check({**ONE_BY_ONE, **REGULAR})


def test_a_slice_taken_for_one_of_all_states_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(each_row, "_ragged", lambda outputs, x: set())
    with pytest.raises((AssertionError, ValueError)):
        check({"slice": ONE_BY_ONE["a slice as long as the state says"]})


def test_a_shape_that_differs_is_refused() -> None:
    x = pt.vector("x", shape=(SIZE,))
    at = at_each_row({"positive": x[x > 0]}, x, np.ones(SIZE))
    assert_allclose(at(np.abs(ROWS)), np.abs(ROWS)[None])
    # One element would be written to all places of four.
    with pytest.raises(ModelError, match=r"positive: it has the shape \(4,\) .* \(1,\)"):
        at(np.array([[-1.0, -1.0, -1.0, 1.0]]))


@pytest.mark.parametrize("name", {**REGULAR, **ONE_BY_ONE})
def test_the_largest_array_on_the_way_is_at_least_what_is_recorded(name: str) -> None:
    x = pt.vector("x", shape=(SIZE,))
    output = {**REGULAR, **ONE_BY_ONE}[name](x)
    recorded = pytensor.function([x], output, mode=MODE, on_unused_input="ignore")(ROWS[0])
    found = bytes_of_largest([output], x, ROWS[0])
    assert max(ROWS[0].nbytes, np.asarray(recorded).nbytes) <= found <= 40 * ROWS[0].nbytes


def test_the_largest_array_on_the_way_may_be_far_larger() -> None:
    """Lengths that are constants of 8 bits among them."""
    x = pt.vector("x", shape=(SIZE,))
    known = pt.outer(x, pt.repeat(x, 100)).sum()
    assert bytes_of_largest([known], x, ROWS[0]) == SIZE * 400 * 8
    positive = x[x > 0]
    of_state = pt.alloc(positive.sum(), positive.shape[0], 40, 60).sum() + positive.sum()
    assert bytes_of_largest([of_state], x, np.ones(SIZE)) == SIZE * 40 * 60 * 8
