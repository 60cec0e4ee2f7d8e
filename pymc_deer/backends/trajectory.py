"""What goes into a solve and what comes out: noise, and states with how they were found."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from pymc_deer.noise import Tape
from pymc_deer.precision import WIDE

SOLVED = ("z", "logp", "dlogp", "log_alpha", "energy")
"""What a backend fills in for each transition, in the order of its programs' outputs."""

_VECTORS = ("z", "dlogp")

_PER_STEP = (*SOLVED, "n_leapfrog", "step_sizes")
"""Fields of a trajectory with a row for each transition."""


@dataclass(frozen=True)
class Trajectory:
    """n consecutive states in whitened coordinates, and how they were found.

    Attributes
    ----------
    z, dlogp
        States and gradients of logp there, shape (n, D).
    logp
        Log-density at the states, shape (n,).
    log_alpha
        Log of each transition's Metropolis ratio, shape (n,).
    energy
        Hamiltonian where each transition starts, shape (n,).
    n_leapfrog, step_sizes
        Leapfrog steps of each transition, and their size, shape (n,).
    n_sweeps
        Newton sweeps used, 0 for the sequential chain.
    n_fallback
        Transitions finished step by step because the sweeps ran out.
    """

    z: np.ndarray
    logp: np.ndarray
    dlogp: np.ndarray
    log_alpha: np.ndarray
    energy: np.ndarray
    n_leapfrog: np.ndarray
    step_sizes: np.ndarray
    n_sweeps: int
    n_fallback: int

    def __len__(self) -> int:
        return len(self.logp)

    def __getitem__(self, rows: slice) -> "Trajectory":
        """Some of the states; the counts stay those of the whole."""
        return replace(self, **{name: getattr(self, name)[rows] for name in _PER_STEP})


class Noise(NamedTuple):
    """A solve's tape in the types of its programs: xi as the tape has it, all else (n,)."""

    xi: np.ndarray
    log_u: np.ndarray
    step_sizes: np.ndarray
    n_leapfrog: np.ndarray

    @classmethod
    def of(cls, tape: Tape, step_size: float, dtype: str) -> "Noise":
        return cls(
            np.ascontiguousarray(tape.xi, dtype=dtype if tape.xi.ndim == 2 else None),
            np.ascontiguousarray(tape.log_u, dtype=WIDE),
            np.ascontiguousarray(tape.step_sizes(step_size), dtype=dtype),
            np.ascontiguousarray(tape.lengths, dtype=np.int64),
        )

    def after(self, n: int) -> "Noise":
        """Without the first n transitions."""
        return self.part(slice(n, None))

    def part(self, rows: slice) -> "Noise":
        """Of some of the transitions."""
        return Noise(*(array[rows] for array in self))


def solved_types(n: int, size: int, dtype: str) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of each of `SOLVED`, for n transitions in D = `size` dimensions in `dtype`."""
    return [((n, size), dtype) if name in _VECTORS else ((n,), WIDE) for name in SOLVED]


@dataclass(frozen=True)
class Buffers:
    """Arrays that a solver fills for n transitions: `SOLVED`, in that order."""

    arrays: tuple[np.ndarray, ...]

    @classmethod
    def empty(cls, n: int, size: int, dtype: str) -> "Buffers":
        """For states of D = `size` coordinates."""
        return cls(tuple(np.empty(*like) for like in solved_types(n, size, dtype)))

    def part(self, rows: slice) -> "Buffers":
        """Those of some of the transitions."""
        return Buffers(tuple(array[rows] for array in self.arrays))

    @property
    def z(self) -> np.ndarray:
        """The states, shape (n, D)."""
        return self.arrays[0]

    def write(self, at: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy rows of each array to position `at`."""
        for target, rows in zip(self.arrays, arrays, strict=True):
            target[at : at + len(rows)] = rows


class Job(NamedTuple):
    """One chain's share of a solve: from a state of shape (D,), along its noise, into its buffers.

    `curvature` and `probe_rng` steer its sweeps.
    """

    start: np.ndarray
    noise: Noise
    curvature: float
    probe_rng: np.random.Generator
    buffers: Buffers

    def part(self, rows: range) -> "Job":
        """Some of the transitions, of which those before them are done."""
        if len(rows) == len(self.noise.log_u):
            return self
        some = slice(rows.start, rows.stop)
        start = self.buffers.z[rows.start - 1].copy() if rows.start else self.start
        noise, buffers = self.noise.part(some), self.buffers.part(some)
        return self._replace(start=start, noise=noise, buffers=buffers)

    def trajectory(self, n_sweeps: int, n_fallback: int) -> Trajectory:
        """What the buffers hold when they are filled."""
        return Trajectory(
            **dict(zip(SOLVED, self.buffers.arrays, strict=True)),
            n_leapfrog=self.noise.n_leapfrog,
            step_sizes=self.noise.step_sizes,
            n_sweeps=n_sweeps,
            n_fallback=n_fallback,
        )
