"""Numba's functions of graphs: what they call, what is compiled, and that values are the same."""

from typing import Any

import numba
import numpy as np
import pytensor.tensor as pt
import pytest
from numba.core import event
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.graph.fg import FunctionGraph
from pytensor.link.numba.cache import CACHED_SRC_FUNCTIONS
from pytensor.link.numba.dispatch.basic import numba_funcify_and_cache_key, numba_njit

import pymc_deer.ops.repeat_numba  # noqa: F401
from pymc_deer.ops.inline_numba import function_of_graph, inlined
from pymc_deer.ops.repeat import Repeat

RNG = np.random.default_rng(0)


def graph(inputs: list[Any], outputs: list[Any]) -> FunctionGraph:
    return FunctionGraph(inputs, outputs, clone=True)


def called(function: Any) -> list[Any]:
    """The functions of Ops, in the order of the graph's nodes."""
    names = function.py_func.__code__.co_names
    values = [function.py_func.__globals__[name] for name in names]
    return [value for value in values if callable(value)]


def for_python(function: Any) -> Any:
    """Those of graphs can be called by compiled code alone."""
    return numba_njit(function.py_func, final_function=True)


def is_wrapper(function: Any) -> bool:
    return getattr(function, "py_func", None) in CACHED_SRC_FUNCTIONS


def test_it_calls_functions_of_ops_where_pytensors_calls_wrappers() -> None:
    x, y = pt.vector("x"), pt.vector("y")
    of = graph([x, y], [pt.exp(x) * y, pt.concatenate([x, y])])
    ours, key = function_of_graph(of)
    pytensors, its_key = numba_funcify_and_cache_key(of)
    assert all(map(is_wrapper, called(pytensors)))
    assert not any(map(is_wrapper, called(ours)))
    assert len(called(ours)) == len(called(pytensors)) == 3
    assert key == its_key is not None
    given = RNG.normal(size=(2, 3))
    for found, expected in zip(
        for_python(ours)(*given), for_python(pytensors)(*given), strict=True
    ):
        assert_array_equal(found, expected)


def test_nodes_of_one_op_and_the_same_types_share_a_function_and_others_do_not() -> None:
    x, y, single = pt.dvector("x"), pt.dvector("y"), pt.fvector("single")
    sums = [x + y, y + x, single + single]
    joins = [pt.concatenate(of) for of in ([x, y], [y, x], [x, y, x], [single, single])]
    products = [pt.dot(pt.outer(a, a), pt.outer(a, a)) for a in (x, single)]
    function, _ = function_of_graph(graph([x, y, single], [*sums, *joins]))
    assert len(called(function)) == 7
    # Of two vectors, and in single precision; joins of three besides.
    assert len(set(called(function))) == 5
    again, _ = function_of_graph(graph([y, x], [y + x]))
    assert set(called(again)) < set(called(function))

    every, _ = function_of_graph(graph([x, y, single], [*sums, *joins, *products]))
    u, v = RNG.normal(size=(2, 3))
    w = u.astype("float32")
    found = for_python(every)(u, v, w)
    for one, other in zip(found[:3], [u + v, v + u, w + w], strict=True):
        assert_array_equal(one, other)
    expected = [np.concatenate(of) for of in ([u, v], [v, u], [u, v, u], [w, w])]
    for one, other in zip(found[3:7], expected, strict=True):
        assert one.dtype == other.dtype
        assert_array_equal(one, other)
    for one, of in zip(found[7:], (u, w), strict=True):
        assert one.dtype == of.dtype
        assert_allclose(one, np.outer(of, of) @ np.outer(of, of), rtol=1e-6)


def compiled_by(function: Any, *arguments: Any) -> list[str]:
    """Names of what Numba compiles when it is called."""
    with event.install_recorder("numba:compile") as recorder:
        function(*arguments)
    starts = [found.data for _, found in recorder.buffer if found.is_start and found.data]
    return [data["dispatcher"].py_func.__name__ for data in starts]


def test_what_is_compiled_for_one_program_is_not_compiled_for_the_next() -> None:
    x = pt.vector("x")
    value = RNG.normal(size=5)
    first, second = (
        for_python(function_of_graph(graph([x], outputs))[0])
        for outputs in ([pt.sinh(x) / pt.cosh(x)], [pt.sinh(x), pt.cosh(x) / x])
    )
    assert compiled_by(first, value).count("sinh") == 1
    again = compiled_by(second, value)
    assert "sinh" not in again
    assert "cosh" not in again
    assert_allclose(second(value), [np.sinh(value), np.cosh(value) / value], rtol=1e-14)


def test_a_repetition_is_part_of_the_loop_around_it() -> None:
    n, x = pt.lscalar("n"), pt.vector("x", shape=(2,))
    [doubled] = [Repeat([pt.lscalar(), x], [2 * x])(n, x)]
    function, _ = function_of_graph(graph([n, x], [doubled + 1]))
    inner = inlined(function)

    @numba.njit
    def loop(n, x):
        for _ in range(2):
            (x,) = inner(n, x)
        return x

    given = np.array(3), np.array([1.0, -0.5])
    names = compiled_by(loop, *given)
    assert "loop" in names
    assert "repeat" not in names
    assert_array_equal(loop(*given), 8 * (8 * given[1] + 1) + 1)


@pytest.mark.parametrize("n", [30, 31])
def test_calls_of_many_arguments_are_left_as_they_are(n: int) -> None:
    """Numba inlines no call whose arguments are unpacked from a list, as Python has it from 31."""
    names = ", ".join(f"x{i}" for i in range(n))
    env: dict[str, Any] = {}
    exec(f"def add({names}): return {names.replace(',', ' +')}", env)
    add = numba_njit(env["add"])
    env["within"] = within = inlined(add)
    assert (within is add) == (n > 30)
    exec(f"def run({names}): return within({names})", env)
    assert numba.njit(env["run"])(*range(n)) == sum(range(n))
