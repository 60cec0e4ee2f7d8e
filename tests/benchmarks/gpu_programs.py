"""Programs for an absent GPU: ``uv run python -m tests.benchmarks.gpu_programs``.

XLA compiles for an NVIDIA H100 that is described to it (``H100``), with JAX's CUDA plugin (the
extra ``cuda``) and no GPU, so nothing runs: that these programs compile, what a step or a sweep
consists of, and what memory it takes, can be seen all the same. In float32, with the default metric
and the rule ``secant``; paths are loops of their own, of one step each. The columns:

``kernels``, ``products``
    Kernels of a sweep (of a step, in a window of 1), and those among them that cuBLAS runs.
``kernels_of_path``
    The same for a leapfrog step of DeerHMC, which a sweep has besides.
``mb``
    What the kernels of both read and write at most, by the shapes of their operands.
``least_us``
    That over the bandwidth in the GPU's description: no sweep can take less if all of it comes from
    memory, and arrays that stay in the GPU's cache of 50 MB do not.
``kb_per_state``, ``estimated_kb``
    Temporary memory of a state of the window, by what a window half as wide takes less, and what
    ``Solver.bytes_per_state`` says, by which windows are narrowed to what is free.

The rows go to ``docs/benchmarks/gpu_programs.json``.
"""

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import jax
import numpy as np
import pytensor
from jax.experimental.topologies import get_topology_desc
from jax.sharding import SingleDeviceSharding

from pymc_deer.backends import make_solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.placement import OneDevice
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import Density, build_density
from pymc_deer.metric import MetricKind, identity_metric
from pymc_deer.sweep import Kernel, SweepSpec
from tests.benchmarks.cases import CASES, SMALL
from tests.benchmarks.hlo import work_of_loop
from tests.benchmarks.measure import write
from tests.benchmarks.scaling import DENSE_UP_TO

MODELS = (*SMALL, "radon", "stochastic_volatility", "hierarchical_10k")
KERNELS: tuple[Kernel, ...] = ("mala", "hmc")

H100 = """
gpu_device_info {
  threads_per_block_limit: 1024
  threads_per_warp: 32
  shared_memory_per_block: 49152
  shared_memory_per_core: 233472
  threads_per_core_limit: 2048
  core_count: 132
  fpus_per_core: 128
  block_dim_limit_x: 2147483647
  block_dim_limit_y: 65535
  block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000
  l2_cache_size: 52428800
  clock_rate_ghz: 1.98
  device_memory_size: 84929347584
  shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 }
  registers_per_core_limit: 65536
  registers_per_block_limit: 65536
}
runtime_version { major: 13 }
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 10 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
"""As XLA describes the GPU; bandwidth in bytes a second."""

BANDWIDTH = 3.35232e12

_DEVICE = jax.sharding.AbstractDevice("NVIDIA H100 80GB HBM3", 132, "gpu")
_MESH = jax.sharding.AbstractMesh((), (), abstract_device=_DEVICE)

# What XLA would try out on the GPU is left at its defaults.
OPTIONS = {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}


class NothingRunsError(BaseException):
    """In place of what a program would return: the program, and seconds of its compilation.

    Nothing that can be mended by a program in another form.
    """

    def __init__(self, program: Any, seconds: float) -> None:
        super().__init__("This program is for a GPU that is not there.")
        self.program, self.seconds = program, seconds


class AbsentGpu(OneDevice):
    """Compiles programs for a GPU, and runs none."""

    @property
    def on_cpu(self) -> bool:
        return False

    @property
    def runs_kernels(self) -> bool:
        return True

    def __init__(self) -> None:
        described = get_topology_desc("h100", "cuda", target_config=H100, topology="1x1x1")
        self._there = SingleDeviceSharding(described.devices[0])

    def program(self, loop: Any, given: Sequence[int]) -> Any:
        def run(*arguments: Any) -> Any:
            begun = time.perf_counter()
            shapes = jax.tree.map(self._shape, arguments)
            # Kernels of our own ask which device they are for.
            with jax.sharding.use_abstract_mesh(_MESH):
                lowered = jax.jit(loop, donate_argnums=given).lower(*shapes)
            program = lowered.compile(compiler_options=OPTIONS)
            raise NothingRunsError(program, time.perf_counter() - begun)

        return run

    def _shape(self, value: Any) -> Any:
        array = value if hasattr(value, "dtype") else np.asarray(value)
        return jax.ShapeDtypeStruct(array.shape, array.dtype, sharding=self._there)


def compile_window(
    density: Density, params: Sequence[np.ndarray], kernel: Kernel, chains: int, window: int
) -> tuple[NothingRunsError, int]:
    """The program, and the bytes that a state of the window is thought to take."""
    kind: MetricKind = "dense" if density.size <= DENSE_UP_TO else "low_rank"
    tuning = Tuning(0.1, 1.0, identity_metric(kind, density.size))
    spec = SweepSpec(kind, "secant", kernel=kernel, noise="device")
    solver = make_solver("jax", density, spec, WindowPlan(window, None, 1e-4, capacity=window))
    assert isinstance(solver, JaxSolver)
    solver.placement = AbsentGpu()
    streams = [Streams.spawn(np.random.default_rng(chain)) for chain in range(chains)]
    tapes = [s.tape(window, density.size, tuning, solver.draw_momenta) for s in streams]
    start, rng = np.zeros(density.size), np.random.default_rng(0)
    try:
        solver.run_together([TapedRequest(start, t, tuning, rng) for t in tapes], params, window)
    except NothingRunsError as compiled:
        return compiled, solver.bytes_per_state()
    raise AssertionError("The program has run, wherever that was.")


def rows(
    models: Sequence[str], chains: Sequence[int], windows: Sequence[int]
) -> Iterator[dict[str, object]]:
    """A row for every program."""
    for name in models:
        with pytensor.config.change_flags(floatX="float32"):
            model = CASES[name].build()
            density = build_density(model)
            params = density.param_values(model.initial_point())
        for kernel, n_chains, window in product(KERNELS, chains, windows):
            one, estimate = compile_window(density, params, kernel, n_chains, window)
            work, taken = work_of_loop(one.program.as_text()), _temporary(one)
            n_bytes = work.n_bytes + (work.inside.n_bytes if work.inside else 0)
            row = {
                "model": name,
                "kernel": kernel,
                "chains": n_chains,
                "window": window,
                "compile_s": round(one.seconds, 1),
                "kernels": work.kernels,
                "products": work.products,
                "kernels_of_path": work.inside.kernels if work.inside else "",
                "mb": _short(n_bytes / 1e6),
                "least_us": _short(1e6 * n_bytes / BANDWIDTH),
            }
            if window > 1:
                narrow, _ = compile_window(density, params, kernel, n_chains, window // 2)
                more = (taken - _temporary(narrow)) / (n_chains * (window - window // 2))
                row |= {"kb_per_state": _short(more / 1e3), "estimated_kb": _short(estimate / 1e3)}
            yield row


def _temporary(compiled: NothingRunsError) -> int:
    return compiled.program.memory_analysis().temp_size_in_bytes


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    """Compile what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", choices=CASES, default=list(MODELS))
    parser.add_argument("--chains", type=int, nargs="+", default=[1, 4])
    parser.add_argument("--windows", type=int, nargs="+", default=[1, 8192])
    given = parser.parse_args()
    # JAX itself runs on the CPU, and its plugin need not find the libraries of a driver.
    os.environ |= {"JAX_PLATFORMS": "cpu", "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1"}
    write("gpu_programs", rows(given.models, given.chains, given.windows))


if __name__ == "__main__":
    main()
