"""Exactness of a step's solver: DEER against sequential MALA on one tape."""

from dataclasses import dataclass, replace

import numpy as np

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends.base import Solver
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.noise import draw_tape
from pymc_deer.step import DeerStep

_WINDOW, _TRANSITIONS = 256, 1024


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


def compare_with_sequential(step: DeerStep) -> Comparison:
    """Run one tape twice from where the step's last chain stands, in windows and step by step."""
    record, density = step.record, step.density
    assert record is not None
    tuning = record.warmup.tuning
    z = tuning.metric.to_z(record.x)
    tol = step.solver.plan.tol
    plan = WindowPlan(_WINDOW, max_sweeps=None, tol=tol, capacity=_TRANSITIONS)
    windows = step.solver.with_plan(plan)
    sequential = windows.with_plan(replace(plan, window=1))
    normal, uniform, probes = np.random.default_rng(0).spawn(3)
    tape = draw_tape(normal, uniform, _TRANSITIONS, density.size, windows.draw_momenta)
    params = density.param_values(step.model.initial_point())

    def run(solver: Solver, start: np.ndarray) -> Trajectory:
        return solver.solve(start, tape, tuning, params, probes)

    solved, exact, moved = run(windows, z), run(sequential, z), run(sequential, z + tol)
    return Comparison(
        n_transitions=_TRANSITIONS,
        window=_WINDOW,
        n_sweeps=solved.n_sweeps,
        n_fallback=solved.n_fallback,
        acceptance_rate=float(acceptance_rates(exact.log_alpha).mean()),
        max_difference=float(np.abs(solved.z - exact.z).max()),
        tol=tol,
        own_difference=float(np.abs(moved.z - exact.z).max()),
    )
