# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""The two PyTensor graphs that backends compile: one sequential step, one Newton sweep.

A sweep over a window of W steps, from a guess S and the exact state s_0 before the window (the
DEER iteration of Lim et al. 2024 with a diagonal Jacobian, for MALA as in Zoltowski et al. 2025):

    prev_t = S_{t-1}                                        (prev_1 = s_0)
    Q_t    = q_t(prev_t)                                    one batch of W proposals
    F_t    = Q_t if it is accepted, else prev_t
    S'_t   = Q_t + J_t * (S'_{t-1} - prev_t), or S'_{t-1}   one scan, with decisions of its own
    e_t    = |sum over j <= t of (F_j - S_j)|_inf           bounds the error of the old guess

F_1 is exact, since s_0 is. If e_t <= tol along a prefix of length k - 1, and logp and its gradient
are finite at S_t, then F_1..F_k are transitions from states within a small multiple of tol of the
exact ones: these k are committed.
Every sweep therefore commits at least one step. The residuals F_j - S_j are summed because they
add up along the slow directions of the chain; the bound on their sums bounds the error whatever
the curvature, the rule and the length of the window (see docs/exactness.md).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import pytensor
import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.compile.mode import Mode

from pymc_deer.acceptance import accepts
from pymc_deer.density import Density
from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.jacobian import (
    Rule,
    accepted_jacobian,
    preconditioned_jacobian,
    secant_jacobian,
)
from pymc_deer.kernel import State, transition
from pymc_deer.leapfrog import Path, Tangent
from pymc_deer.metric import MetricKind, SymbolicMetric
from pymc_deer.noise import NoiseSource
from pymc_deer.ops.batch import Batching, BatchMap
from pymc_deer.ops.window_scan import window_scan
from pymc_deer.precision import WIDE, in_precision
from pymc_deer.typing import Tensor

Kernel = Literal["mala", "hmc"]
"""Transitions of one leapfrog step, or of as many as the tape says."""


@dataclass(frozen=True)
class Program:
    """A graph to compile: its inputs in calling order, and its outputs."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    def linked(self, mode: Mode) -> Any:
        """The function of arrays that the mode's linker makes of it, for its compiler."""
        with in_precision(self.inputs[0].type.dtype):
            function = pytensor.function(
                self.inputs,
                self.outputs,
                mode=mode,
                on_unused_input="ignore",
                trust_input=True,
            )
        vm: Any = function.vm
        return vm.jit_fn


@dataclass(frozen=True)
class SweepSpec:
    """What distinguishes one compiled sweep of a density from another."""

    metric: MetricKind
    rule: Rule = "preconditioned"
    probes: int = 1
    kernel: Kernel = "mala"
    noise: NoiseSource = "host"

    def path(self, step_size: Tensor, n_leapfrog: Tensor) -> Path:
        """The path of a transition; MALA takes no notice of `n_leapfrog`."""
        return Path(step_size, n_leapfrog if self.kernel == "hmc" else None)

    def n_probes(self, size: int) -> int:
        """P, the number of probe vectors of a sweep in D = `size` dimensions."""
        return {"stochastic": self.probes, "exact": size}.get(self.rule, 0)

    def memory_size(self, size: int) -> int:
        """Numbers that a sweep keeps of each step for the next one, in D = `size` dimensions."""
        return 2 * size if self.rule == "secant" else 0


def build_sequential(density: Density, spec: SweepSpec) -> Program:
    """One transition of one chain, carrying logp and gradient: L gradients a transition.

    Inputs z (D,), logp (), dlogp (D,), xi (D,), log_u (), step_size (), n_leapfrog (), the metric's
    arrays and params; outputs z, logp, dlogp, log_alpha and energy.
    """
    with in_precision(density.dtype):
        return _sequential(density, spec)


def _sequential(density: Density, spec: SweepSpec) -> Program:
    size, dtype = density.size, density.dtype
    metric = SymbolicMetric.of(spec.metric, size, dtype)
    z, dlogp, xi = (pt.tensor(n, dtype=dtype, shape=(size,)) for n in ("z", "dlogp", "xi"))
    logp, log_u = (pt.tensor(n, dtype=WIDE, shape=()) for n in ("logp", "log_u"))
    step_size = pt.tensor("step_size", dtype=dtype, shape=())
    n_leapfrog = pt.tensor("n_leapfrog", dtype="int64", shape=())
    whitened = metric.whiten(density.single)
    path = spec.path(step_size, n_leapfrog)
    moved = transition(whitened, State(z, logp, dlogp), xi, log_u, path)
    inputs = [z, logp, dlogp, xi, log_u, step_size, n_leapfrog, *metric.params, *density.params]
    return Program(inputs, [*moved.state, moved.log_alpha, moved.energy])


def build_gradients(density: Density, width: int) -> Program:
    """Logp (W,) and gradient (W, D) of states (W, D), which most of a sweep's memory is for."""
    with in_precision(density.dtype):
        states = pt.tensor("states", dtype=density.dtype, shape=(width, density.size))
        return Program([states, *density.params], list(density.batch.both(states)))


def build_sweep(
    density: Density,
    spec: SweepSpec,
    batching: Batching,
    *,
    width: int | None = None,
    threaded: bool = False,
) -> Program:
    """One Newton sweep over a window.

    Inputs guess S (W, D), memory (W, M), start s_0 (D,), xi (W, D), log_u (W,), probes
    (W or 1, P, D), step_size (W,), n_leapfrog (W,), bend (W,), curvature (), tol (), block (),
    the metric's arrays and params; outputs the next guess S' (W, D) and memory, states F (W, D),
    their logp (W,) and gradient (W, D), log_alpha (W,), energy (W,) and the number of committed
    steps k. What `bend` is says :class:`~pymc_deer.ops.scan.ChainScan`.

    Parameters
    ----------
    width
        W where the backend needs it fixed (JAX); None lets it vary.
    threaded
        Whether Numba spreads the window over threads.
    """
    with in_precision(density.dtype):
        return _sweep(density, spec, batching, width, threaded)


def _sweep(
    density: Density, spec: SweepSpec, batching: Batching, width: int | None, threaded: bool
) -> Program:
    size, dtype = density.size, density.dtype
    guess, xi = (pt.tensor(n, dtype=dtype, shape=(width, size)) for n in ("guess", "xi"))
    log_u = pt.tensor("log_u", dtype=WIDE, shape=(width,))
    step_size = pt.tensor("step_size", dtype=dtype, shape=(width,))
    n_leapfrog = pt.tensor("n_leapfrog", dtype="int64", shape=(width,))
    bend = pt.tensor("bend", dtype=dtype, shape=(width,))
    start = pt.tensor("start", dtype=dtype, shape=(size,))
    memory = pt.tensor("memory", dtype=dtype, shape=(width, spec.memory_size(size)))
    curvature, tol = (pt.tensor(n, dtype=dtype, shape=()) for n in ("curvature", "tol"))
    block = pt.tensor("block", dtype="int64", shape=())
    rows = 1 if spec.rule == "exact" else width
    probes = pt.tensor("probes", dtype=dtype, shape=(rows, spec.n_probes(size), size))
    metric = SymbolicMetric.of(spec.metric, size, dtype)

    previous = pt.concatenate([start[None], guess[:-1]])
    batch_map = _transition_map(density, spec, batching, width, threaded)
    shared = [*metric.params, *density.params]
    mapped, shared = _arguments(spec, [previous, xi, log_u, step_size], n_leapfrog, probes, shared)
    proposals, logp, dlogp, log_alpha, energy, *more = batch_map(block, *mapped, *shared)

    next_memory = memory
    if spec.rule in ("preconditioned", "secant"):
        path = spec.path(step_size[:, None], n_leapfrog[:, None])
        if spec.rule == "secant":
            moved = secant_jacobian(previous, proposals, memory, path, curvature)
            next_memory = pt.concatenate([previous, proposals], axis=1)
        else:
            moved = preconditioned_jacobian(path, curvature)
    else:
        weight = 1 if spec.rule == "exact" else spec.probes
        moved = accepted_jacobian(more[0] / weight, curvature)
    states = pt.switch(accepts(log_alpha, log_u)[:, None], proposals, previous)
    decided = log_alpha, log_u, bend
    next_guess, error = window_scan(moved, proposals, previous, guess, start, *decided)
    step = pt.arange(states.shape[0])
    is_right = pt.and_(error <= tol, pt.concatenate([_is_sound(logp, dlogp)[1:], [True]]))
    committed = 1 + pt.min(pt.switch(is_right, states.shape[0] - 1, step))
    inputs = [guess, memory, start, xi, log_u, probes, step_size, n_leapfrog, bend, curvature, tol]
    inputs += [block, *metric.params, *density.params]
    rows = [states, logp, dlogp, log_alpha, energy]
    return Program(inputs, [next_guess, next_memory, *rows, committed])


def _is_sound(logp: Tensor, dlogp: Tensor) -> Tensor:
    """Whether a chain may stand where each transition ends, (W,), and so where it begins.

    None stands where its density is 0, but a guess within the tolerance of where it does may. What
    is accepted from there or not is no transition of the chain's, which would never leave.
    """
    return pt.and_(pt.abs(logp) < np.inf, pt.all(pt.abs(dlogp) < np.inf, axis=1))


def _arguments(
    spec: SweepSpec, mapped: list[Tensor], n_leapfrog: Tensor, probes: Tensor, shared: list[Tensor]
) -> tuple[list[Tensor], list[Tensor]]:
    """What the map of transitions takes of each of them, and of all together."""
    mapped = [*mapped, n_leapfrog] if spec.kernel == "hmc" else mapped
    if spec.rule == "stochastic":
        return [*mapped, probes], shared
    return mapped, [probes, *shared] if spec.rule == "exact" else shared


def _transition_map(
    density: Density, spec: SweepSpec, batching: Batching, width: int | None, threaded: bool
) -> BatchMap:
    """Proposals of W transitions, what they make of all but the states, and summed diagonals."""
    size, dtype = density.size, density.dtype
    lead = (width,) if batching == "vectorized" else ()
    if batching == "vectorized":
        x = pt.tensor("x", dtype=dtype, shape=(*lead, size))
        evaluated, hvp = _as_ops(x, density.batch, density.params, spec.kernel), density.batch_hvp
    else:
        x = density.x.type("x")
        evaluated, hvp = _as_ops(x, density.single, density.params, spec.kernel), density.single_hvp

    metric = SymbolicMetric.of(spec.metric, size, dtype)
    z, xi = (pt.tensor(n, dtype=dtype, shape=(*lead, size)) for n in ("z", "xi"))
    log_u = pt.tensor("log_u", dtype=WIDE, shape=lead)
    step_size = pt.tensor("step_size", dtype=dtype, shape=lead)
    whitened = metric.whiten(evaluated)
    state = State(z, *whitened.both(z))
    n_leapfrog = pt.tensor("n_leapfrog", dtype="int64", shape=lead)
    probe_lead = (1,) if spec.rule == "exact" else lead
    probes = pt.tensor("probes", dtype=dtype, shape=(*probe_lead, spec.n_probes(size), size))
    shared = [*metric.params, *density.params]
    mapped, shared = _arguments(spec, [z, xi, log_u, step_size], n_leapfrog, probes, shared)
    directions = tangent = None
    if spec.rule in ("stochastic", "exact"):
        directions = probes[0] if batching == "mapped" and spec.rule == "exact" else probes
        tangent = Tangent(metric.whiten_hvp(hvp), directions)
    path = spec.path(step_size, n_leapfrog)
    moved = transition(whitened, state, xi, log_u, path, tangent)
    outputs = [moved.proposal, moved.state.logp, moved.state.dlogp, moved.log_alpha, moved.energy]
    if directions is not None:
        outputs += [pt.sum(directions * moved.tangent, axis=-2)]
    return BatchMap(
        [*mapped, *shared],
        outputs,
        n_mapped=len(mapped),
        batching=batching,
        threaded=threaded,
    )


class Evaluation(OpFromGraph):
    """Of the density: of another type than gradients in it, which rewrites put their graphs for."""


def _as_ops(
    x: Tensor, density: GradientFirst, params: Sequence[Tensor], kernel: Kernel
) -> GradientFirst:
    """The density as Ops, so that a graph which evaluates it twice compiles it once."""
    if kernel == "mala":
        both = _op([x, *params], density.both(x), "LogpDlogp")
        return GradientFirst.of_both(lambda at: both(at, *params, return_list=True))
    gradient = _op([x, *params], density.gradient(x), "Gradient")
    parts = [kind() for kind in gradient.output_types[1:]]
    logp = _op([*parts, *params], [density.logp(parts)], "Logp")
    return GradientFirst.of_parts(
        lambda at: gradient(at, *params, return_list=True), lambda found: logp(*found, *params)
    )


def _op(inputs: list[Tensor], outputs: list[Tensor], name: str) -> Evaluation:
    return Evaluation(inputs, outputs, name=name, on_unused_input="ignore")
