"""Ways to need fewer sweeps, as parts of :func:`tests.benchmarks.trial_sweeps.solve`."""

from dataclasses import dataclass, field

import numpy as np

from pymc_deer.noise import Tape
from tests.benchmarks.trial_sweeps import Batch, Problem, Rule, slid


@dataclass
class Stochastic(Rule):
    """One Rademacher probe for each state, c times its estimate of the curvatures."""

    problem: Problem | None = None
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(0))

    def curvature(self, batch: Batch) -> np.ndarray:
        assert self.problem is not None
        probes = self.rng.choice([-1.0, 1.0], size=batch.previous.shape)
        return self.c * self.problem.probe(batch.previous, probes)


@dataclass
class Cycle(Rule):
    """The first sweeps take the first of `several` c, and so on; in turn if `repeats`."""

    several: tuple[float, ...] = ()
    repeats: bool = True

    def curvature(self, batch: Batch) -> np.ndarray:
        last = len(self.several) - 1
        n = batch.number
        return np.asarray(self.several[n % (last + 1) if self.repeats else min(n, last)])


@dataclass
class PathCurvature(Rule):
    """The mean curvature seen by the proposals of a few neighbouring steps, at least 1, times c.

    A step has gradients at both ends, so that the curvature along its path is known: the ratio of
    (q - z) . (g(z) - g(q)) to |q - z|^2, an estimate of the mean eigenvalue of -H as good as one
    Hessian-vector product gives.
    """

    reach: int = 3

    def curvature(self, batch: Batch) -> np.ndarray:
        path = batch.proposal - batch.previous
        bend = np.sum(path * (batch.slope - batch.proposal_slope), axis=1)
        kernel = np.ones(2 * self.reach + 1)
        bend, length = (
            np.convolve(np.nan_to_num(a), kernel, "same") for a in (bend, np.sum(path**2, axis=1))
        )
        return self.c * np.maximum(1, bend / length)[:, None]


@dataclass
class CoordinateSecant(Rule):
    """The change of each coordinate's gradient since the sweep before, over that of the state.

    Cut to between `low` and `high` times c, and c itself where there is no change to divide by.
    """

    low: float = 0.7
    high: float = 2.0
    before: tuple[np.ndarray, np.ndarray] | None = None

    def curvature(self, batch: Batch) -> np.ndarray:
        before, self.before = self.before, (batch.previous, batch.slope)
        found = np.full_like(batch.previous, self.c)
        if before is not None:
            change, bend = batch.previous - before[0], before[1] - batch.slope
            known = (np.abs(change) > 1e-10) & np.isfinite(bend)
            found[known] = np.clip(
                bend[known] / change[known], self.low * self.c, self.high * self.c
            )
        return found

    def slide(self, committed: int) -> None:
        assert self.before is not None
        self.before = slid(self.before[0], committed), slid(self.before[1], committed)


@dataclass
class DrawnSecant(CoordinateSecant):
    """The same, drawn to c where other coordinates moved more.

    With d and b the changes of a coordinate and of minus its gradient, and m the mean square of
    the others' changes, c + (b - c d) d / (d^2 + m / 10).
    """

    high: float = 3.0

    def curvature(self, batch: Batch) -> np.ndarray:
        before, self.before = self.before, (batch.previous, batch.slope)
        found = np.full_like(batch.previous, self.c)
        if before is not None:
            change, bend = batch.previous - before[0], before[1] - batch.slope
            squared = change**2
            of_all = squared.mean(axis=1, keepdims=True)
            known = (of_all > 1e-20) & np.isfinite(bend)
            weight = squared + 0.1 * (of_all - squared / change.shape[1])
            drawn = self.c + (bend - self.c * change) * change / np.where(known, weight, 1)
            found[known] = np.clip(drawn[known], self.low, self.high)
        return found


@dataclass
class RankOne(PathCurvature):
    """Broyden's update of every step's Jacobian, from the change of its proposal between sweeps.

    With the state z and proposal q of the sweep before, J = d I + (dq - d dz) dz^T / |dz|^2 meets
    the secant condition J dz = dq. The correction is cut to the size of the scalar d: a larger one
    comes from curvature that the step size does not suit. `reach` 0 takes d from c alone.
    """

    reach: int = 0
    before: tuple[np.ndarray, np.ndarray] | None = None

    def curvature(self, batch: Batch) -> np.ndarray:
        return Rule.curvature(self, batch) if self.reach == 0 else super().curvature(batch)

    def rank_one(self, batch: Batch, decay: np.ndarray) -> tuple[np.ndarray, np.ndarray] | None:
        before, self.before = self.before, (batch.previous, batch.proposal)
        if before is None:
            return None
        change, moved = batch.previous - before[0], batch.proposal - before[1]
        squared = np.sum(change**2, axis=1, keepdims=True)
        known = (squared > 1e-20) & np.isfinite(moved).all(axis=1, keepdims=True)
        u = np.where(known, moved - decay * change, 0)
        v = np.where(known, change / np.where(known, squared, 1), 0)
        size = np.sqrt(np.sum(u**2, axis=1) * np.sum(v**2, axis=1))
        most = decay.max(axis=1)
        return u * np.minimum(1, most / np.maximum(size, 1e-12))[:, None], v

    def slide(self, committed: int) -> None:
        assert self.before is not None
        self.before = slid(self.before[0], committed), slid(self.before[1], committed)


@dataclass
class Anderson(Rule):
    """Mixes the last `depth` sweeps by least squares on their Newton steps over the window.

    Attributes
    ----------
    split
        Whether every coordinate mixes for itself.
    """

    depth: int = 1
    split: bool = False
    history: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)

    def between(self, guess: np.ndarray, new: np.ndarray) -> np.ndarray:
        step = new - guess
        changes = [(step - s, new - (g + s)) for g, s in self.history]
        self.history = [*self.history, (guess, step)][-self.depth :]
        if not changes:
            return new
        d_step, d_new = (np.nan_to_num(np.array(a)) for a in zip(*changes, strict=True))
        columns = [[i] for i in range(new.shape[1])] if self.split else [slice(None)]
        mixed = new.copy()
        for column in columns:
            a = d_step[:, :, column].reshape(len(d_step), -1)
            weights = np.linalg.lstsq(a.T, step[:, column].ravel(), rcond=1e-6)[0]
            # Weights beyond this answer to a decision that changed, not to a slow mode.
            if np.abs(weights).sum() <= 10:
                mixed[:, column] -= np.tensordot(weights, d_new[:, :, column], 1)
        return mixed

    def slide(self, committed: int) -> None:
        self.history = [(slid(g, committed), slid(s, committed)) for g, s in self.history]


def normal_chain(problem: Problem, start: np.ndarray, tape: Tape) -> np.ndarray:
    """MALA on the standard normal target, from the same state on the same tape."""
    eps, state, states = problem.step_size, start, np.empty_like(tape.xi)
    for t, (xi, log_u) in enumerate(zip(tape.xi, tape.log_u, strict=True)):
        momentum = xi - eps / 2 * state
        proposal = state + eps * momentum
        momentum = momentum - eps / 2 * proposal
        change = state @ state + xi @ xi - proposal @ proposal - momentum @ momentum
        state = proposal if change / 2 > log_u else state
        states[t] = state
    return states


def normal_proposals(problem: Problem, start: np.ndarray, tape: Tape) -> np.ndarray:
    """The same with every proposal accepted."""
    return normal_chain(problem, start, Tape(tape.xi, np.full(len(tape), -np.inf)))
