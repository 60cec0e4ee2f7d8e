"""Sums of numbers that fill arrays, whose sizes no short integer holds."""

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode

from pymc_deer.backends.jax_mode import JAX_CPU_MODE, JAX_KERNEL_MODE
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.density import build_density

MODES = {"jax": JAX_CPU_MODE, "gpu": JAX_KERNEL_MODE, "numba": NUMBA_MODE}
EACH = pytest.mark.parametrize("mode", MODES.values(), ids=list(MODES))


@EACH
def test_sizes_are_those_of_all_axes(mode: Mode) -> None:
    x, row = pt.dscalar("x"), pt.tensor("row", shape=(6,))
    filled = pt.alloc(x, 40, 6)
    outputs = [filled.sum(), pt.alloc(row, 40, 50, 6).sum(axis=(0, 1)), filled.prod()]
    function = pytensor.function([x, row], outputs, mode=mode)
    total, rows, product = function(1.01, np.arange(6.0))  # type: ignore[misc]
    assert total == pytest.approx(240 * 1.01)
    assert_allclose(rows, 2000 * np.arange(6.0))
    assert product == pytest.approx(1.01**240)


@pytest.mark.parametrize(
    ("shape", "mode"),
    [((40, 6), MODES["numba"]), ((40, 6), MODES["gpu"]), ((16, 16), MODES["jax"])],
    ids=["(40, 6)-numba", "(40, 6)-gpu", "(16, 16)-jax"],
)
def test_gradients_of_matrices_of_observations(shape: tuple[int, int], mode: Mode) -> None:
    """Of a deviation that is the same for all; of states in a batch too."""
    y = np.random.default_rng(0).normal(size=shape)
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("mu", shape=shape[1]), pm.HalfNormal("sigma"), observed=y)
    density, dlogp = build_density(model), model.compile_dlogp(mode="FAST_COMPILE")
    states = np.random.default_rng(1).normal(size=(3, density.size))
    expected = [dlogp({"mu": x[:-1], "sigma_log__": x[-1]}) for x in states]
    batch = pt.tensor("batch", shape=states.shape)
    graphs = [density.dlogp, density.batch.both(batch)[1]]
    function = pytensor.function([density.x, batch, *density.params], graphs, mode=mode)
    alone, together = function(states[0], states, *density.param_values({}))  # type: ignore[misc]
    assert_allclose(alone, expected[0])
    assert_allclose(together, expected)
