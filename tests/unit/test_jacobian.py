"""The Jacobian rules: what they assume, and what the secant sees."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_deer.jacobian import accepted_jacobian, preconditioned_jacobian, secant_curvature
from pymc_deer.leapfrog import Path
from pymc_deer.reference import gaussian_factor

CURVATURES = np.array([0.1, 0.9, 1.6, 5.0])


def seen(previous: np.ndarray, dlogp: np.ndarray, memory: np.ndarray) -> np.ndarray:
    names = ("previous", "dlogp", "memory")
    inputs = [pt.matrix(name, dtype="float64") for name in names]
    inputs[0] = pt.tensor("previous", dtype="float64", shape=(None, 4))
    curvature = secant_curvature(*inputs, pt.constant(1.25, dtype="float64"))
    function = pytensor.function(inputs, curvature, mode="FAST_COMPILE")
    return np.asarray(function(previous, dlogp, memory))


def test_the_secant_is_the_curvature_of_a_gaussian_within_bounds() -> None:
    rng = np.random.default_rng(0)
    before, now = rng.normal(size=(2, 3, 4))
    memory = np.hstack([before, -CURVATURES * before])
    expected = np.broadcast_to([0.7, 0.9, 1.6, 3.0], (3, 4))
    assert_allclose(seen(now, -CURVATURES * now, memory), expected, rtol=1e-10)


def test_the_bound_stands_in_where_nothing_is_seen() -> None:
    rng = np.random.default_rng(0)
    now = rng.normal(size=(3, 4))
    dlogp = -CURVATURES * now
    unknown = np.full((3, 8), np.nan)
    still = np.hstack([now, dlogp])
    for memory in (unknown, still):
        assert_allclose(seen(now, dlogp, memory), 1.25)
    broken = np.hstack([now + 1.0, dlogp])
    broken[:, 4:] = np.inf
    assert_allclose(seen(now, dlogp, broken), 1.25)


@pytest.mark.parametrize("n_leapfrog", [1, 2, 4, 5])
def test_the_scalar_rule_is_the_jacobian_of_a_gaussian(n_leapfrog: int) -> None:
    step_size, curvature = 0.2, 1.4
    z = gaussian_factor(step_size, curvature, n_leapfrog)
    steps, bound = pt.constant(step_size), pt.constant(curvature)
    found = preconditioned_jacobian(Path(steps, pt.constant(n_leapfrog)), bound)
    assert found.eval() == pytest.approx(z, rel=1e-6)
    if n_leapfrog == 1:
        assert preconditioned_jacobian(Path(steps), bound).eval() == pytest.approx(z, rel=1e-6)


def scalar_rule(step_size: float, curvature: float, n_leapfrog: int) -> float:
    path = Path(pt.constant(step_size), pt.constant(n_leapfrog))
    return float(preconditioned_jacobian(path, pt.constant(curvature)).eval())


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
    found = preconditioned_jacobian(path, pt.constant(curvature)).eval()
    paths = list(zip(sizes, lengths, strict=True))
    expected = np.array([[gaussian_factor(size, c, n) for c in curvature] for size, n in paths])
    assert (expected > 0).all()
    assert_allclose(found, expected)


def test_an_estimated_diagonal_is_scaled_from_1_and_clipped() -> None:
    diagonal = pt.constant(np.array([1.0, 0.9, 0.4, 0.2, -3.0, 1.4]))
    found = accepted_jacobian(diagonal, pt.constant(1.5)).eval()
    assert_allclose(found, [1.0, 0.85, 0.1, 0.0, 0.0, 1.0])
