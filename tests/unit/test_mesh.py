"""Which devices share what."""

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import AxisType, Mesh

from pymc_deer.backends import placement
from pymc_deer.backends.mesh import AskedDevices, shared_out
from pymc_deer.backends.placement import AXES, ManyDevices
from pymc_deer.status import BackendError, OptionError


@pytest.mark.parametrize(
    ("n_devices", "lengths", "shares"),
    [
        (1, (4, 1, 1), (1, 1, 1)),
        (4, (4, 64, 1000), (4, 1, 1)),
        (8, (4, 64, 1000), (4, 2, 1)),
        (8, (4, 1, 1000), (4, 1, 2)),
        (6, (4, 64, 999), (2, 1, 3)),
        (8, (1, 1, 1000), (1, 1, 8)),
        (8, (1, 16, 1), (1, 8, 1)),
    ],
)
def test_chains_come_first_then_steps_then_data(n_devices, lengths, shares) -> None:
    found = shared_out(n_devices, dict(zip(AXES, lengths, strict=True)))
    assert tuple(found.values()) == shares


@given(st.integers(1, 4096), st.tuples(*[st.integers(1, 10_000)] * 3))
def test_shares_divide_what_they_share(n_devices, lengths) -> None:
    shares = shared_out(n_devices, dict(zip(AXES, lengths, strict=True)))
    assert n_devices % np.prod(list(shares.values())) == 0
    assert all(n % share == 0 for n, share in zip(lengths, shares.values(), strict=True))


@pytest.mark.parametrize("given_devices", [1, np.int64(1), jax.devices, "mesh", "explicit mesh"])
def test_what_is_accepted(given_devices) -> None:
    device = jax.devices()[0]
    if given_devices is jax.devices:
        given_devices = [device]
    elif isinstance(given_devices, str):
        kind = AxisType.Explicit if given_devices.startswith("explicit") else AxisType.Auto
        given_devices = Mesh([device], ("data",), axis_types=(kind,))
    asked = AskedDevices.of(given_devices)
    mesh = asked._mesh({"chain": 4, "window": 16, "data": 7})
    assert dict(mesh.shape) == dict.fromkeys(AXES, 1)
    assert set(mesh.axis_types) == {AxisType.Auto}, "XLA shares out, whatever the user's mesh says"
    assert mesh.devices.tolist() == np.full((1, 1, 1), device).tolist()
    assert asked.is_first


@pytest.mark.parametrize(
    ("shape", "axes", "n_chains", "on_each"),
    [
        ((1,), None, 4, 4),
        ((8,), None, 4, 1),
        ((8,), None, 6, 3),
        ((2, 4), ("window", "chain"), 8, 2),
        ((4,), ("data",), 8, 8),
    ],
)
def test_chains_on_each_device(shape, axes, n_chains, on_each) -> None:
    asked = AskedDevices(np.empty(shape, dtype=object), axes)
    assert asked.chains_on_each(n_chains) == on_each


def test_as_many_devices_as_can_share_are_named() -> None:
    asked = AskedDevices(np.empty(5, dtype=object), None)
    with pytest.raises(OptionError, match="Write devices=4, or"):
        asked._mesh({"chain": 4, "window": 1, "data": 96})


def test_only_rows_of_the_data_are_divided() -> None:
    placement = ManyDevices(AskedDevices.of(1)._mesh(dict.fromkeys(AXES, 1)), n_rows=6)
    for shape, divided in {(6,): True, (6, 2): True, (2, 6): False, (): False}.items():
        spec = tuple(placement.data(np.zeros(shape)).sharding.spec)
        assert spec == (("data",) if divided else ()), shape


@pytest.mark.parametrize(("shape", "value"), [((4, 3, 2), 0.0), ((4, 3, 2), np.nan), ((4, 0), 1.0)])
def test_what_is_made_on_devices_lies_as_what_is_sent_there(shape, value) -> None:
    placement = ManyDevices(AskedDevices.of(1)._mesh(dict.fromkeys(AXES, 1)), n_rows=6)
    made = placement.full(shape, value, "float32")
    sent = placement.of_chains(np.full(shape, value, "float32"))
    assert (made.sharding, made.dtype) == (sent.sharding, sent.dtype)
    np.testing.assert_array_equal(made, sent)


@pytest.mark.parametrize("differing", [0, 1])
def test_processes_are_compared_by_all_of_their_arrays(
    differing: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Here one process after the other, the last of which sees what all have."""
    of_all: list[np.ndarray] = []

    def gathered(mine: np.ndarray) -> np.ndarray:
        of_all.append(mine)
        return np.array(of_all)

    monkeypatch.setattr(ManyDevices, "spans_processes", True)
    monkeypatch.setattr(placement, "process_allgather", gathered)
    many = ManyDevices(Mesh(np.array(jax.devices()[:1]).reshape(1, 1, 1), AXES), 1)
    arrays = [np.zeros(2), np.ones(3)]
    for _ in range(2):
        many.refuse_differences(arrays)
    arrays[differing] = arrays[differing] + 1.0
    with pytest.raises(BackendError, match="the processes do not agree"):
        many.refuse_differences(arrays)
