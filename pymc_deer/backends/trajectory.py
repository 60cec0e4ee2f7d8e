"""What goes into a solve and what comes out: noise, and states with how they were found."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from pymc_deer.noise import Tape
from pymc_deer.precision import WIDE

SOLVED = ("z", "logp", "dlogp", "log_alpha", "energy")
"""What a backend fills in for each transition, in the order of its programs' outputs."""

_VECTORS = ("z", "dlogp")

KEPT = ("z", "logp", "dlogp", "energy")
"""Of those, what is kept of one transition in every stride."""

REPORTED = tuple(name for name in SOLVED if name != "dlogp")
"""What draws are reported with: of gradients only warm-up learns."""

_PER_STEP = ("log_alpha", "n_leapfrog", "step_sizes")
"""Fields of a trajectory with a row for each transition."""


@dataclass(frozen=True)
class Trajectory:
    """States of n transitions in whitened coordinates, and how they were found.

    Of every S = `stride` transitions the last one is kept, and there are k of these: n / S, and one
    more if the last group goes on.

    Attributes
    ----------
    z, dlogp
        States behind the kept transitions and gradients of logp there, shape (k, D); of gradients
        none, where they were not asked for and the backend leaves them out.
    logp
        Log-density at these states, shape (k,).
    log_alpha
        Log of each transition's Metropolis ratio, shape (n,).
    energy
        Hamiltonian where each kept transition starts, shape (k,).
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
    stride: int = 1

    def __len__(self) -> int:
        return len(self.log_alpha)

    def first(self, n: int) -> "Trajectory":
        """The first n transitions, a multiple of the stride; the counts stay those of the whole."""
        rows = dict.fromkeys(_PER_STEP, n) | dict.fromkeys(KEPT, n // self.stride)
        return replace(self, **{name: getattr(self, name)[:last] for name, last in rows.items()})


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

    def part(self, rows: slice) -> "Noise":
        """Of some of the transitions."""
        return Noise(*(array[rows] for array in self))


def solved_types(
    n: int, size: int, dtype: str, stride: int = 1
) -> list[tuple[tuple[int, ...], str]]:
    """Shape and type of each of `SOLVED`, for n transitions in D = `size` dimensions in `dtype`."""
    rows = {name: -(-n // stride) if name in KEPT else n for name in SOLVED}
    return [((k, size), dtype) if name in _VECTORS else ((k,), WIDE) for name, k in rows.items()]


@dataclass(frozen=True)
class Buffers:
    """Arrays that a solver fills for n transitions.

    What is kept of one transition in every `stride` has a row for them all, where each of them
    writes over the one before: so the last row that is written to is where the chain stands.

    Attributes
    ----------
    names
        Of the arrays: those of `SOLVED` that are filled, in that order, states among them.
    """

    arrays: tuple[np.ndarray, ...]
    stride: int
    names: tuple[str, ...] = SOLVED

    @classmethod
    def empty(
        cls, n: int, size: int, dtype: str, stride: int, names: Collection[str] = SOLVED
    ) -> "Buffers":
        """For states of D = `size` coordinates."""
        types = zip(SOLVED, solved_types(n, size, dtype, stride), strict=True)
        arrays = {name: np.empty(*like) for name, like in types if name in names}
        return cls(tuple(arrays.values()), stride, tuple(arrays))

    def part(self, rows: range) -> "Buffers":
        """Those of some of the transitions, which begin with a stride."""
        if len(rows) == len(self.arrays[self.names.index("log_alpha")]):
            return self
        of_each = slice(rows.start, rows.stop)
        kept = slice(rows.start // self.stride, -(-rows.stop // self.stride))
        parts = zip(self.names, self.arrays, strict=True)
        arrays = (array[kept if name in KEPT else of_each] for name, array in parts)
        return replace(self, arrays=tuple(arrays))

    def of_solved(self, arrays: Sequence[Any]) -> tuple[Any, ...]:
        """Those of all `SOLVED` that it has arrays for."""
        return tuple(a for name, a in zip(SOLVED, arrays, strict=True) if name in self.names)

    def state_before(self, t: int) -> np.ndarray:
        """Where the chain stands once t transitions are done and no more, shape (D,)."""
        return self.arrays[0][(t - 1) // self.stride].copy()

    def write(self, at: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy what is asked for of arrays that have a row for each transition, from `at` on."""
        end, stride = at + len(arrays[0]), self.stride
        for name, target, rows in zip(self.names, self.arrays, arrays, strict=True):
            if name in KEPT:
                target[at // stride : end // stride] = rows[-(at + 1) % stride :: stride]
                if end % stride:
                    target[end // stride] = rows[-1]
            else:
                target[at:end] = rows

    def write_kept(self, at: int, n: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy what arrays begin with: what is asked for of n transitions from `at` on."""
        for name, target, rows in zip(self.names, self.arrays, arrays, strict=True):
            stride = self.stride if name in KEPT else 1
            own = range(at // stride, -(-(at + n) // stride))
            target[own.start : own.stop] = rows[: len(own)]

    def trajectory(self, found: "Sequence[Found]") -> Trajectory:
        """What they hold when they are filled, in calls that follow on one another."""
        n_leapfrog, step_sizes, n_sweeps, n_fallback = zip(*found, strict=True)
        arrays = dict(zip(self.names, self.arrays, strict=True))
        none = arrays["z"][:0]
        return Trajectory(
            **{name: arrays.get(name, none) for name in SOLVED},
            n_leapfrog=_joined(n_leapfrog),
            step_sizes=_joined(step_sizes),
            n_sweeps=sum(n_sweeps),
            n_fallback=sum(n_fallback),
            stride=self.stride,
        )


class Found(NamedTuple):
    """How one call has found a chain's states; as of a :class:`Trajectory`."""

    n_leapfrog: np.ndarray
    step_sizes: np.ndarray
    n_sweeps: int
    n_fallback: int


def _joined(columns: Sequence[np.ndarray]) -> np.ndarray:
    return columns[0] if len(columns) == 1 else np.concatenate(columns)
