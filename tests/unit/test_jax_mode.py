"""What JAX is given in place of PyTensor's own Ops."""

from typing import Literal

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pytensor.compile.mode import Mode
from pytensor.tensor.signal import convolve1d

from pymc_deer.backends.jax_mode import JAX_CPU_MODE, JAX_KERNEL_MODE
from pymc_deer.density import build_density

SIGNALS = np.random.default_rng(0).uniform(size=(2, 20))


@pytest.mark.parametrize(
    ("mode", "n", "compiler"),
    [("valid", 17, JAX_CPU_MODE), ("same", 20, JAX_KERNEL_MODE), ("full", 23, JAX_CPU_MODE)],
    ids=["valid-cpu", "same-gpu", "full-cpu"],
)
def test_a_batch_of_convolutions_has_a_gradient(
    mode: Literal["valid", "same", "full"], n: int, compiler: Mode
) -> None:
    """Of states in a batch too: the media of a marketing model, whose effects wear off."""
    with pm.Model() as model:
        kept = pm.Beta("kept", 2.0, 2.0, shape=2)
        effects = convolve1d(SIGNALS, kept[:, None] ** pt.arange(4), mode=mode)
        pm.Normal("y", effects.sum(axis=0), 1.0, observed=np.ones(n))
    density, x = build_density(model), np.array([[0.3, -0.7], [1.1, 0.2]])
    states = pt.tensor("states", shape=x.shape)
    outputs = density.batch.both(states)
    inputs, values = [states, *density.params], (x, *density.param_values({}))
    logp, dlogp = pytensor.function(inputs, outputs, mode=compiler)(*values)  # type: ignore[misc]
    expected = model.compile_logp(sum=True, mode="FAST_COMPILE")
    slope = model.compile_dlogp(mode="FAST_COMPILE")
    for i, state in enumerate(x):
        assert_allclose(logp[i], expected({"kept_logodds__": state}), rtol=1e-6)
        assert_allclose(dlogp[i], slope({"kept_logodds__": state}), rtol=1e-5)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int16", "int64"])
def test_indices_of_few_bits_count_from_the_end_of_a_long_axis(dtype: str) -> None:
    """A lookup, and what its gradient adds up."""
    index = np.random.default_rng(0).integers(-100, 100, 60).astype(dtype)
    n = 40_000 if dtype == "int16" else 300
    with pm.Model() as model:
        a = pm.Flat("a", shape=n)
        pm.Normal("y", a[index], 1.0, observed=np.zeros(60))
    density, x = build_density(model), np.linspace(-1.0, 1.0, n)
    inputs, values = [density.x, *density.params], (x, *density.param_values({}))
    outputs = [density.logp, density.dlogp]
    logp, dlogp = pytensor.function(inputs, outputs, mode=JAX_CPU_MODE)(*values)  # type: ignore[misc]
    expected = np.zeros(n)
    np.subtract.at(expected, index.astype(int), x[index.astype(int)])
    assert_allclose(logp, model.compile_logp(sum=True, mode="FAST_COMPILE")({"a": x}))
    assert_allclose(dlogp, expected)
