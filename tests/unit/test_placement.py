"""How loops are compiled for a device, as far as no GPU is needed to see it."""

from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from pymc_deer.backends import placement
from pymc_deer.backends.default_device import default_device
from pymc_deer.backends.placement import OneDevice, gpu_options


@pytest.fixture
def options(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[object]]:
    """Compiler options of all that is compiled meanwhile."""
    given: list[object] = []
    jit = jax.jit

    def seen(*arguments, compiler_options=None, **others):
        given.append(compiler_options)
        return jit(*arguments, **others)

    monkeypatch.setattr(jax, "jit", seen)
    gpu_options.cache_clear()
    yield given
    gpu_options.cache_clear()


def count_down(n: jax.Array) -> jax.Array:
    return jax.lax.while_loop(lambda k: k.min() > 0, lambda k: k - 1, n)


def test_a_cpu_is_given_no_options(options: list[object]) -> None:
    np.testing.assert_array_equal(OneDevice().program(count_down, [])(jnp.array([3, 5])), [0, 2])
    assert options == [None]


def test_a_gpu_starts_the_rounds_of_loops_itself(
    options: list[object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneDevice, "on_cpu", False)
    np.testing.assert_array_equal(OneDevice().program(count_down, [])(jnp.array([3, 5])), [0, 2])
    [value] = options[-1].values()
    assert {"WHILE", "CONDITIONAL"} <= set(value.split(","))


def test_an_option_that_xla_does_not_know_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu_options.cache_clear()
    monkeypatch.setattr(placement, "_GRAPHS", {"xla_gpu_of_another_release": "1"})
    assert gpu_options() is None
    gpu_options.cache_clear()


def test_the_default_device_is_the_one_that_the_user_chose() -> None:
    cpu = jax.local_devices(backend="cpu")[0]
    with jax.default_device(None):
        assert default_device() == jax.local_devices()[0]
    other = object()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "local_devices", lambda backend=None: [cpu if backend else other])
        assert default_device() is other
        for chosen in (cpu, "cpu"):
            with jax.default_device(chosen):
                assert default_device() == cpu
