"""Exactness of a solver on a density: DEER against sequential MALA on one tape."""

from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density
from pymc_deer.layout import Point
from pymc_deer.noise import draw_tape
from pymc_deer.options import BackendName
from pymc_deer.sweep import SweepSpec


@dataclass(frozen=True)
class Comparison:
    """How a windowed run of n transitions compares with the sequential one.

    Attributes
    ----------
    n_transitions, window
        Length of the run and of its windows.
    n_sweeps
        Newton sweeps it took.
    n_fallback
        Transitions run step by step because the sweeps ran out.
    acceptance_rate
        Mean acceptance probability.
    max_difference
        Largest difference between the two runs' states, in whitened units.
    tol
        Error allowed in a window's states.
    own_difference
        Largest difference of the sequential run from another one that starts `tol` away in each
        coordinate: where metric and step size do not suit the posterior, a chain makes any error
        larger, and its own rounding too.
    """

    n_transitions: int
    window: int
    n_sweeps: int
    n_fallback: int
    acceptance_rate: float
    max_difference: float
    tol: float
    own_difference: float

    @property
    def sweeps_per_1000(self) -> float:
        """Sweeps for 1000 transitions."""
        return 1000 * self.n_sweeps / self.n_transitions


def compare_with_sequential(
    density: Density,
    tuning: Tuning,
    x: np.ndarray,
    point: Point,
    *,
    backend: BackendName,
    spec: SweepSpec,
    window: int = 256,
    n_transitions: int = 1024,
    tol: float = 1e-6,
    seed: int = 0,
) -> Comparison:
    """Run one tape twice from x, in windows and step by step.

    Parameters
    ----------
    density, tuning, x
        What to sample, with which step size and metric, from which state, shape (D,).
    point
        Values of the variables that the density is conditioned on.
    backend
        ``numba`` or ``jax``.
    spec
        Kind of metric, Jacobian rule, and where momenta are made.
    """
    params = density.param_values(point)
    z = tuning.metric.to_z(x)
    plan = WindowPlan(window, max_sweeps=window, tol=tol, capacity=n_transitions)
    windows = make_solver(backend, density, spec, plan)
    sequential = windows.with_plan(replace(plan, window=1, max_sweeps=1))
    rngs = [np.random.default_rng(child) for child in np.random.SeedSequence(seed).spawn(3)]
    tape = draw_tape(rngs[0], rngs[1], n_transitions, density.size, windows.draw_momenta)

    def run(solver: Solver, start: np.ndarray) -> Trajectory:
        return solver.solve(start, tape, tuning, params, rngs[2])

    solved, exact, moved = run(windows, z), run(sequential, z), run(sequential, z + tol)
    return Comparison(
        n_transitions=n_transitions,
        window=window,
        n_sweeps=solved.n_sweeps,
        n_fallback=solved.n_fallback,
        acceptance_rate=float(acceptance_rates(exact.log_alpha).mean()),
        max_difference=float(np.abs(solved.z - exact.z).max()),
        tol=tol,
        own_difference=float(np.abs(moved.z - exact.z).max()),
    )
