"""Chains on the standard normal target, which need no gradient."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer import reference
from pymc_deer.backends.forecast import from_rest, on_standard_normal
from pymc_deer.backends.forecast_numba import compiled_chain_states
from pymc_deer.noise import draw_tape
from pymc_deer.ops.scan import chain_states
from tests.support import BACKENDS

SIZE, N = 4, 400
Noise = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def noise_of(step_size: float, most: int, seed: int = 0) -> Noise:
    """Momenta, log u, step sizes that vary, and numbers of steps up to `most`."""
    rngs = [np.random.default_rng([seed, i]) for i in range(4)]
    tape = draw_tape(*rngs[:2], N, SIZE)
    sizes = step_size * rngs[2].uniform(0.5, 1.0, N)
    return tape.xi, tape.log_u, sizes, rngs[3].integers(1, most + 1, N)


def forecast_of(start: np.ndarray, noise: Noise) -> np.ndarray:
    xi, log_u, *paths = noise
    return chain_states(*from_rest(np, start, xi, log_u, *on_standard_normal(np, *paths)))


def standard_normal(z: np.ndarray) -> tuple[float, np.ndarray]:
    return -0.5 * float(z @ z), -z


@pytest.mark.parametrize("step_size", [0.05, 0.7, 1.2])
@pytest.mark.parametrize("most", [1, 2, 9])
def test_it_is_the_chain_on_that_target(step_size: float, most: int) -> None:
    """Leapfrog steps and pairs of them, and decisions of both kinds."""
    xi, log_u, *paths = noise = noise_of(step_size, most)
    start = np.full(SIZE, 3.0)
    states, ratios = reference.sequential(standard_normal, start, xi, log_u, *paths)
    assert_allclose(forecast_of(start, noise), states, atol=1e-9)
    if step_size > 1:
        assert 0.02 < (ratios < log_u).mean() < 0.9


def test_steps_of_size_zero_stay() -> None:
    xi, log_u, sizes, n_leapfrog = noise_of(1.0, 5)
    start = np.arange(SIZE) + 0.5
    found = forecast_of(start, (xi, log_u, 0.0 * sizes, n_leapfrog))
    assert_array_equal(found, np.tile(start, (N, 1)))


def test_steps_that_are_not_stable_do_not_leave() -> None:
    found = forecast_of(np.ones(SIZE), noise_of(8.0, 6))
    assert np.isfinite(found).all()


def test_a_number_that_is_none_is_rejected() -> None:
    xi, *others = noise_of(0.7, 1)
    xi[50] = np.nan
    found = forecast_of(np.ones(SIZE), (xi, *others))
    assert_array_equal(found[50], found[49])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_numba_has_the_same(dtype: str) -> None:
    xi, log_u, sizes, n_leapfrog = noise_of(1.2, 5)
    noise = xi.astype(dtype), log_u, sizes.astype(dtype), n_leapfrog
    start = np.ones(SIZE, dtype)
    transitions = on_standard_normal(np, *noise[2:])
    found = compiled_chain_states()(*from_rest(np, start, *noise[:2], *transitions))
    assert found.dtype == dtype
    assert_allclose(found, forecast_of(start, noise), rtol=0, atol=1e-5)


@pytest.mark.skipif("jax" not in BACKENDS, reason="JAX is not under test")
@pytest.mark.parametrize("most", [1, 6])
def test_jax_guesses_few_decisions_wrong(most: int) -> None:
    """None where steps are small, as then nearly all are accepted."""
    import jax

    from pymc_deer.backends.forecast_jax import forecast

    with jax.enable_x64(True):
        for step_size, least in ((0.3, 1.0), (1.0, 0.95)):
            noise, start = noise_of(step_size, most), np.ones(SIZE)
            transitions = on_standard_normal(np, *noise[2:])
            found = np.asarray(jax.jit(forecast)(start, *noise[:2], *transitions))
            right = np.isclose(found, forecast_of(start, noise), atol=1e-9).all(axis=1)
            assert right.mean() >= least
