"""What the JAX backend compiles: steps, sweeps, and the loops around them."""

from abc import ABC
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from pytensor.compile.mode import Mode

import pymc_deer.ops.batch_jax
import pymc_deer.ops.group_tables_jax
import pymc_deer.ops.repeat_jax
import pymc_deer.ops.scan_jax
import pymc_deer.ops.window_scan_jax  # noqa: F401
from pymc_deer.backends.base import Solver
from pymc_deer.backends.first_that_runs import first_that_runs
from pymc_deer.backends.freed_memory import keep_freed_memory
from pymc_deer.backends.jax_functions import compiled, largest_result
from pymc_deer.backends.jax_loops import (
    WINDOWED_GIVEN,
    at_once,
    in_turn,
    momenta_of_keys,
    sequential_loop,
    windowed_loop,
)
from pymc_deer.backends.jax_mode import (
    JAX_CPU_MODE,
    JAX_KERNEL_MODE,
    JAX_MODE,
    JAX_SCAN_KERNEL_MODE,
)
from pymc_deer.backends.placement import OneDevice
from pymc_deer.density import Density
from pymc_deer.jacobian import unit_probes
from pymc_deer.ops.batch import BATCHINGS, Batching
from pymc_deer.ops.group_tables import summed_by_tables
from pymc_deer.ops.row_blocks import for_row_blocks
from pymc_deer.ops.row_blocks_jax import log_left_out
from pymc_deer.status import cannot_compile
from pymc_deer.sweep import Program, build_gradients, build_sequential, build_sweep

_WIDE = 2**15
"""Width of a window most of whose results are its states', not of all of them together."""


class WindowGraph(NamedTuple):
    """A density for windows to evaluate, how PyTensor compiles it, and how to try batches of it."""

    density: Density
    mode: Mode
    batchings: Sequence[Batching] = BATCHINGS


class JaxPrograms(Solver, ABC):
    """A solver's programs for where its arrays lie."""

    placement: OneDevice = OneDevice()

    def _compile_sequential(self) -> Callable[..., Any]:
        try:
            step, _ = self._step()
        except Exception as error:
            raise cannot_compile("JAX", error, "numba") from error
        order = at_once if self.batches_chains else in_turn
        return self._program(partial(sequential_loop, order, step, self._momenta()), [0])

    def _step(self) -> tuple[Callable[..., Any], Program]:
        """A step of one chain, and the graph that it is compiled of."""
        density = self._density_here()
        program = build_sequential(density, self.spec)
        key = "step" if density is self.density else "step by tables"
        return self._compiled(key, lambda: compiled(program, self._mode)), program

    def _density_here(self) -> Density:
        """The density in the form that suits the device."""
        if self.placement.on_cpu or self.placement.is_many:
            return self.density
        return self._compiled("by tables", partial(summed_by_tables, self.density))

    def _compile_windowed(self) -> Callable[..., Any]:
        return self._of_windows(self._windowed_program)

    def _of_windows(self, build: Callable[[WindowGraph], Callable[..., Any]]) -> Callable[..., Any]:
        """What `build` makes of the first graph of windows that the device can run."""
        forms = [partial(build, graph) for graph in self._window_graphs()]
        return first_that_runs(forms, log_left_out)

    def _window_graphs(self) -> list[WindowGraph]:
        """What windows may evaluate, the fastest first."""
        density = self._density_here()
        graphs = [WindowGraph(density, self._mode)]
        if self.placement.runs_kernels:
            # Which go along the rows of windows whose graph is vectorised.
            blocked = WindowGraph(self._blocked_density(), JAX_KERNEL_MODE, BATCHINGS[:1])
            graphs = [blocked, WindowGraph(density, JAX_SCAN_KERNEL_MODE), *graphs]
        return graphs

    def _blocked_density(self) -> Density:
        """The density that kernels along rows are made of, the same for windows of all widths."""
        return self._compiled("row blocks", partial(for_row_blocks, self._density_here()))

    def _bytes_of_largest(self) -> int:
        """Of the largest of the density's intermediate results, those of one state."""
        if self.placement.runs_kernels:
            # Which leave most of them out.
            with suppress(Exception):
                return self._compiled("largest", self._bytes_of_largest_beside_kernels)
        step, program = self._step()
        return largest_result(step, program)

    def _bytes_of_largest_beside_kernels(self) -> int:
        program = build_gradients(self._blocked_density(), _WIDE)
        return -(-largest_result(compiled(program, JAX_KERNEL_MODE), program) // _WIDE)

    def _windowed_program(self, graph: WindowGraph) -> Callable[..., Any]:
        """The windowed loop around the first form of the batch that JAX can trace.

        The vectorised graph is the faster one, but its shapes may depend on values that JAX only
        knows when it runs (ordered and simplex transforms, imputed data); ``vmap`` of the
        single-state graph then still works.
        """
        failure = None
        for batching in graph.batchings:
            try:
                with self.placement.windows():
                    sweep = self._sweep(graph, batching)
            except Exception as error:  # noqa: BLE001 - whatever JAX raises, the other form may do
                failure = error
                continue
            self._batchings[self.spec.rule] = batching
            draw = self._draw_probes()
            loop = partial(windowed_loop, sweep, self._momenta(), draw)
            return self._program(loop, WINDOWED_GIVEN)
        raise cannot_compile("JAX", failure, "numba") from failure

    def _program(self, loop: Callable[..., Any], given: Sequence[int]) -> Callable[..., Any]:
        if not self.placement.on_cpu:
            # What comes from another device lies in new arrays for each call.
            keep_freed_memory()
        return self.placement.program(loop, given)

    def _sweep(self, graph: WindowGraph, batching: Batching) -> Callable[..., Any]:
        program = build_sweep(graph.density, self.spec, batching, width=self.plan.window)
        return compiled(program, graph.mode)

    @property
    def _mode(self) -> Mode:
        return JAX_CPU_MODE if self.placement.on_cpu else JAX_MODE

    def _momenta(self) -> Callable[[jax.Array], jax.Array]:
        """Momenta from rows of the tape, which has them or their keys."""
        if self.spec.noise == "host":
            return lambda xi: xi
        return partial(momenta_of_keys, size=self.density.size, dtype=self.density.dtype)

    def _draw_probes(self) -> Callable[[jax.Array], jax.Array]:
        size, dtype = self.density.size, self.density.dtype
        if self.spec.rule == "exact":
            return lambda key: jnp.asarray(unit_probes(size, dtype))
        shape = (self.plan.window, self.spec.n_probes(size), size)
        if 0 in shape:
            return lambda key: jnp.zeros(shape, dtype)
        return lambda key: jax.random.rademacher(key, shape, dtype)
