"""Stretches of chain: what is solved in one call, with its noise, and what its draws need."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import numpy as np

from pymc_deer.adaptation import acceptance_rates
from pymc_deer.backends.base import Run, Solver, Tuning
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.batches import in_batches
from pymc_deer.memory import affordable_rows
from pymc_deer.noise import NoiseSource, Tape, draw_tape, generator_at

_DIVERGENCE = 1000.0
"""Energy error from which a transition counts as divergent, as in PyMC and Stan."""

_BATCH = 64
"""Draws whose coordinates are changed in one call, but for large ones."""


@dataclass
class Streams:
    """The chain's random generators, one for each use."""

    normal: np.random.Generator
    uniform: np.random.Generator
    probes: np.random.Generator
    start: np.random.Generator
    scale: np.random.Generator
    length: np.random.Generator

    @classmethod
    def spawn(cls, rng: np.random.Generator) -> "Streams":
        return cls(*rng.spawn(6))

    def copy(self) -> "Streams":
        """Generators that give the same numbers; quicker than ``deepcopy``, once a stretch."""
        return Streams(*(_twin(getattr(self, stream.name)) for stream in fields(self)))

    def tape(self, n: int, size: int, tuning: Tuning, source: NoiseSource = "host") -> Tape:
        """The next n rows of the noise tape: step sizes and path lengths vary as tuned."""
        tape = draw_tape(self.normal, self.uniform, n, size, source)
        if tuning.jitter:
            tape = replace(tape, scale=1.0 + tuning.jitter * self.scale.uniform(-1.0, 1.0, n))
        fewest, most = tuning.lengths
        if most > 1:
            more = self.length.random(n) * (most - fewest + 1)
            tape = replace(tape, n_leapfrog=fewest + more.astype(np.int64))
        return tape


def _twin(rng: np.random.Generator) -> np.random.Generator:
    return generator_at(type(rng.bit_generator), rng.bit_generator.state)


@dataclass(frozen=True)
class SolvedStretch:
    """A solved stretch with what its draws need, and the generators as they were after it."""

    trajectory: Trajectory
    params: Sequence[np.ndarray]
    tuning: Tuning
    window: int
    steps_per_draw: int
    streams: Streams

    def assumes(self, params: Sequence[np.ndarray]) -> bool:
        """Whether it was solved for these values of the density's parameters."""
        pairs = zip(self.params, params, strict=True)
        return all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    @cached_property
    def draws(self) -> np.ndarray:
        """The recorded draws in x, shape (draws, D)."""
        z = self.trajectory.z[self.steps_per_draw - 1 :: self.steps_per_draw]
        batch = min(_BATCH, affordable_rows(z.shape[1]))
        [x] = in_batches(lambda rows: [self.tuning.metric.to_x(rows)], z, batch)
        return x.astype(z.dtype)

    @cached_property
    def statistics(self) -> dict[str, list[Any]]:
        """Statistics of the recorded draws by name, each as PyMC takes it of one draw."""
        n_draws = len(self.draws)
        return {
            name: column.tolist() if isinstance(column, np.ndarray) else [column] * n_draws
            for name, column in self.columns.items()
        }

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Statistics of the recorded draws by name, (draws,) or one number for all."""
        trajectory, steps = self.trajectory, self.steps_per_draw
        n_draws = len(trajectory) // steps
        n_swept = len(trajectory) - trajectory.n_fallback if trajectory.n_sweeps else 0
        return {
            "model_logp": trajectory.logp[steps - 1 :: steps],
            "energy": trajectory.energy[steps - 1 :: steps],
            "acceptance_rate": acceptance_rates(self._log_alpha).mean(axis=1),
            "diverging": self._diverging.any(axis=1),
            "n_steps": trajectory.n_leapfrog.reshape(n_draws, steps).sum(axis=1),
            "rejected_nonfinite": self._nonfinite.sum(axis=1),
            "step_size": self.tuning.step_size,
            "n_transitions": steps,
            "sweeps": trajectory.n_sweeps / n_draws,
            "committed_per_sweep": n_swept / max(trajectory.n_sweeps, 1),
            "window": self.window,
            "curvature": self.tuning.curvature,
            "fallback": trajectory.n_fallback / n_draws,
        }

    @property
    def _log_alpha(self) -> np.ndarray:
        """The trajectory's, shape (draws, steps_per_draw), as of all below."""
        return self.trajectory.log_alpha.reshape(-1, self.steps_per_draw)

    @cached_property
    def _nonfinite(self) -> np.ndarray:
        return ~(np.abs(self._log_alpha) < np.inf)

    @cached_property
    def _diverging(self) -> np.ndarray:
        return self._nonfinite | (self._log_alpha < -_DIVERGENCE)

    def divergence(self, i: int, before: np.ndarray) -> np.ndarray:
        """Where the first divergent transition of the i-th draw started, in x, shape (D,).

        Parameters
        ----------
        before
            The state before the stretch, shape (D,).
        """
        first = i * self.steps_per_draw + int(np.argmax(self._diverging[i]))
        return self.tuning.metric.to_x(self.trajectory.z[first - 1]) if first else before


@dataclass(frozen=True)
class Task:
    """A stretch to solve: n transitions from a whitened state, shape (D,)."""

    solver: Solver
    start: np.ndarray
    tape: Tape
    tuning: Tuning
    steps_per_draw: int
    streams: Streams

    def solve(self, params: Sequence[np.ndarray]) -> SolvedStretch:
        """The stretch by itself."""
        return self.solved(self.solver.run(self.run, params), params)

    @property
    def run(self) -> Run:
        """What the solver is asked for."""
        return Run(self.start, self.tape, self.tuning, self.streams.probes)

    def solved(self, trajectory: Trajectory, params: Sequence[np.ndarray]) -> SolvedStretch:
        """The stretch that `trajectory` is."""
        window, steps = self.solver.plan.window, self.steps_per_draw
        return SolvedStretch(trajectory, params, self.tuning, window, steps, self.streams)
