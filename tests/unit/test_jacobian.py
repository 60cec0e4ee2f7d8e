"""The Jacobian rules: what they assume, and what the secant sees."""

from functools import cache
from typing import Any

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_deer.jacobian import accepted_jacobian, preconditioned_jacobian, secant_jacobian
from pymc_deer.leapfrog import Path
from pymc_deer.reference import gaussian_factor

CURVATURES = np.array([0.1, 0.9, 1.6, 5.0])


STEP_SIZE = 0.6
N_LEAPFROG: list[int | None] = [None, 1, 2, 4]


def path_of(n_leapfrog: int | None) -> Path:
    rows = pt.constant(np.full((3, 1), STEP_SIZE))
    return Path(rows, None if n_leapfrog is None else pt.constant(np.full((3, 1), n_leapfrog)))


@cache
def compiled_secant(size: int, n_leapfrog: int | None, curvature: float) -> Any:
    """Of the transitions, the proposals and the memory of a window."""
    inputs = [pt.tensor(dtype="float64", shape=(None, size)) for _ in range(2)]
    inputs.append(pt.matrix(dtype="float64"))
    bound = pt.constant(curvature, dtype="float64")
    secant = secant_jacobian(*inputs, path_of(n_leapfrog), bound)
    return pytensor.function(inputs, secant, mode="FAST_COMPILE")


def seen(
    previous: np.ndarray,
    proposals: np.ndarray,
    memory: np.ndarray,
    n_leapfrog: int | None = None,
    curvature: float = 1.25,
) -> np.ndarray:
    function = compiled_secant(previous.shape[1], n_leapfrog, curvature)
    return np.asarray(function(previous, proposals, memory))


@pytest.mark.parametrize("n_leapfrog", N_LEAPFROG)
def test_the_secant_is_the_jacobian_of_a_gaussian_within_bounds(n_leapfrog: int | None) -> None:
    """Of the coordinate that moves alone."""
    rng = np.random.default_rng(0)
    before = rng.normal(size=(3, 4))
    factors = [gaussian_factor(STEP_SIZE, c, n_leapfrog or 1) for c in CURVATURES]
    proposals = rng.normal(size=(3, 4))
    ends = sorted(gaussian_factor(STEP_SIZE, c, n_leapfrog or 1) for c in (0.7, 3.0))
    # Four steps turn by pi for a curvature in between.
    least = -1 if n_leapfrog == 4 else ends[0]
    for i, factor in enumerate(factors):
        moved = np.zeros((3, 4))
        moved[:, i] = rng.normal(size=3)
        found = seen(
            before + moved, proposals + factor * moved, np.hstack([before, proposals]), n_leapfrog
        )
        expected = max(np.clip(factor, least, ends[1]), -0.4)
        assert_allclose(found[:, i], np.full(3, expected), rtol=1e-9)


def test_the_secant_of_one_dimension_is_exact() -> None:
    """No other coordinate draws it to the bound."""
    before, now = np.zeros((3, 1)), np.full((3, 1), 0.3)
    found = seen(now, 0.7 * now, np.hstack([before, before]))
    assert_allclose(found, np.full((3, 1), 0.7), rtol=1e-12)


def test_a_coordinate_that_others_move_has_the_bound() -> None:
    """What its proposal changes by says nothing of its own Jacobian."""
    before = np.zeros((3, 4))
    now = np.array([1.0, 1.0, 1.0, 1e-3]) * np.ones((3, 1))
    found = seen(now, np.ones((3, 4)), np.hstack([before, before]))
    assumed = 1 - 1.25 * STEP_SIZE**2 / 2
    assert_allclose(found[:, 3], np.full(3, assumed), rtol=0.02)
    assert (found[:, :3] > assumed + 0.03).all()


def test_long_paths_may_turn_to_where_they_began() -> None:
    """Between the ends of what curvatures are believed lie the largest Jacobian and the least."""
    rng = np.random.default_rng(0)
    before, proposals = rng.normal(size=(2, 3, 1))
    memory = np.hstack([before, proposals])
    for factor in (1.0, -0.4):
        found = seen(before + 1, proposals + factor, memory, n_leapfrog=10)
        assert_allclose(found, np.full((3, 1), factor), rtol=1e-9)
    found = seen(before + 1, proposals + 1.0, memory, n_leapfrog=4)
    assert_allclose(found, np.full((3, 1), gaussian_factor(STEP_SIZE, 3.0, 4)), rtol=1e-9)


def test_the_bound_stands_in_where_nothing_is_seen() -> None:
    rng = np.random.default_rng(0)
    now, proposals = rng.normal(size=(2, 3, 4))
    assumed = np.full((3, 4), 1 - 1.25 * STEP_SIZE**2 / 2)
    unknown = np.full((3, 8), np.nan)
    still = np.hstack([now, proposals])
    for memory in (unknown, still):
        assert_allclose(seen(now, proposals, memory), assumed)
    broken = np.hstack([now + 1.0, proposals])
    broken[:, 4:] = np.inf
    assert_allclose(seen(now, proposals, broken), assumed)


@pytest.mark.parametrize("n_leapfrog", [1, 2, 4, 5])
def test_the_scalar_rule_is_the_jacobian_of_a_gaussian(n_leapfrog: int) -> None:
    step_size, curvature = 0.2, 1.4
    z = gaussian_factor(step_size, curvature, n_leapfrog)
    steps, bound = pt.constant(step_size), pt.constant(curvature)
    found = preconditioned_jacobian(Path(steps, pt.constant(n_leapfrog)), bound)
    assert found.eval(mode="FAST_COMPILE") == pytest.approx(z, rel=1e-6)
    if n_leapfrog == 1:
        found = preconditioned_jacobian(Path(steps), bound)
        assert found.eval(mode="FAST_COMPILE") == pytest.approx(z, rel=1e-6)


def scalar_rule(step_size: float, curvature: float, n_leapfrog: int) -> float:
    path = Path(pt.constant(step_size), pt.constant(n_leapfrog))
    return float(preconditioned_jacobian(path, pt.constant(curvature)).eval(mode="FAST_COMPILE"))


def test_the_scalar_rule_is_clipped_between_turning_round_and_standing_still() -> None:
    # An angle of pi / 3 a step: cos(pi) is negative, and after a period z is back.
    assert scalar_rule(1.0, 1.0, 3) == 0
    assert scalar_rule(1.0, 1.0, 7) == pytest.approx(0.5)
    assert gaussian_factor(1.0, 1.0, 2) < 0
    assert scalar_rule(1.0, 1.0, 2) == 0
    assert gaussian_factor(1.0, 1.0, 6) == pytest.approx(scalar_rule(1.0, 1.0, 6))


@pytest.mark.parametrize("n_leapfrog", [1, 3, 5])
def test_steps_of_more_than_a_quarter_turn_are_seen(n_leapfrog: int) -> None:
    expected = gaussian_factor(1.6, 1.0, n_leapfrog)
    assert scalar_rule(1.6, 1.0, n_leapfrog) == pytest.approx(max(expected, 0), abs=1e-12)


@pytest.mark.parametrize("n_leapfrog", [1, 2, 3, 200])
def test_beyond_the_stability_limit_the_scalar_rule_is_that_of_the_limit(n_leapfrog: int) -> None:
    for step_size in (2.0, 2.5, 100.0):
        assert scalar_rule(step_size, 1.0, n_leapfrog) == pytest.approx(1 - n_leapfrog % 2)


def test_each_transition_of_a_window_has_its_own_path() -> None:
    sizes, lengths = np.array([0.2, 0.3, 0.4]), np.array([1, 3, 2])
    curvature = np.array([0.8, 1.0, 1.5, 2.0])
    path = Path(pt.constant(sizes[:, None]), pt.constant(lengths[:, None]))
    found = preconditioned_jacobian(path, pt.constant(curvature)).eval(mode="FAST_COMPILE")
    paths = list(zip(sizes, lengths, strict=True))
    expected = np.array([[gaussian_factor(size, c, n) for c in curvature] for size, n in paths])
    assert (expected > 0).all()
    assert_allclose(found, expected)


def test_an_estimated_diagonal_is_scaled_from_1_and_clipped() -> None:
    diagonal = pt.constant(np.array([1.0, 0.9, 0.4, 0.2, -3.0, 1.4]))
    found = accepted_jacobian(diagonal, pt.constant(1.5)).eval(mode="FAST_COMPILE")
    assert_allclose(found, [1.0, 0.85, 0.1, 0.0, 0.0, 1.0])
