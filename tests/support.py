"""What all test layers share."""

import importlib.util
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest
from pytensor.compile.aliasing import add_supervisor_to_fgraph
from pytensor.compile.io import In
from pytensor.compile.mode import Mode
from pytensor.graph.basic import Apply
from pytensor.graph.fg import FunctionGraph
from pytensor.graph.op import Op
from xarray import DataTree

from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.backends.numba_mode import NUMBA_MODE
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.step import DeerStep

BACKENDS = tuple(os.environ.get("PYMC_DEER_TEST_BACKENDS", "numba,jax").split(","))
"""Backends under test: all of them, unless the environment names fewer."""

SLOW_ON_NUMBA: dict[str, Any] = {"numba": [pytest.mark.slow], "jax": []}
"""Marks for what runs the same graph on both, and takes Numba a minute to compile."""

SAMPLERS: tuple[type[DeerStep], ...] = (DeerMALA, DeerHMC)

SEED = 20_250_103

NUMBA_IN_PYTHON = Mode("vm", NUMBA_MODE.provided_optimizer)
"""Graphs as Numba gets them, in-place operations included, run by Python."""

ON_GNU = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
HAS_VARIANTS = ON_GNU and platform.machine() == "x86_64"
"""Whether this machine's C library should have variants of functions for vectors."""

# Python warns of any fork in a process with threads; the forks here are what is tested.
FORKS = pytest.mark.filterwarnings(
    "ignore:.*multi-threaded, use of fork:DeprecationWarning",
    "ignore:os.fork\\(\\) was called:RuntimeWarning",
)


def sample(step: DeerStep, **changes: Any) -> DataTree:
    """A short, silent run of the step's model in one process; `changes` go to `pm.sample`."""
    options: dict[str, Any] = {
        "draws": 20,
        "tune": 30,
        "chains": 2,
        "cores": 1,
        "random_seed": SEED,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    with step.model:
        return pm.sample(step=step, **(options | changes))


def one_variable() -> pm.Model:
    """A free variable, a Deterministic and an observed one."""
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, 2.0)
        pm.Deterministic("double", 2 * x)
        pm.Normal("y", x, observed=0.5)
    return model


class Opaque(Op):
    """-x^2, for backends that know nothing of it, and no word about its gradient."""

    __props__ = ()

    def make_node(self, *inputs: Any) -> Apply:
        [x] = map(pt.as_tensor_variable, inputs)
        return Apply(self, [x], [x.type()])

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        output_storage[0][0] = np.asarray(-(inputs[0] ** 2))


class Parabola(Opaque):
    """The same with its gradient."""

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [-2 * inputs[0] * cotangents[0]]


def autoregressive(phi: float, n: int, seed: int = 0) -> np.ndarray:
    """AR(1) with unit variance, whose integrated autocorrelation time is (1 + phi)/(1 - phi)."""
    noise = np.random.default_rng(seed).normal(0.0, np.sqrt(1 - phi**2), n)
    chain = np.empty(n)
    chain[0] = noise[0] / np.sqrt(1 - phi**2)
    for t in range(1, n):
        chain[t] = phi * chain[t - 1] + noise[t]
    return chain


def trajectory(
    z: np.ndarray,
    dlogp: np.ndarray,
    log_alpha: np.ndarray | float = 0.0,
    n_leapfrog: np.ndarray | int = 1,
    step_size: float = 1.0,
) -> Trajectory:
    """A made-up sequential trajectory through the states z, (n, D)."""
    n = len(z)
    columns = {"log_alpha": log_alpha, "n_leapfrog": n_leapfrog, "step_sizes": step_size}
    per_step = {name: np.broadcast_to(value, n) for name, value in columns.items()}
    zeros = np.zeros(n)
    return Trajectory(z, zeros, dlogp, energy=zeros, **per_step, n_sweeps=0, n_fallback=0)


def piece(whole: Trajectory, rows: slice) -> Trajectory:
    """Some transitions of a trajectory that keeps every state."""
    assert whole.stride == 1
    arrays = {k: v[rows] for k, v in vars(whole).items() if isinstance(v, np.ndarray)}
    return replace(whole, **arrays)


def graph_for_numba(
    inputs: list[Any], outputs: list[Any], mode: Mode = NUMBA_MODE
) -> FunctionGraph:
    """The graph as Numba gets it in that mode."""
    graph = FunctionGraph(inputs, outputs, clone=True)
    add_supervisor_to_fgraph(graph, [In(x) for x in graph.inputs])
    mode.optimizer.rewrite(graph)
    return graph


def calls_variants(function: Any, name: str) -> bool:
    """Whether the code that Numba made calls the C function for several numbers at once."""
    [code] = function.vm.jit_fn.inspect_asm().values()
    return any(f"_ZGV{letter}_{name}" in code for letter in ("bN2v", "dN4v", "eN8v"))


def interrupt(patch: pytest.MonkeyPatch, at: int) -> None:
    """Let the user interrupt `pymc_deer.sample` in a stretch, the first of which is number 1."""
    solve, calls = Ensemble.next_stretch, []

    def interrupted(self: Ensemble, params: Any) -> Any:
        calls.append(None)
        if len(calls) == at:
            # As it may come in the middle: one of the chains has gone on.
            self.chains[0].begin_stretch(1, tuning=self.tuning)
            raise KeyboardInterrupt
        return solve(self, params)

    patch.setattr(Ensemble, "next_stretch", interrupted)


def buffers_taken(patch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """The window, and the chains that there is room for, of JAX's programs, call by call."""
    from pymc_deer.backends.jax import JaxSolver

    taken: list[tuple[int, int]] = []
    take = JaxSolver._take_buffers

    def taking(solver: JaxSolver, n_chains: int, rows: int) -> Any:
        taken.append((solver.plan.window, n_chains))
        return take(solver, n_chains, rows)

    patch.setattr(JaxSolver, "_take_buffers", taking)
    return taken


def interpret_kernels(patch: pytest.MonkeyPatch) -> None:
    """Have Pallas run kernels block by block as a GPU would, where there is none."""
    from jax.experimental import pallas

    patch.setattr(pallas, "pallas_call", partial(pallas.pallas_call, interpret=True))


def hide_package(patch: pytest.MonkeyPatch, name: str) -> None:
    """As if it were not installed."""
    find = importlib.util.find_spec
    patch.setattr(importlib.util, "find_spec", lambda n: None if n == name else find(n))


@contextmanager
def quick_xla() -> Iterator[None]:
    """XLA leaves out most of its optimisations, where what it compiles runs once."""
    import jax

    jax.config.update("jax_disable_most_optimizations", True)
    try:
        yield
    finally:
        jax.config.update("jax_disable_most_optimizations", False)


def window_scan_arguments(
    width: int, size: int, factors: int, dtype: str, seed: int = 3
) -> list[np.ndarray]:
    """As of a window scan. Decisions change with states: of one in four between two rounds."""
    rng = np.random.default_rng(seed)
    shapes = [(width, factors), *[(width, size)] * 3, (size,)]
    jacobian, *others = (rng.normal(size=shape).astype(dtype) for shape in shapes)
    log_alpha, log_u = rng.normal(size=width), np.log(rng.uniform(size=width))
    bend = rng.uniform(0.02, 0.1, width).astype(dtype)
    return [np.clip(jacobian, 0, 1), *others, log_alpha, log_u, bend]
