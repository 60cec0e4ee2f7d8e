"""Values of groups and sums by group, outside of the loops that compute with them."""

from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.graph.fg import FunctionGraph

import pymc_deer.ops.groups_numba  # noqa: F401
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.ops.groups import GroupSums, GroupValues
from tests.support import graph_for_numba

N, SHAPE = 40, (5, 3)
_rng = np.random.default_rng(0)
VECTOR, MATRIX = _rng.normal(size=SHAPE[0]), _rng.normal(size=SHAPE)
ROWS = _rng.normal(size=N)
FIRST, SECOND = (_rng.integers(-n, n, N) for n in SHAPE)


def summed(shape: tuple[int, ...], *indices: np.ndarray) -> np.ndarray:
    sums = np.zeros(shape)
    np.add.at(sums, indices, ROWS)
    return sums


def variables(dtype: str = "float64") -> list[Any]:
    """A vector and a matrix of values, rows, and two indices of these."""
    kinds = [*((dtype, shape) for shape in (SHAPE[:1], SHAPE, (N,))), *[("int64", (N,))] * 2]
    return [pt.tensor(dtype=kind, shape=shape) for kind, shape in kinds]


def for_numba(inputs: list[Any], outputs: list[Any]) -> FunctionGraph:
    """The graph as Numba gets it, but for what is computed in place."""
    return graph_for_numba(inputs, outputs, NUMBA_MODE.excluding("inplace"))


def results(graph: FunctionGraph) -> list[np.ndarray]:
    """Of such a graph, run by Python."""
    inputs, outputs = list(graph.inputs), list(graph.outputs)
    function: Any = pytensor.function(
        inputs, outputs, mode=Mode("vm", None), on_unused_input="ignore"
    )
    return function(VECTOR, MATRIX, ROWS, FIRST, SECOND)


def count(graph: Any, kind: type) -> int:
    return sum(isinstance(node.op, kind) for node in graph.apply_nodes)


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("FAST_COMPILE", "float64"), ("FAST_COMPILE", "float32"), ("NUMBA", "float32")],
)
def test_they_are_those_of_numpy(mode: str, dtype: str) -> None:
    vector, matrix, rows, first, second = inputs = variables(dtype)
    outputs = [
        *(GroupValues()(vector, first), GroupValues()(matrix, first, second)),
        *(GroupSums(SHAPE[:1])(rows, first), GroupSums(SHAPE)(rows, first, second)),
    ]
    function: Any = pytensor.function(inputs, outputs, mode=mode)
    given = [array.astype(dtype) for array in (VECTOR, MATRIX, ROWS)]
    # Below 0 or not is compiled apart.
    for a, b in ((FIRST, SECOND), (FIRST % SHAPE[0], SECOND % SHAPE[1])):
        expected = [VECTOR[a], MATRIX[a, b], summed(SHAPE[:1], a), summed(SHAPE, a, b)]
        for found, value in zip(function(*given, a, b), expected, strict=True):
            assert_allclose(found, value, rtol=1e-5 if dtype == "float32" else 1e-12, atol=1e-6)
            assert found.dtype == dtype


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_there_is_no_such_group(mode: str) -> None:
    vector, _, rows, first, _ = variables()
    for output, given in (
        (GroupValues()(vector, first), VECTOR),
        (GroupSums(SHAPE[:1])(rows, first), ROWS),
    ):
        inputs = [vector if given is VECTOR else rows, first]
        function = pytensor.function(inputs, output, mode=mode)
        for wrong in (SHAPE[0], -SHAPE[0] - 1):
            index = FIRST.copy()
            index[7] = wrong
            with pytest.raises(IndexError):
                function(given, index)


def test_shapes_are_known_without_running() -> None:
    values, rows, index = pt.dvector(), pt.dvector(), pt.lvector()
    outputs = [GroupValues()(values, index).shape, GroupSums((4,))(rows, index).shape]
    function: Any = pytensor.function(
        [values, rows, index], outputs, mode="CVM", on_unused_input="ignore"
    )
    graph = function.maker.fgraph
    assert count(graph, GroupValues) == count(graph, GroupSums) == 0
    [of_values, of_sums] = function(VECTOR, ROWS, FIRST)
    assert (tuple(of_values), tuple(of_sums)) == ((N,), (4,))
    assert GroupSums(SHAPE)(*variables()[2:]).type.shape == SHAPE


def test_wrong_inputs() -> None:
    vector, matrix, rows, first, _ = variables()
    for op, inputs in (
        (GroupValues(), [matrix, first]),
        (GroupValues(), [vector, first.astype("int32")]),
        (GroupSums(SHAPE), [rows, first]),
    ):
        with pytest.raises(TypeError, match=r"takes a vector of int64 for each of \d axes, got"):
            op(*inputs)
    with pytest.raises(TypeError, match="takes a vector of rows, got"):
        GroupSums(SHAPE[:1])(matrix, first)


def test_functions_of_what_is_looked_up_have_loops_of_their_own() -> None:
    vector, matrix, rows, first, second = inputs = variables()
    narrow = first.astype("int8")
    outputs = [pt.exp(rows * vector[narrow]), pt.sigmoid(matrix[first, second] + 1.0)]
    graph = for_numba(inputs, outputs)
    assert count(graph, GroupValues) == 2
    found = results(graph)
    assert_allclose(found[0], np.exp(ROWS * VECTOR[FIRST]))
    assert_allclose(found[1], 1 / (1 + np.exp(-1 - MATRIX[FIRST, SECOND])))


def test_sums_of_functions_have_loops_of_their_own() -> None:
    vector, matrix, rows, first, second = inputs = variables()
    outputs = [
        pt.zeros(SHAPE[0])[first].inc(2 * pt.exp(rows)),
        vector[first].inc(pt.exp(rows)),
        matrix[first, second].inc(pt.exp(rows)),
    ]
    graph = for_numba(inputs, outputs)
    assert count(graph, GroupSums) == 3
    found = results(graph)
    for sums, start, indices in zip(
        found,
        [np.zeros(SHAPE[0]), VECTOR, MATRIX],
        [[FIRST], [FIRST], [FIRST, SECOND]],
        strict=True,
    ):
        expected = start.copy()
        np.add.at(expected, tuple(indices), (2 if sums is found[0] else 1) * np.exp(ROWS))
        assert_allclose(sums, expected)


def test_other_lookups_and_sums_stay_pytensors() -> None:
    vector, matrix, rows, first, _ = inputs = variables()
    mask = first > 0
    outputs = [
        # No functions, an index for some of the axes, a mask, and no sum.
        *(rows * vector[first], pt.zeros(SHAPE[0])[first].inc(3 * rows)),
        *(pt.exp(matrix[first]), pt.exp(rows[mask]), vector[first].set(pt.exp(rows))),
        *(pt.zeros(N)[mask].inc(pt.exp(rows[mask])), pt.exp(vector)[first]),
    ]
    graph = for_numba(inputs, outputs)
    assert count(graph, GroupValues) == count(graph, GroupSums) == 0
