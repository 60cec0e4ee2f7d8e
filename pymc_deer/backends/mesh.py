"""What ``devices=`` of `pymc_deer.sample` means: which devices share chains, windows and data."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.placement import AXES, CHAIN, DATA, WINDOW, ManyDevices, n_processes
from pymc_deer.options import is_integer
from pymc_deer.status import OptionError, invalid_option

_ACCEPTED = "None, an integer of at least 1, a sequence of JAX's devices, or a jax.sharding.Mesh"


@dataclass(frozen=True)
class AskedDevices:
    """The devices that a run was given.

    Attributes
    ----------
    devices
        The devices, in an array with an axis for each of `axes`.
    axes
        What each axis divides; None for one axis whose devices are still to be shared out.
    """

    devices: np.ndarray
    axes: tuple[str, ...] | None

    @classmethod
    def of(cls, given: Any) -> "AskedDevices":
        """From the argument `devices`.

        Raises
        ------
        OptionError
            If it is not of a kind that is accepted, or names what is not there.
        """
        asked = cls._of_mesh(given) if isinstance(given, Mesh) else cls(_listed(given), None)
        indices = {device.process_index for device in asked.devices.flat}
        if len(indices) == 1 and jax.process_index() in indices:
            return asked
        seen = Counter(device.process_index for device in jax.devices())
        if len(set(seen.values())) > 1:
            raise OptionError(
                "sample(devices=...): the processes have different numbers of devices, "
                f"{', '.join(map(str, seen.values()))}. Have each see as many, GPUs by "
                "CUDA_VISIBLE_DEVICES; or give jax.local_devices(), with which each samples by "
                "itself."
            )
        if n_processes(asked.devices) < n_processes(jax.devices()):
            raise OptionError(
                "sample(devices=...): some of the processes have no device among these. Give "
                "jax.devices(), which all processes share, or jax.local_devices(), with which "
                "each samples by itself."
            )
        return asked

    @classmethod
    def _of_mesh(cls, mesh: Mesh) -> "AskedDevices":
        axes = tuple(map(str, mesh.axis_names))
        if unknown := [axis for axis in axes if axis not in AXES]:
            raise OptionError(
                f"sample(devices=Mesh(...)): {', '.join(unknown)} is no axis of a run. Name the "
                "mesh's axes 'chain', 'window' or 'data', after what its devices are to share."
            )
        return cls(mesh.devices, axes)

    @property
    def spans_processes(self) -> bool:
        """Whether other processes take part in the run."""
        return n_processes(self.devices) > 1

    @property
    def is_first(self) -> bool:
        """Whether this process is the one, of those that take part, that speaks to the user."""
        return not self.spans_processes or jax.process_index() == 0

    def solver(self, solver: Solver, n_chains: int) -> JaxSolver:
        """The solver on these devices.

        Raises
        ------
        OptionError
            If they cannot share C = `n_chains` chains, the steps of the solver's windows and the
            rows of its density's data evenly.
        """
        assert isinstance(solver, JaxSolver)
        rows: list[Any] = [p.type.shape[0] for p in solver.density.params if p.type.ndim]
        lengths = {CHAIN: n_chains, WINDOW: solver.plan.window, DATA: max(rows, default=1)}
        placement = ManyDevices(self._mesh(lengths), lengths[DATA])
        return solver.on_devices(placement).for_chains(n_chains)

    def chains_on_each(self, n_chains: int) -> int:
        """Of so many chains, those on one device."""
        if self.axes is None:
            shares = shared_out(self.devices.size, {CHAIN: n_chains, WINDOW: 1, DATA: 1})
        else:
            shares = dict(zip(self.axes, self.devices.shape, strict=True))
        return -(-n_chains // shares.get(CHAIN, 1))

    def _mesh(self, lengths: Mapping[str, int]) -> Mesh:
        """The devices in a mesh with all axes, for so many chains, steps and rows."""
        n_devices, axes = self.devices.size, self.axes
        if axes is None:
            shares = shared_out(n_devices, lengths)
            if not _are_all_used(n_devices, shares):
                fewer = range(n_devices, 0, -1)
                most = next(n for n in fewer if _are_all_used(n, shared_out(n, lengths)))
                raise OptionError(
                    f"sample(devices=...): {_told(lengths)} cannot be shared out evenly among "
                    f"{n_devices} devices. Write devices={most}, or another number of chains."
                )
            return _mesh(self.devices.reshape(*shares.values()), AXES)
        for axis, n in zip(axes, self.devices.shape, strict=True):
            if lengths[axis] % n:
                raise OptionError(
                    f"sample(devices=Mesh(...)): {_told(lengths)} cannot be shared out evenly "
                    f"among {n} devices along the axis {axis!r}. Give the mesh another shape."
                )
        missing = tuple(axis for axis in AXES if axis not in axes)
        shape = (*self.devices.shape, *(1,) * len(missing))
        return _mesh(self.devices.reshape(shape), axes + missing)


def shared_out(n_devices: int, lengths: Mapping[str, int]) -> dict[str, int]:
    """Devices along each axis: for chains as many as divide them, then for steps, then for data.

    Chains have nothing to tell each other, the steps of a window little, and the rows of the data
    meet in every gradient.

    Examples
    --------
    >>> shared_out(8, {"chain": 4, "window": 1, "data": 1000})
    {'chain': 4, 'window': 1, 'data': 2}
    """
    shares = {}
    for axis, length in lengths.items():
        shares[axis] = gcd(length, n_devices)
        n_devices //= shares[axis]
    return shares


def _are_all_used(n_devices: int, shares: Mapping[str, int]) -> bool:
    return prod(shares.values()) == n_devices


def _mesh(devices: np.ndarray, axes: tuple[str, ...]) -> Mesh:
    # Whatever types the axes of a user's mesh have: the programs leave the sharing to XLA.
    return Mesh(devices, axes, axis_types=(AxisType.Auto,) * len(axes))


def _told(lengths: Mapping[str, int]) -> str:
    return (
        f"{lengths['chain']} chains, windows of {lengths['window']} and data of "
        f"{lengths['data']} rows"
    )


def _listed(given: Any) -> np.ndarray:
    """Devices from a number of them, or from a sequence."""
    if is_integer(given, 1):
        known = jax.devices()
        if given > len(known):
            expected = f"at most {len(known)}, as many as jax.devices() has"
            raise invalid_option("sample", "devices", given, expected)
        return np.array(known[: int(given)])
    devices = list(given) if isinstance(given, list | tuple) or np.ndim(given) == 1 else []
    is_device = [isinstance(device, jax.Device) for device in devices]
    if not devices or not all(is_device) or len(set(devices)) < len(devices):
        raise invalid_option("sample", "devices", given, _ACCEPTED)
    return np.array(devices)
