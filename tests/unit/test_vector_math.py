"""Elementary functions that Numba's loops call for several numbers at once."""

import math
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytensor
import pytensor.scalar as ps
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.graph.fg import FunctionGraph
from pytensor.tensor.elemwise import Elemwise
from scipy import special

from pymc_deer.backends import numba_mode
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.ops.vector_math import CALLED, VECTOR_OPS
from pymc_deer.ops.vector_math_numba import has_variants
from tests.support import HAS_VARIANTS, calls_variants

REFERENCES: dict[type, tuple[Callable[..., Any], Callable[..., Any]]] = {
    ps.Cos: (pt.cos, np.cos),
    ps.Erf: (pt.erf, np.vectorize(math.erf)),
    ps.Erfc: (pt.erfc, np.vectorize(math.erfc)),
    ps.Exp: (pt.exp, np.exp),
    ps.Expm1: (pt.expm1, np.expm1),
    ps.Log: (pt.log, np.log),
    ps.Log1p: (pt.log1p, np.log1p),
    ps.Sigmoid: (pt.sigmoid, special.expit),
    ps.Sin: (pt.sin, np.sin),
    ps.Softplus: (pt.softplus, lambda x: np.logaddexp(0.0, x)),
    ps.Tanh: (pt.tanh, np.tanh),
}
"""In PyTensor and elsewhere, by scalar Op."""


def numbers(dtype: str) -> np.ndarray:
    """Of all sizes, more than vectors take at a time, with those that are none at the end."""
    sizes = np.geomspace(1e-30, 1e30, 301)
    some = [np.linspace(-25.0, 25.0, 402), sizes, -sizes, [0.0, -0.0, np.inf, -np.inf, np.nan]]
    return np.concatenate(some).astype(dtype)


def vector_ops(graph: FunctionGraph) -> list[type]:
    scalars = [node.op.scalar_op for node in graph.apply_nodes if isinstance(node.op, Elemwise)]
    return [type(op) for op in scalars if type(op) in VECTOR_OPS.values()]


def rewritten(x: Any, y: Any) -> FunctionGraph:
    """The graph with vector Ops in it, before Ops are fused."""
    graph = FunctionGraph([x], [y], clone=True)
    numba_mode.dfs_rewriter(numba_mode.vectorised_functions).rewrite(graph)
    return graph


def test_every_function_is_compared() -> None:
    assert REFERENCES.keys() == CALLED.keys() == VECTOR_OPS.keys()


def test_they_are_there_where_the_c_library_is_gnus() -> None:
    assert has_variants("exp") == HAS_VARIANTS


def assert_within_last_places(found: np.ndarray, op: type, dtype: str) -> None:
    """The 4 units that the library promises, twice where two functions are composed."""
    assert found.dtype == dtype
    with np.errstate(all="ignore"):
        expected = REFERENCES[op][1](numbers(dtype).astype(float))
        tiny = np.abs(expected) < np.finfo(dtype).tiny
        expected = np.where(tiny, 0.0, expected).astype(dtype)
    eps = np.finfo(dtype).eps
    assert_allclose(np.where(tiny, 0.0, found), expected, rtol=8 * eps, atol=8 * eps**2)


def test_values_are_within_units_in_the_last_place() -> None:
    x = pt.fvector("x")
    for op, (function, _) in REFERENCES.items():
        found = pytensor.function([x], function(x), mode=NUMBA_MODE)(numbers("float32"))
        assert_within_last_places(found, op, "float32")


@pytest.mark.skipif(not HAS_VARIANTS, reason="only GNU's C library for x86-64 has variants")
@pytest.mark.parametrize("op", CALLED)
def test_loops_call_the_variants(op: type) -> None:
    x = pt.dvector("x")
    value = REFERENCES[op][0](x)
    with pytensor.config.change_flags(numba__cache=False):
        function = pytensor.function([x], [value, 2 * value + 1], mode=NUMBA_MODE)
        found, _ = function(numbers("float64"))
    assert_within_last_places(found, op, "float64")
    for name in CALLED[op]:
        assert calls_variants(function, name)


def test_where_there_are_none_pytensors_functions_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    x = pt.vector("x", dtype="float64")
    for has, there in ((True, 1), (False, 0)):
        monkeypatch.setattr(numba_mode, "has_variants", lambda name, has=has: has)
        assert len(vector_ops(rewritten(x, pt.exp(x)))) == there
    monkeypatch.setattr(numba_mode, "has_variants", lambda name: name == "exp")
    assert vector_ops(rewritten(x, pt.softplus(x))) == []


@pytest.mark.parametrize("dtype", ["int64", "complex128"])
def test_other_types_stay_pytensors(dtype: str) -> None:
    x = pt.vector("x", dtype=dtype)
    assert vector_ops(rewritten(x, pt.exp(x))) == []


_SCRIPT = """
import numpy as np
import pytensor
import pytensor.tensor as pt
from numba.core import event
from pymc_deer.backends.numba_mode import NUMBA_MODE

x = pt.vector("x", dtype="float64")
function = pytensor.function([x], pt.exp(x) + pt.log1p(x) + pt.softplus(x), mode=NUMBA_MODE)
with event.install_recorder("numba:compile") as recorder:
    print(repr(function(np.linspace(0, 1, 99)).sum()))
print(len(recorder.buffer) > 0)
"""


def test_code_from_the_disk_finds_the_library(tmp_path: Path) -> None:
    """A process that loads what another one has compiled."""
    flags = f"{os.environ.get('PYTENSOR_FLAGS', '')},base_compiledir={tmp_path}".strip(",")
    command, environment = [sys.executable, "-c", _SCRIPT], os.environ | {"PYTENSOR_FLAGS": flags}
    (first, compiled), (second, again) = (
        subprocess.run(
            command, capture_output=True, check=True, text=True, env=environment
        ).stdout.split()
        for _ in range(2)
    )
    assert first == second
    assert (compiled, again) == ("True", "False")
