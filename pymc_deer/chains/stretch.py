"""Stretches of chain: what is solved in one call, with its noise, and what its draws need."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from pymc_deer.acceptance import DIVERGENCE, acceptance_rates
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.trajectory import SOLVED, Trajectory
from pymc_deer.duplicate import duplicate
from pymc_deer.noise import Draw, Rows, Tape, draw_log_u, draw_normals, step_scales, twin


@dataclass
class Streams:
    """The chain's random numbers, a generator for each use."""

    normal: Rows
    uniform: Rows
    probes: np.random.Generator
    start: np.random.Generator
    scale: Rows
    length: Rows

    @classmethod
    def spawn(cls, rng: np.random.Generator) -> "Streams":
        normal, uniform, probes, start, scale, length = rng.spawn(6)
        return cls(Rows(normal), Rows(uniform), probes, start, Rows(scale), Rows(length))

    def branch(self, *, sweeps: bool) -> "Streams":
        """Generators that give the same and leave these where they are, with sweeps or without."""
        # Where there are no sweeps there are no probes; where a chain starts is behind it.
        return duplicate(self, probes=twin(self.probes) if sweeps else self.probes)

    def tape(self, n: int, size: int, tuning: Tuning, draw: Draw = draw_normals) -> Tape:
        """The next n rows of the noise tape: step sizes and path lengths vary as tuned."""
        xi, self.normal = self.normal.take(n, lambda rng, rows: draw(rng, rows, size), size)
        log_u, self.uniform = self.uniform.take(n, draw_log_u)
        scale = n_leapfrog = None
        if tuning.jitter or tuning.small_steps:
            shares, self.scale = self.scale.take(n, _shares)
            scale = step_scales(shares, tuning.jitter, tuning.small_steps)
        fewest, most = tuning.lengths
        if most > 1:
            shares, self.length = self.length.take(n, _shares)
            n_leapfrog = fewest + 2 * (shares * ((most - fewest) // 2 + 1)).astype(np.int64)
        return Tape(xi, log_u, scale, n_leapfrog)


def _shares(rng: np.random.Generator, n: int) -> np.ndarray:
    return rng.random(n)


@dataclass(frozen=True)
class SolvedStretch:
    """A solved stretch with what its draws need, and the generators as they were after it."""

    trajectory: Trajectory
    params: Sequence[np.ndarray]
    tuning: Tuning
    window: int
    steps_per_draw: int
    streams: Streams
    divergences: int | None = None
    """Draws before it, of those kept, in which a transition diverged; None in warm-up."""

    def assumes(self, params: Sequence[np.ndarray]) -> bool:
        """Whether it was solved for these values of the density's parameters."""
        pairs = zip(self.params, params, strict=True)
        return all(a is b or np.array_equal(a, b, equal_nan=True) for a, b in pairs)

    def __len__(self) -> int:
        """Its recorded draws."""
        return len(self.trajectory) // self.steps_per_draw

    @cached_property
    def draws(self) -> np.ndarray:
        """The recorded draws in x, shape (draws, D)."""
        return self._to_x(self.whitened)

    def draw(self, i: int) -> np.ndarray:
        """The i-th of them, shape (D,), where the others may not be asked for."""
        return self._to_x(self.whitened[i : i + 1])[0]

    @property
    def whitened(self) -> np.ndarray:
        """The recorded draws in z, shape (draws, D)."""
        return self._of_recorded(self.trajectory.z)

    def _of_recorded(self, kept: np.ndarray) -> np.ndarray:
        """Of what the trajectory keeps, the rows of draws' last transitions."""
        rows_per_draw = self.steps_per_draw // self.trajectory.stride
        return kept[rows_per_draw - 1 :: rows_per_draw]

    def _to_x(self, z: np.ndarray) -> np.ndarray:
        """States (n, D), to the last bit as among any others."""
        return self.tuning.metric.to_x_by_row(z).astype(z.dtype, copy=False)

    @cached_property
    def statistics(self) -> dict[str, list[Any]]:
        """Statistics of the recorded draws by name, each as PyMC takes it of one draw."""
        n_draws = len(self)
        return {
            name: column.tolist() if isinstance(column, np.ndarray) else [column] * n_draws
            for name, column in self.columns.items()
        }

    @cached_property
    def columns(self) -> dict[str, Any]:
        """Statistics of the recorded draws by name, (draws,) or one number for all."""
        trajectory, steps = self.trajectory, self.steps_per_draw
        n_draws = len(self)
        n_swept = len(trajectory) - trajectory.n_fallback if trajectory.n_sweeps else 0
        diverging, before = self._diverging.any(axis=1), self.divergences
        return {
            "model_logp": self._of_recorded(trajectory.logp),
            "energy": self._of_recorded(trajectory.energy),
            "acceptance_rate": acceptance_rates(self._log_alpha).mean(axis=1),
            "diverging": diverging,
            "divergences": 0 if before is None else before + np.cumsum(diverging),
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
        return self._nonfinite | (self._log_alpha < -DIVERGENCE)

    def divergence(self, i: int) -> np.ndarray:
        """Where the first divergent transition of the i-th draw started, in x, shape (D,).

        Of a stretch of which every state is kept. It was rejected, so it ended there too.
        """
        first = i * self.steps_per_draw + int(np.argmax(self._diverging[i]))
        return self._to_x(self.trajectory.z[first : first + 1])[0]


@dataclass(frozen=True)
class Task:
    """A stretch to solve once, as the solver is asked for it: from a whitened state, shape (D,)."""

    solver: Solver
    start: np.ndarray
    tuning: Tuning
    n_draws: int
    steps_per_draw: int
    streams: Streams
    stride: int = 1
    asked: Collection[str] = SOLVED
    divergences: int | None = None

    def solve(self, params: Sequence[np.ndarray]) -> SolvedStretch:
        """The stretch by itself, and its draws."""
        solved = self.solved(self.solver.run(self, params), params)
        # BLAS may round them in another way where it has more threads.
        with self.solver.one_blas_thread():
            _ = solved.draws
        return solved

    def solved(self, trajectory: Trajectory, params: Sequence[np.ndarray]) -> SolvedStretch:
        """The stretch that `trajectory` is."""
        window, steps, before = self.solver.plan.window, self.steps_per_draw, self.divergences
        return SolvedStretch(trajectory, params, self.tuning, window, steps, self._after, before)

    @property
    def n_transitions(self) -> int:
        return self.n_draws * self.steps_per_draw

    def tapes(self, pieces: Sequence[range]) -> Iterator[Tape]:
        for rows in pieces:
            draw = self.solver.draw_momenta
            yield self._after.tape(len(rows), len(self.start), self.tuning, draw)

    @property
    def probe_rng(self) -> np.random.Generator:
        return self._after.probes

    @cached_property
    def _after(self) -> Streams:
        """Generators that are behind the stretch when it is solved."""
        return self.streams.branch(sweeps=self.solver.plan.window > 1)
