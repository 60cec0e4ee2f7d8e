"""The Jacobian rules: what they assume, and what the secant sees."""

import numpy as np
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose

from pymc_deer.jacobian import preconditioned_jacobian, secant_curvature
from pymc_deer.leapfrog import Path

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


@pytest.mark.parametrize("n_leapfrog", [1, 2, 5])
def test_the_scalar_rule_is_the_jacobian_of_a_gaussian(n_leapfrog: int) -> None:
    step_size, curvature = 0.2, 1.4
    z, momentum = 1.0, 0.0
    for _ in range(n_leapfrog):
        momentum -= step_size / 2 * curvature * z
        z += step_size * momentum
        momentum -= step_size / 2 * curvature * z
    steps, bound = pt.constant(step_size), pt.constant(curvature)
    found = preconditioned_jacobian(Path(steps, pt.constant(n_leapfrog)), bound)
    assert found.eval() == pytest.approx(z, rel=1e-6)
    if n_leapfrog == 1:
        assert preconditioned_jacobian(Path(steps), bound).eval() == pytest.approx(z, rel=1e-6)
