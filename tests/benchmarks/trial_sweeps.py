"""Newton sweeps in NumPy around a compiled batch of gradients, for trying out other iterations.

The loop and the commit rule are those of :mod:`pymc_deer.sweep`. What is exchangeable: the
linearisation of the accepted steps, the first guess, and what becomes of a guess between sweeps.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numba
import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_deer.acceptance import acceptance_rates, accepts
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.metric import SymbolicMetric
from pymc_deer.noise import Tape, draw_tape
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed

TOL = 1e-6


@dataclass(frozen=True)
class Batch:
    """One batch of W transitions: all that a sweep knows without more gradients.

    Attributes
    ----------
    previous, proposal, states
        Where the transitions begin, what they propose and where they end, each (W, D).
    slope, proposal_slope
        Gradients at `previous` and at `proposal`.
    log_alpha
        Logs of the Metropolis ratios, shape (W,).
    number
        Sweeps done before this one.
    """

    previous: np.ndarray
    proposal: np.ndarray
    states: np.ndarray
    slope: np.ndarray
    proposal_slope: np.ndarray
    log_alpha: np.ndarray
    number: int


class Problem:
    """A tuned model whose chain is to be solved, with gradients compiled for one width."""

    def __init__(self, case: Warmed, step_size: float, width: int) -> None:
        self.case, self.step_size, self.width = case, step_size, width
        self.size = case.density.size
        self._arrays = (case.tuning.metric.mu, case.tuning.metric.factor, *case.params)
        metric = SymbolicMetric.of(case.tuning.metric.kind, self.size, case.density.dtype)
        z = pt.tensor("z", dtype="float64", shape=(width, self.size))
        probes = pt.tensor("probes", dtype="float64", shape=(width, 1, self.size))
        params = [*metric.params, *case.density.params]
        whitened = metric.whiten(case.density.batch)
        hvp = metric.whiten_hvp(case.density.batch_hvp)
        self._gradient = _compiled([z, *params], whitened.both(z))
        self._hvp = _compiled([z, probes, *params], hvp(z, probes))

    def gradient(self, z: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Logp (W,) and its gradient (W, D)."""
        logp, dlogp = self._gradient(z, *self._arrays)
        return np.asarray(logp), np.asarray(dlogp)

    def probe(self, z: np.ndarray, v: np.ndarray) -> np.ndarray:
        """v * (-H v), shape (W, D): Hutchinson's estimate of the diagonal of -H by one probe."""
        return -v * np.asarray(self._hvp(z, v[:, None], *self._arrays))[:, 0]

    def batch(self, previous: np.ndarray, rows: Tape, number: int) -> Batch:
        """The transitions, as in :mod:`pymc_deer.kernel`."""
        eps, xi = self.step_size, rows.xi
        logp, slope = self.gradient(previous)
        momentum = xi + eps / 2 * slope
        proposal = previous + eps * momentum
        proposal_logp, proposal_slope = self.gradient(proposal)
        momentum = momentum + eps / 2 * proposal_slope
        kinetic_change = (momentum**2).sum(axis=1) - (xi**2).sum(axis=1)
        log_alpha = proposal_logp - logp - kinetic_change / 2
        states = np.where(accepts(log_alpha, rows.log_u)[:, None], proposal, previous)
        return Batch(previous, proposal, states, slope, proposal_slope, log_alpha, number)


def _compiled(inputs: list[Any], outputs: Any) -> Any:
    return pytensor.function(inputs, outputs, mode="JAX", on_unused_input="ignore")


@dataclass
class Rule:
    """Assumes one whitened curvature c for all accepted steps, and sums nothing up between sweeps.

    Attributes
    ----------
    basis
        Orthonormal directions (D, D), as columns, which the curvatures belong to; None for the
        coordinates of z.
    """

    c: float | np.ndarray = 1.0
    basis: np.ndarray | None = None

    def curvature(self, batch: Batch) -> np.ndarray:
        """Assumed curvature, broadcasting to (W, D)."""
        return np.asarray(self.c)

    def rank_one(self, batch: Batch, decay: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        """Columns u and v (W, D) of a correction u v^T to the Jacobian; None for none."""
        return None

    def between(self, guess: np.ndarray, new: np.ndarray) -> np.ndarray:
        """The next guess, from the guess of a sweep and its Newton update."""
        return new

    def slide(self, committed: int) -> None:
        """Forget the first rows of what is remembered of earlier sweeps."""


FirstGuess = Callable[[Problem, np.ndarray, Tape], np.ndarray]
"""A guess of the states that follow a state (D,) on a piece of tape."""


def constant(problem: Problem, start: np.ndarray, tape: Tape) -> np.ndarray:
    """The chain stands still."""
    return np.tile(start, (len(tape), 1))


def solve(
    problem: Problem,
    tape: Tape,
    n: int,
    rule: Rule,
    *,
    first_guess: FirstGuess = constant,
    bend: float = 0.0,
    max_sweeps: int,
) -> int:
    """Sweeps until n transitions are committed, or `max_sweeps`; `tape` must hold W rows more.

    Within the scan of a sweep decisions change as those of :class:`pymc_deer.ops.scan.ChainScan`
    with this `bend`.
    """
    width, start, basis = problem.width, problem.case.z, rule.basis
    turn = np.eye(problem.size) if basis is None else basis
    guess = first_guess(problem, start, tape[:width])
    done = sweeps = 0
    while done < n and sweeps < max_sweeps:
        previous = np.vstack([start, guess[:-1]])
        rows = tape[done : done + width]
        batch = problem.batch(previous, rows, sweeps)
        decay = np.clip(1 - rule.curvature(batch) * problem.step_size**2 / 2, 0, 1)
        decay = np.broadcast_to(decay, guess.shape)
        u, v = rule.rank_one(batch, decay) or (np.zeros_like(guess), np.zeros_like(guess))
        turned = [a @ turn for a in (start, previous, batch.proposal, u, v)]
        decided = batch.log_alpha, rows.log_u, bend
        new = _scan(*turned, np.ascontiguousarray(decay), *decided) @ turn.T
        new = np.where(np.isfinite(new).all(axis=1, keepdims=True), new, batch.states)
        wrong = ~(np.abs(np.cumsum(batch.states - guess, axis=0)).max(axis=1)[:-1] <= TOL)
        committed = 1 + (int(np.argmax(wrong)) if wrong.any() else width - 1)
        new = rule.between(guess, new)
        rule.slide(committed)
        start = batch.states[committed - 1]
        fresh = tape[done + width : done + width + committed]
        guess = np.vstack([new[committed:], first_guess(problem, new[-1], fresh)])
        done += committed
        sweeps += 1
    return sweeps


@numba.njit
def _scan(start, previous, proposals, u, v, decay, log_alpha, log_u, bend):
    """S'_t = Q_t + J_t (S'_{t-1} - prev_t) where accepted, with J_t = diag(decay_t) + u_t v_t^T."""
    solved = np.empty_like(proposals)
    state = start.copy()
    for t in range(len(proposals)):
        moved = state - previous[t]
        turned = decay[t] * moved + u[t] * np.sum(v[t] * moved)
        gained = np.sum(turned * (2 * proposals[t] + turned) - moved * (2 * previous[t] + moved))
        ratio = log_alpha[t] - bend * gained
        if log_u[t] < ratio < np.inf:
            state = proposals[t] + turned
        solved[t] = state
    return solved


def slid(rows: np.ndarray, by: int) -> np.ndarray:
    """Rows moved up by as many, with NaN for what is not known yet."""
    return np.vstack([rows[by:], np.full((by, rows.shape[1]), np.nan)])


def sequential_solver(case: Warmed, n: int) -> Solver:
    """The chain step by step, on JAX, for at most n transitions."""
    spec = SweepSpec(case.tuning.metric.kind)
    return make_solver("jax", case.density, spec, WindowPlan(1, 1, TOL, n))


def run(solver: Solver, case: Warmed, step_size: float, tape: Tape, **tuned: Any) -> Trajectory:
    """A chain from where warm-up ended."""
    tuning = replace(case.tuning, step_size=step_size, **tuned)
    return solver.solve(case.z, tape, tuning, case.params, np.random.default_rng(0))


def tape_of(case: Warmed, seed: int, n: int) -> Tape:
    """A noise tape that depends on the seed only."""
    normal, uniform = (np.random.default_rng([seed, i]) for i in range(2))
    return draw_tape(normal, uniform, n, case.density.size)


def step_size_for(case: Warmed, target: float, solver: Solver, n: int = 4000) -> float:
    """The step size with mean acceptance `target` on one tape, by bisection to one per cent."""
    tape = tape_of(case, 11, n)
    low, high = 0.05, 3.0
    while high > 1.01 * low:
        middle = float(np.sqrt(low * high))
        rate = acceptance_rates(run(solver, case, middle, tape).log_alpha).mean()
        low, high = (middle, high) if rate > target else (low, middle)
    return low
