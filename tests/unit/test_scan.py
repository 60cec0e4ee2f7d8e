"""Scans along a window: the NumPy, Numba and JAX implementations against plain loops."""

import jax
import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.compile.mode import Mode

from pymc_deer.ops import (
    scan_jax,
    scan_numba,  # noqa: F401
)
from pymc_deer.ops.scan import ChainScan, chain_scan, running_sum

MODES = ("FAST_COMPILE", "NUMBA", "JAX")
SIZE = 3
NAMES = ("jacobian", "proposals", "previous", "start", "log_alpha", "log_u", "bend")
Arguments = list[np.ndarray]


def shapes(width: int | None, columns: int) -> list[tuple[int | None, ...]]:
    return [(width, columns), *[(width, SIZE)] * 2, (SIZE,), *[(width,)] * 3]


def arguments(width: int, columns: int = SIZE, dtype: str = "float64") -> Arguments:
    """Near chains of a Gaussian's: decisions differ from the known ones, but for few of them."""
    rng = np.random.default_rng(width)
    jacobian = rng.uniform(-0.4, 1.0, (width, columns))
    vectors = [rng.normal(size=(width, SIZE)) for _ in range(2)]
    numbers = [rng.normal(size=width), np.log(rng.uniform(size=width)), np.full(width, 0.1)]
    found = [jacobian, *vectors, rng.normal(size=SIZE), *numbers]
    return [a if i in (4, 5) else a.astype(dtype) for i, a in enumerate(found)]


def compiled(mode: object, columns: int = SIZE, dtype: str = "float64"):
    types = [dtype] * 4 + ["float64"] * 2 + [dtype]
    variables = [
        pt.tensor(name, dtype=kind, shape=shape)
        for name, kind, shape in zip(NAMES, types, shapes(None, columns), strict=True)
    ]
    return pytensor.function(variables, chain_scan(*variables), mode=mode)


def plain_loop(given: Arguments) -> tuple[np.ndarray, np.ndarray]:
    """States, and decisions."""
    *steps, state, log_alpha, log_u, bend = given
    states, decisions = [], []
    for j, q, z, a, u, b in zip(*steps, log_alpha, log_u, bend, strict=True):
        proposal = q + j * (state - z)
        gained = (proposal @ proposal - state @ state) - (q @ q - z @ z)
        decisions.append(a - b * gained > u)
        state = proposal if decisions[-1] else state
        states.append(state)
    return np.array(states), np.array(decisions)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("columns", [SIZE, 1], ids=["factor a coordinate", "factor a step"])
def test_agrees_with_a_plain_loop(
    mode: str, dtype: str, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """JAX's rounds find one decision each at least, and settle."""
    monkeypatch.setattr(scan_jax, "ROUNDS", 34)
    scan = compiled(mode, columns, dtype)
    for width in (1, 2, 33):
        given = arguments(width, columns, dtype)
        kept = given[3].copy()
        found = np.asarray(scan(*given))
        assert found.shape == (width, SIZE)
        assert found.dtype == dtype
        rtol = 1e-11 if dtype == "float64" else 1e-4
        expected, decisions = plain_loop(given)
        assert_allclose(found, expected, rtol=rtol, atol=rtol)
        assert_array_equal(given[3], kept)
    assert 0 < (decisions != (given[4] > given[5])).sum() < 33


@pytest.mark.parametrize("mode", MODES)
def test_without_bends_decisions_are_the_known_ones(mode: str) -> None:
    given = arguments(40)
    given[6][:] = 0
    expected, decisions = plain_loop(given)
    assert_array_equal(decisions, given[4] > given[5])
    assert_allclose(np.asarray(compiled(mode)(*given)), expected, rtol=1e-11)


@pytest.mark.parametrize("mode", MODES)
def test_where_the_chain_is_as_it_was_the_ratio_is_what_it_was(mode: str) -> None:
    """Or a chain that is solved might leave where it is."""
    given = arguments(64)
    given[5] = given[4] + np.where(np.arange(64) % 2, 1e-12, -1e-12)
    accepted = given[4] > given[5]
    assert 0 < accepted.sum() < 64
    states = np.empty_like(given[1])
    state = given[3]
    for t in range(64):
        given[2][t] = state
        states[t] = state = given[1][t] if accepted[t] else state
    assert_allclose(np.asarray(compiled(mode)(*given)), states, rtol=0, atol=1e-14)


def test_few_rounds_leave_few_decisions_wrong() -> None:
    given = arguments(500)
    expected, _ = plain_loop(given)
    accepted = given[4] > given[5]

    states = jax.jit(scan_jax.chain_states)

    def right(rounds: int) -> float:
        found = states(accepted, *given, rounds=rounds)
        return np.isclose(np.asarray(found), expected, rtol=1e-4).all(axis=1).mean()

    wrong = [1 - right(rounds) for rounds in (1, 2, 3)]
    assert wrong[0] > 1.3 * wrong[1] > 1.3**2 * wrong[2] > 0


@pytest.mark.parametrize("width", [64, 40, 33])
def test_a_scan_of_several_kernels_is_that_of_one(
    width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Down to whatever length they halve it, and where it cannot be halved."""
    given = arguments(width)
    expected = np.asarray(compiled("JAX")(*given))
    monkeypatch.setattr(scan_jax, "_FUSED", 4)
    assert_allclose(np.asarray(compiled("JAX")(*given)), expected, rtol=1e-11)


def test_shape_is_known_without_running() -> None:
    variables = [pt.tensor(shape=shape, dtype="float64") for shape in shapes(None, SIZE)]
    shape = pytensor.function(
        variables,
        chain_scan(*variables).shape,
        mode=Mode("py", "fast_run"),
        on_unused_input="ignore",
    )
    assert not any(isinstance(node.op, ChainScan) for node in shape.maker.fgraph.toposort())
    assert tuple(shape(*arguments(4))) == (4, SIZE)


@pytest.mark.parametrize("wrong", range(7))
def test_wrong_number_of_dimensions(wrong: int) -> None:
    ndims = [len(shape) + (i == wrong) for i, shape in enumerate(shapes(None, SIZE))]
    variables = [pt.tensor(dtype="float64", shape=(None,) * n) for n in ndims]
    with pytest.raises(TypeError, match="ChainScan takes arrays of"):
        chain_scan(*variables)


@pytest.mark.parametrize("mode", ["FAST_COMPILE", "NUMBA"])
def test_running_sums(mode: str) -> None:
    x = pt.matrix("x", dtype="float32")
    values = np.random.default_rng(0).normal(size=(50, 4)).astype("float32")
    found = pytensor.function([x], running_sum(x), mode=mode)(values)
    assert found.dtype == "float32"
    assert_allclose(found, np.cumsum(values, axis=0), rtol=1e-4, atol=1e-5)
