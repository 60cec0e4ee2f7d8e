"""Leapfrog paths and the directions they carry along, against plain NumPy and differences."""

from collections.abc import Callable
from functools import partial

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_deer import leapfrog
from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.leapfrog import Path, Phase, Tangent
from pymc_deer.reference import flow, kick_shares

SIZE = 3
LENGTHS = np.array([1, 4, 3, 7, 2])
STEP_SIZES = np.array([0.3, 0.2, 0.4, 0.15, 0.25])
SCALES = np.array([1.0, 0.5, 2.0])


def slope(z) -> list:
    """Gradient of a bent density whose coordinates hang together, and what logp follows from."""
    total = pt.sum(z, axis=-1)
    return [-SCALES * z - pt.expand_dims(0.4 * total**3, -1), z, total]


def height(parts) -> pt.TensorVariable:
    z, total = parts
    return -pt.sum(SCALES * z**2, axis=-1) / 2 - total**4 / 10


density = GradientFirst.of_parts(slope, height)


def hvp(z, directions):
    """Its Hessian at z (..., D) times directions (..., P, D)."""
    bend = pt.expand_dims(1.2 * pt.sum(z, axis=-1) ** 2, (-2, -1))
    return -SCALES * directions - bend * pt.sum(directions, axis=-1, keepdims=True)


def gradient(z: np.ndarray) -> np.ndarray:
    return -SCALES * z - 0.4 * z.sum() ** 3


plain = partial(flow, gradient)


def starts() -> tuple[np.ndarray, np.ndarray]:
    return tuple(np.random.default_rng(0).normal(size=(2, len(LENGTHS), SIZE)))


def compiled(batch: bool, n_directions: int | None = None, inlined: bool = False) -> Callable:
    """End of a path as a function of z, momentum, step size, number of steps and directions."""
    lead = (None,) if batch else ()
    z, momentum = (pt.tensor(n, dtype="float64", shape=(*lead, SIZE)) for n in ("z", "momentum"))
    step_size = pt.tensor("step_size", dtype="float64", shape=lead)
    n_leapfrog = pt.tensor("n_leapfrog", dtype="int64", shape=lead)
    directions = pt.tensor("v", dtype="float64", shape=(*lead, n_directions or 1, SIZE))
    tangent = Tangent(hvp, directions) if n_directions else None
    path = Path(step_size, None if inlined else n_leapfrog)
    start = Phase(z, momentum, *density.both(z))
    end, moved = leapfrog.leapfrog(density, start, path, tangent)
    outputs = [*end, *([] if moved is None else [moved])]
    inputs = [z, momentum, step_size, n_leapfrog, directions]
    return pytensor.function(inputs, outputs, mode="FAST_COMPILE", on_unused_input="ignore")


def test_paths_of_different_lengths_are_those_of_each_alone() -> None:
    z, momentum = starts()
    nothing = np.zeros((len(LENGTHS), 1, SIZE))
    together = compiled(batch=True)(z, momentum, STEP_SIZES, LENGTHS, nothing)
    alone = compiled(batch=False)
    for i, n in enumerate(LENGTHS):
        by_itself = alone(z[i], momentum[i], STEP_SIZES[i], n, nothing[i])
        for one, other in zip(together, by_itself, strict=True):
            assert_allclose(one[i], other, rtol=1e-12)
        expected_z, expected_momentum = plain(z[i], momentum[i], STEP_SIZES[i], n)
        assert_allclose(together[0][i], expected_z, rtol=1e-12)
        assert_allclose(together[1][i], expected_momentum, rtol=1e-12)
        assert_allclose(together[3][i], gradient(expected_z), rtol=1e-12)


@pytest.mark.parametrize("batch", [False, True])
def test_a_path_of_one_step_is_the_inlined_step(batch: bool) -> None:
    z, momentum = starts()
    rows = slice(None) if batch else 0
    n = np.ones_like(LENGTHS)[rows]
    v = np.random.default_rng(1).normal(size=(len(LENGTHS), 2, SIZE))[rows]
    given = z[rows], momentum[rows], STEP_SIZES[rows], n, v
    loop = compiled(batch, n_directions=2)(*given)
    inlined = compiled(batch, n_directions=2, inlined=True)(*given)
    assert len(loop) == len(inlined) == 5
    for one, other in zip(loop, inlined, strict=True):
        assert_allclose(one, other, rtol=1e-12)


@pytest.mark.parametrize("n", [2, 4, 256])
def test_kicks_of_an_even_number_of_steps_are_a_palindrome(n: int) -> None:
    for step_size in (1e-3, 0.5, 1.0, 1.9):
        kicks = kick_shares(n, step_size)
        assert_allclose(kicks, kicks[::-1])
        assert kicks.sum() == pytest.approx(n)
    assert_allclose(kick_shares(n, 1.9)[1:-1], 1.0)
    assert kick_shares(n, 1.0)[0] == pytest.approx(2 * 0.21178, abs=1e-5)


def check_reversible() -> None:
    z, momentum = starts()
    nothing = np.zeros((len(LENGTHS), 1, SIZE))
    move = compiled(batch=True)
    there, turned, *_ = move(z, momentum, STEP_SIZES, LENGTHS, nothing)
    assert np.abs(there - z).max() > 0.5
    back, again, *_ = move(there, -turned, STEP_SIZES, LENGTHS, nothing)
    assert_allclose(back, z, atol=1e-10)
    assert_allclose(again, -momentum, atol=1e-10)


def test_paths_are_reversible() -> None:
    check_reversible()


def test_a_last_kick_like_one_between_pairs_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leapfrog, "_ended", lambda kicks, momentum, dlogp: momentum)
    with pytest.raises(AssertionError):
        check_reversible()


def test_kicks_that_are_all_alike_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of another path, which is reversible as well."""
    monkeypatch.setattr(leapfrog._Kicks, "behind", lambda kicks, i: 2 * kicks.at_ends)
    check_reversible()
    with pytest.raises(AssertionError):
        test_paths_of_different_lengths_are_those_of_each_alone()


def energy_error(n: int, step_size: float) -> float:
    """Largest relative change of a harmonic oscillator's energy along a path, over its phases."""
    angles = np.linspace(0, np.pi, 64)
    z, momentum = flow(np.negative, np.cos(angles), np.sin(angles), step_size, n)
    return float(np.abs(z**2 + momentum**2 - 1).max())


@pytest.mark.parametrize(("step_size", "share"), [(0.05, 1e-3), (0.3, 0.02), (0.6, 0.06), (1, 0.1)])
def test_pairs_of_steps_keep_the_energy_of_a_gaussian(step_size: float, share: float) -> None:
    """Beside leapfrog's steps, whose energy returns at some lengths: the largest of several."""
    pairs = max(energy_error(n, step_size) for n in range(2, 40, 2))
    alone = max(energy_error(n, step_size) for n in range(1, 40, 2))
    assert pairs < share * alone


def differences(z: np.ndarray, momentum: np.ndarray, step_size: float, n: int) -> np.ndarray:
    """Jacobian of a path's end with regard to its start, at fixed momentum, (D, D)."""
    columns = []
    for unit in 1e-5 * np.eye(SIZE):
        ends = [plain(z + shift, momentum, step_size, n)[0] for shift in (unit, -unit)]
        columns.append((ends[0] - ends[1]) / 2e-5)
    return np.transpose(columns)


def check_tangent() -> None:
    """The directions at the end are the Jacobian of the path times those at its start."""
    z, momentum = starts()
    v = np.random.default_rng(1).choice([-1.0, 1.0], size=(len(LENGTHS), 2, SIZE))
    moved = compiled(batch=True, n_directions=2)(z, momentum, STEP_SIZES, LENGTHS, v)[-1]
    for i, n in enumerate(LENGTHS):
        expected = v[i] @ differences(z[i], momentum[i], STEP_SIZES[i], n).T
        assert_allclose(moved[i], expected, atol=1e-7)
        alone = compiled(batch=False, n_directions=2)
        one = alone(z[i], momentum[i], STEP_SIZES[i], n, v[i])[-1]
        assert_allclose(one, expected, atol=1e-7)


def test_directions_move_by_the_jacobian_of_the_path() -> None:
    check_tangent()


@pytest.mark.parametrize("entry", [0, 1], ids=["position", "momentum"])
def test_a_tangent_without_one_of_its_updates_is_caught(
    entry: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = leapfrog._step_tangent

    def mutant(hvp, z, directions, momentum, *sizes):
        moved = original(hvp, z, directions, momentum, *sizes)
        moved[entry] = (directions, momentum)[entry]
        return moved

    monkeypatch.setattr(leapfrog, "_step_tangent", mutant)
    with pytest.raises(AssertionError):
        check_tangent()


def test_a_tangent_whose_kicks_are_not_joined_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(leapfrog._Kicks, "before", lambda kicks, i: kicks.at_ends)
    with pytest.raises(AssertionError):
        check_tangent()


def test_states_may_share_their_directions() -> None:
    """The unit vectors of the exact rule are given once for all states."""
    z, momentum = starts()
    units = np.eye(SIZE)[None]
    like = {"dtype": "float64", "shape": (None, SIZE)}
    variables = [pt.tensor("z", **like), pt.tensor("momentum", **like)]
    path = Path(pt.constant(STEP_SIZES), pt.constant(LENGTHS))
    start = Phase(*variables, *density.both(variables[0]))
    tangent = Tangent(hvp, pt.constant(units))
    _, moved = leapfrog.leapfrog(density, start, path, tangent)
    found = pytensor.function(variables, moved, mode="FAST_COMPILE")(z, momentum)
    for i, n in enumerate(LENGTHS):
        jacobian = differences(z[i], momentum[i], STEP_SIZES[i], n)
        assert_allclose(found[i], jacobian.T, atol=1e-7)
