"""Repeat: the NumPy, Numba and JAX implementations against a plain loop."""

from typing import Any

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.compile.mode import Mode

import pymc_deer.ops.repeat_jax
import pymc_deer.ops.repeat_numba  # noqa: F401
from pymc_deer.ops.repeat import Repeat

MODES = ("FAST_COMPILE", "NUMBA", "JAX")
SIZE = 3


def rounds(dtype: str = "float64") -> Repeat:
    """A vector that a shared matrix turns, and a scalar that sums up what the vector was."""
    x, total = pt.tensor("x", dtype=dtype, shape=(SIZE,)), pt.tensor(dtype=dtype, shape=())
    matrix = pt.tensor("matrix", dtype=dtype, shape=(SIZE, SIZE))
    shift = pt.tensor("shift", dtype=dtype, shape=())
    turned = pt.sum(matrix * x, axis=1)
    return Repeat([pt.lscalar(), x, total, matrix, shift], [turned + shift, total + pt.sum(x)])


def doubled(n, x):
    """x, doubled n times."""
    return Repeat([pt.lscalar(), x], [2 * x])(n, x)


def inputs(dtype: str = "float64") -> list:
    shapes = {"x": (SIZE,), "total": (), "matrix": (SIZE, SIZE), "shift": ()}
    variables = [pt.tensor(name, dtype=dtype, shape=shape) for name, shape in shapes.items()]
    return [pt.tensor("n", dtype="int64", shape=()), *variables]


def values(dtype: str = "float64") -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    shapes = [(SIZE,), (), (SIZE, SIZE), ()]
    return [np.asarray(rng.normal(size=shape), dtype=dtype) for shape in shapes]


def plain_loop(n: int, x, total, matrix, shift) -> tuple[np.ndarray, np.ndarray]:
    for _ in range(n):
        # Both are computed from the values of the round before.
        x, total = matrix @ x + shift, total + x.sum()
    return x, total


@pytest.mark.parametrize(
    ("mode", "dtype"),
    [("FAST_COMPILE", "float64"), ("JAX", "float64"), ("JAX", "float32"), ("NUMBA", "float32")],
)
def test_agrees_with_a_plain_loop(mode: str, dtype: str) -> None:
    variables = inputs(dtype)
    function = pytensor.function(variables, rounds(dtype)(*variables), mode=mode)
    given = values(dtype)
    kept = [value.copy() for value in given]
    rtol = 1e-12 if dtype == "float64" else 1e-4
    for n in (0, 1, 5):
        found = function(np.array(n), *given)
        for one, other in zip(found, plain_loop(n, *given), strict=True):
            assert np.asarray(one).dtype == dtype
            assert_allclose(one, other, rtol=rtol)
        for one, other in zip(given, kept, strict=True):
            assert_array_equal(one, other)


@pytest.mark.parametrize("mode", MODES)
def test_rounds_know_their_number(mode: str) -> None:
    i, n, x = pt.lscalar(), pt.lscalar("n"), pt.dscalar("x")
    function = pytensor.function([n, x], Repeat([i, x], [2 * x + i])(n, x), mode=mode)
    # 1, 2 + 0, 4 + 1, 10 + 2.
    assert function(np.array(3), np.array(1.0)) == 12


@pytest.mark.parametrize("mode", MODES)
def test_states_that_go_together_have_as_many_rounds_as_one_of_them(mode: str) -> None:
    n, x = pt.tensor("n", dtype="int64", shape=(3,)), pt.tensor("x", dtype="float64", shape=(3,))
    function = pytensor.function([n, x], doubled(n, x), mode=mode)
    given = np.array([1.0, -0.5, 3.0])
    assert_array_equal(function(np.array([1, 3, 0]), given), 8 * given)
    assert_array_equal(function(np.zeros(3, int), given), given)


def test_chains_of_a_batch_have_the_same_rounds() -> None:
    """JAX would choose between old and new values in each round, were they each chain's own."""
    n, x = pt.tensor("n", dtype="int64", shape=(3,)), pt.tensor("x", dtype="float64", shape=(3,))
    function: Any = pytensor.function([n, x], doubled(n, x), mode="JAX").vm
    chains = jax.vmap(lambda *given: function.jit_fn(*given)[0])
    with jax.enable_x64(True):
        given = np.array([[1, 3, 0], [5, 0, 2]]), np.arange(6.0).reshape(2, 3)
        assert_array_equal(chains(*given), 32 * given[1])
        assert "select" not in str(jax.make_jaxpr(chains)(*given))


@pytest.mark.parametrize("mode", MODES)
def test_a_loop_inside_a_loop(mode: str) -> None:
    """One value is carried along as well as several; their number of rounds may be one of them."""
    k, x = pt.tensor("k", dtype="int64", shape=()), pt.tensor("x", dtype="float64", shape=(2,))
    inner = doubled(k, x)
    outer = Repeat([pt.lscalar(), k, x], [k + 1, inner])
    n = pt.tensor("n", dtype="int64", shape=())
    function = pytensor.function([n, k, x], outer(n, k, x), mode=mode)
    found_k, found_x = function(np.array(3), np.array(1), np.array([1.0, -0.5]))
    # 1 + 2 + 3 doublings.
    assert found_k == 4
    assert_array_equal(found_x, [64.0, -32.0])


def test_shape_is_known_without_running() -> None:
    variables = inputs()
    shapes = [out.shape for out in rounds()(*variables)]
    function = pytensor.function(
        variables, shapes, mode=Mode("py", "fast_run"), on_unused_input="ignore"
    )
    assert not any(isinstance(node.op, Repeat) for node in function.maker.fgraph.toposort())
    assert [tuple(shape) for shape in function(np.array(2), *values())] == [(SIZE,), ()]


@pytest.mark.parametrize(
    ("position", "wrong"),
    [(1, pt.matrix("x")), (1, pt.tensor("x", dtype="complex128", shape=(SIZE,)))],
    ids=["dimensions", "dtype"],
)
def test_wrong_types_are_refused(position: int, wrong) -> None:
    variables = inputs()
    variables[position] = wrong
    with pytest.raises(TypeError, match="Cannot convert"):
        rounds()(*variables)


def test_values_carried_along_keep_their_type() -> None:
    i, x = pt.lscalar(), pt.tensor("x", dtype="float32", shape=(SIZE,))
    with pytest.raises(TypeError, match="Cannot convert"):
        Repeat([i, x], [x * np.float64(2.0) * pt.tensor("y", dtype="float64", shape=())])
    with pytest.raises(TypeError, match="Cannot convert"):
        Repeat([i, x], [pt.sum(x)])


def test_wrong_number_of_inputs() -> None:
    with pytest.raises(ValueError, match=r"shorter|longer"):
        rounds()(*inputs()[:-1])
