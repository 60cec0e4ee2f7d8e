"""What a solver is asked for: a stretch of chain, and what warm-up has tuned for it."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from pymc_deer.backends.trajectory import SOLVED, Buffers, Noise
from pymc_deer.metric import Metric
from pymc_deer.noise import Tape


@dataclass(frozen=True)
class Tuning:
    """What warm-up tunes and a stretch of chain is run with.

    Attributes
    ----------
    step_size
        Leapfrog step size in whitened units.
    curvature
        The bound c of the Jacobian rules; it changes the number of sweeps, never the states.
    metric
        The whitening.
    jitter
        Share by which the step size varies from transition to transition, uniformly either way.
    lengths
        Fewest and most leapfrog steps of a transition, every second number between as often.
    small_steps
        Share of the transitions that take a smaller step size, down to a tenth.
    standardized
        Whether the metric was learnt from draws, which have mean 0 and variance 1 by it: so the
        chain can be forecast. Like `curvature` it changes no states.
    """

    step_size: float
    curvature: float
    metric: Metric
    jitter: float = 0.0
    lengths: tuple[int, int] = (1, 1)
    small_steps: float = 0.0
    standardized: bool = False


class Request(Protocol):
    """What a chain asks of a solver; see :meth:`~pymc_deer.backends.base.Solver.solve`.

    Of several chains each is read in the thread that runs it.
    """

    @property
    def start(self) -> np.ndarray: ...
    def tapes(self, pieces: Sequence[range]) -> Iterator[Tape]:
        """Noise of all transitions in turn, piece by piece: best made when it is asked for."""
        ...

    @property
    def n_transitions(self) -> int: ...
    @property
    def tuning(self) -> Tuning: ...
    @property
    def stride(self) -> int:
        """Transitions of which only the last one's state is asked for."""
        ...

    @property
    def asked(self) -> Collection[str]:
        """What is asked for of `SOLVED`; a backend that leaves nothing out gives all."""
        ...

    @property
    def probe_rng(self) -> np.random.Generator: ...


class TapedRequest(NamedTuple):
    """A request whose tape is there."""

    start: np.ndarray
    tape: Tape
    tuning: Tuning
    probe_rng: np.random.Generator
    stride: int = 1
    asked: Collection[str] = SOLVED

    @property
    def n_transitions(self) -> int:
        return len(self.tape)

    def tapes(self, pieces: Sequence[range]) -> Iterator[Tape]:
        return (self.tape[rows.start : rows.stop] for rows in pieces)


class Job(NamedTuple):
    """One chain's share of a call: from a state of shape (D,), along its noise, into its buffers.

    `tuning` and `probe_rng` steer its sweeps.
    """

    start: np.ndarray
    noise: Noise
    tuning: Tuning
    probe_rng: np.random.Generator
    buffers: Buffers
