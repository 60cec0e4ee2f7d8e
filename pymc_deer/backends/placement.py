"""Where the arrays of a solve lie: on one device, or shared out over a mesh of them.

Only arrays are placed here. How a program that is written for one device runs on many is left to
XLA, which divides it along the arrays that it is given.
"""

import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, cached_property, partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.multihost_utils import process_allgather
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from pymc_deer.backends.default_device import default_device
from pymc_deer.ops.batch_jax import shared_windows
from pymc_deer.ops.row_blocks_jax import row_kernels_run
from pymc_deer.status import BackendError

AXES = ("chain", "window", "data")
"""What a mesh may divide: chains, steps of their windows, rows of the data."""

CHAIN, WINDOW, DATA = AXES

_GRAPHS = {
    "xla_gpu_enable_command_buffer": "FUSION,CUBLAS,CUBLASLT,CUDNN,CUSTOM_CALL,"
    "DYNAMIC_SLICE_FUSION,WHILE,CONDITIONAL"
}
"""XLA's own list, and loops with their conditions."""


class OneDevice:
    """The device that JAX uses by default, to which arrays go by themselves."""

    is_many = False
    n_sharing = 1
    """Devices that have a part each of the chains."""
    n_evaluating = 1
    """Devices that evaluate a part each of a chain's window."""

    @property
    def device(self) -> Any:
        """One of the devices, of this process; the others are like it."""
        return default_device()

    @property
    def on_cpu(self) -> bool:
        """Whether programs run on a CPU."""
        return self.device.platform == "cpu"

    @property
    def runs_kernels(self) -> bool:
        """Whether programs may have kernels of our own, which XLA neither makes nor divides."""
        return not self.on_cpu and row_kernels_run(self.device)

    @property
    def spans_processes(self) -> bool:
        """Whether other processes have a part of the mesh, and run the same program."""
        return False

    def program(self, loop: Callable[..., Any], given: Sequence[int]) -> Callable[..., Any]:
        """The loop compiled: its results are each chain's own, but for numbers.

        The arguments whose places are `given` make room for them.
        """
        options = None if self.on_cpu else gpu_options()
        return jax.jit(loop, donate_argnums=given, compiler_options=options)

    def windows(self) -> AbstractContextManager[None]:
        """While sweeps are compiled: that devices share their windows."""
        return nullcontext()

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> jax.Array:
        """An array of all chains, (C, ...), that is made where it is to lie."""
        return jnp.full(shape, value, dtype)

    def of_chains(self, array: np.ndarray) -> Any:
        """An array that is each chain's own, (C, ...), where all calls find it."""
        return array if self.on_cpu else jax.device_put(array)

    def alike(self, array: np.ndarray) -> jax.Array:
        """An array that is the same for all."""
        return jnp.asarray(array)

    def data(self, array: np.ndarray) -> jax.Array:
        """A parameter of the density."""
        return self.alike(array)

    def fetched(self, arrays: Sequence[jax.Array]) -> list[np.ndarray]:
        """Results, back from where they were computed, all at the same time."""
        # jax.device_get does as much and takes three times as long, which short calls notice.
        if not self.on_cpu:
            for array in arrays:
                array.copy_to_host_async()
        return [np.asarray(array) for array in arrays]

    def refuse_differences(self, arrays: Iterable[Any]) -> None:
        """Refuse to go on if the processes that take part have been given different arrays."""


@dataclass(frozen=True)
class ManyDevices(OneDevice):
    """Devices that share chains, windows and data.

    An array is divided along its first axis; where it cannot be divided evenly, each device has all
    of it.

    Attributes
    ----------
    mesh
        The devices, in a mesh with all of `AXES`.
    n_rows
        Rows of the data: parameters with as many are divided.
    """

    mesh: Mesh
    n_rows: int

    is_many = True

    @property
    def n_sharing(self) -> int:
        return self.mesh.shape[CHAIN]

    @property
    def n_evaluating(self) -> int:
        return self.mesh.shape[WINDOW]

    @property
    def device(self) -> Any:
        return self.mesh.local_devices[0]

    @property
    def runs_kernels(self) -> bool:
        return False

    @property
    def spans_processes(self) -> bool:
        return n_processes(self.mesh.devices) > 1

    def program(self, loop: Callable[..., Any], given: Sequence[int]) -> Callable[..., Any]:
        def placed(*arguments: Any) -> Any:
            return jax.tree.map(partial(self._kept, along=CHAIN), loop(*arguments))

        return jax.jit(placed, donate_argnums=given)

    def windows(self) -> AbstractContextManager[None]:
        return shared_windows(self._in_parts, self._kept)

    def full(self, shape: tuple[int, ...], value: float, dtype: str) -> jax.Array:
        where = self._divided(jax.ShapeDtypeStruct(shape, dtype), CHAIN)
        return jnp.full(shape, value, dtype, device=where)

    def of_chains(self, array: np.ndarray) -> jax.Array:
        return self._put(array, CHAIN)

    def alike(self, array: np.ndarray) -> jax.Array:
        return self._put(array, None)

    def data(self, array: np.ndarray) -> jax.Array:
        return self._put(array, DATA if array.shape[:1] == (self.n_rows,) else None)

    def fetched(self, arrays: Sequence[jax.Array]) -> list[np.ndarray]:
        return super().fetched(self._everywhere(arrays) if self.spans_processes else arrays)

    def refuse_differences(self, arrays: Iterable[Any]) -> None:
        if not self.spans_processes:
            return
        mine = 0
        for array in arrays:
            mine = zlib.crc32(np.ascontiguousarray(array), mine)
        if len(np.unique(process_allgather(np.uint32(mine)))) > 1:
            raise BackendError(
                "sample(devices=...): the processes do not agree. Give all of them the same "
                "model, data and arguments, on machines of one kind."
            )

    @cached_property
    def _everywhere(self) -> Callable[..., Any]:
        """Copies of arrays on all devices, hence in all processes."""
        copies = NamedSharding(self.mesh, PartitionSpec())
        return jax.jit(lambda arrays: arrays, out_shardings=copies)

    def _put(self, array: np.ndarray, along: str | None) -> jax.Array:
        # Each process has the whole array, and sends its own devices their parts of it.
        where = self._divided(array, along)
        return jax.make_array_from_callback(array.shape, where, lambda part: array[part])

    def _in_parts(self, array: jax.Array) -> jax.Array:
        # What else is computed of the array would be divided as well, were it the same for XLA.
        same = jax.lax.optimization_barrier(self._kept(array))
        return self._kept(same, WINDOW)

    def _kept(self, array: jax.Array, along: str | None = None) -> jax.Array:
        return jax.lax.with_sharding_constraint(array, self._divided(array, along))

    def _divided(self, array: Any, along: str | None) -> NamedSharding:
        divides = along and array.ndim and array.shape[0] % self.mesh.shape[along] == 0
        return NamedSharding(self.mesh, PartitionSpec(along) if divides else PartitionSpec())


@cache
def gpu_options() -> dict[str, str] | None:
    """Compiler options for loops on a GPU: that it starts each round itself, as a CUDA graph.

    By default the host does: it waits for each round's condition, and starts each kernel, which of
    small models takes longer than the kernel. None where XLA does not know the option, or its
    device is no GPU.
    """
    try:
        jax.jit(lambda: jnp.zeros(()), compiler_options=_GRAPHS).lower().compile()
    except jax.errors.JaxRuntimeError:
        return None
    return _GRAPHS


def n_processes(devices: Any) -> int:
    """How many processes have some of the devices."""
    return len({device.process_index for device in np.ravel(devices)})
