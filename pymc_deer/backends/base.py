"""What every backend offers: stretches of chain, solved in windows or step by step."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.batch import Batching
from pymc_deer.density import Density
from pymc_deer.metric import Metric
from pymc_deer.noise import Tape
from pymc_deer.sweep import SweepSpec


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
    """

    step_size: float
    curvature: float
    metric: Metric


@dataclass(frozen=True)
class WindowPlan:
    """How a stretch is solved; nothing here changes the states by more than the tolerance.

    Attributes
    ----------
    window
        W, transitions solved at once; 1 runs the chain step by step.
    max_sweeps
        Sweeps allowed for every W transitions before the rest is run step by step.
    tol
        Bound on the summed residuals of the states from which the next one is committed, in
        whitened units.
    capacity
        Most transitions a call will be asked for.
    """

    window: int
    max_sweeps: int
    tol: float
    capacity: int


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
    n_sweeps
        Newton sweeps used, 0 for the sequential chain.
    n_fallback
        Transitions finished step by step because the sweeps ran out.
    """

    z: np.ndarray
    logp: np.ndarray
    dlogp: np.ndarray
    log_alpha: np.ndarray
    n_sweeps: int
    n_fallback: int

    def __len__(self) -> int:
        return len(self.logp)

    def __getitem__(self, rows: slice) -> "Trajectory":
        """Some of the states; the counts stay those of the whole."""
        return replace(
            self,
            z=self.z[rows],
            logp=self.logp[rows],
            dlogp=self.dlogp[rows],
            log_alpha=self.log_alpha[rows],
        )

    @classmethod
    def joined(cls, pieces: Sequence["Trajectory"]) -> "Trajectory":
        """Consecutive trajectories as one."""
        return cls(
            z=np.concatenate([p.z for p in pieces]),
            logp=np.concatenate([p.logp for p in pieces]),
            dlogp=np.concatenate([p.dlogp for p in pieces]),
            log_alpha=np.concatenate([p.log_alpha for p in pieces]),
            n_sweeps=sum(p.n_sweeps for p in pieces),
            n_fallback=sum(p.n_fallback for p in pieces),
        )


class Buffers:
    """Arrays that a solver fills: z, logp, dlogp and log_alpha of n transitions."""

    def __init__(self, n: int, size: int, dtype: str) -> None:
        self.z = np.empty((n, size), dtype=dtype)
        self.logp = np.empty(n, dtype=dtype)
        self.dlogp = np.empty((n, size), dtype=dtype)
        self.log_alpha = np.empty(n, dtype=dtype)

    def write(self, at: int, arrays: Sequence[np.ndarray]) -> None:
        """Copy rows of z, logp, dlogp and log_alpha to position `at`."""
        for target, rows in zip(
            (self.z, self.logp, self.dlogp, self.log_alpha), arrays, strict=True
        ):
            target[at : at + len(rows)] = rows


class Solver(ABC):
    """Runs a density's chain on one backend. Compiles lazily, once per program.

    Attributes
    ----------
    batching
        How the backend evaluates a window of states; None before the first windowed solve.
    """

    name: str

    def __init__(self, density: Density, spec: SweepSpec, plan: WindowPlan) -> None:
        self.density = density
        self.spec = spec
        self.plan = plan
        self.batching: Batching | None = None

    def solve(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        probe_rng: np.random.Generator,
    ) -> Trajectory:
        """Run ``len(tape)`` transitions from the whitened state `start`, shape (D,).

        Parameters
        ----------
        tape
            Noise of at most ``plan.capacity`` transitions.
        params
            Values of ``density.params``.
        probe_rng
            Source of the Rademacher probes of the ``stochastic`` rule. They steer the sweeps and
            leave no trace in the states beyond the tolerance.
        """
        dtype = self.density.dtype
        n = len(tape)
        buffers = Buffers(n, self.density.size, dtype)
        start = np.ascontiguousarray(start, dtype=dtype)
        tape = Tape(tape.xi.astype(dtype), tape.log_u.astype(dtype))
        tuning = Tuning(tuning.step_size, tuning.curvature, tuning.metric.astype(dtype))
        n_done, n_sweeps = 0, 0
        if self.plan.window > 1:
            n_done, n_sweeps = self._windowed(start, tape, tuning, params, probe_rng, buffers)
        if n_done < n:
            state = buffers.z[n_done - 1] if n_done else start
            self._sequential(state.copy(), tape, tuning, params, buffers, n_done)
        return Trajectory(
            z=buffers.z,
            logp=buffers.logp,
            dlogp=buffers.dlogp,
            log_alpha=buffers.log_alpha,
            n_sweeps=n_sweeps,
            n_fallback=n - n_done if self.plan.window > 1 else 0,
        )

    def evaluate(
        self, z: np.ndarray, metric: Metric, params: Sequence[np.ndarray]
    ) -> tuple[float, np.ndarray]:
        """Logp and whitened gradient at z of shape (D,): a transition of step size 0.

        It goes through the programs that run the chain, so nothing more is compiled.
        """
        size = self.density.size
        # Two states, so that the first call of all sees a true batch.
        tape = Tape(np.zeros((2, size)), np.full(2, -np.inf))
        rng = np.random.default_rng(0)
        trajectory = self.solve(z, tape, Tuning(0.0, 1.0, metric), params, rng)
        # The ratio is 1 where logp is finite; where it is not, it says so.
        logp = trajectory.logp[0] if trajectory.log_alpha[0] == 0 else np.nan
        return float(logp), trajectory.dlogp[0]

    def sweep_budget(self, n: int) -> int:
        """Most sweeps for n transitions."""
        return -(-n // self.plan.window) * self.plan.max_sweeps

    @abstractmethod
    def _windowed(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        probe_rng: np.random.Generator,
        buffers: Buffers,
    ) -> tuple[int, int]:
        """Fill `buffers` by sweeps; return (transitions committed, sweeps used)."""

    @abstractmethod
    def _sequential(
        self,
        start: np.ndarray,
        tape: Tape,
        tuning: Tuning,
        params: Sequence[np.ndarray],
        buffers: Buffers,
        first: int,
    ) -> None:
        """Fill `buffers` from row `first` on, step by step from `start`."""
