"""A solve kept sweep by sweep, to look at: what each sweep guessed, and by how much it was wrong.

The compiled loops keep nothing of a sweep but what it commits. Here the sweep that they are made
around is called from Python, window after window.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from pymc.model import Model

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import resolve_backend
from pymc_deer.backends.base import Solver
from pymc_deer.backends.forecast import known_ahead
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.trajectory import Noise
from pymc_deer.chains.prepare import prepare, warmed_up
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.floating_point import as_numpy_does
from pymc_deer.jacobian import unit_probes
from pymc_deer.ops.batch import BATCHINGS
from pymc_deer.options import OPTIONS, is_integer, refuse_seed
from pymc_deer.status import invalid_option
from pymc_deer.variables import continuous_variables, given_model


@dataclass(frozen=True)
class SweepTrace:
    """n transitions of a chain solved in S sweeps, in whitened coordinates.

    Attributes
    ----------
    exact
        States of the sequential chain on the same noise, shape (n, D).
    states
        What is known before the first sweep and after each, shape (S + 1, n, D): the committed
        states, then the window's guesses, then NaN.
    residuals
        How far the guess of each step was from a transition of the guess before it, largest
        coordinate, as each sweep found it, shape (S, n); NaN outside the sweep's window.
    committed
        Transitions committed before the first sweep and after each, shape (S + 1,).
    window
        W, transitions solved at once.
    tol
        Bound on summed residuals up to which transitions are committed.
    acceptance_rate
        Mean acceptance probability of the transitions.
    """

    exact: np.ndarray
    states: np.ndarray
    residuals: np.ndarray
    committed: np.ndarray
    window: int
    tol: float
    acceptance_rate: float

    @property
    def n_transitions(self) -> int:
        """n, the length of the chain."""
        return len(self.exact)

    @property
    def n_sweeps(self) -> int:
        """S, the sweeps that it took."""
        return len(self.residuals)

    @property
    def errors(self) -> np.ndarray:
        """How far `states` are from `exact`, largest coordinate, shape (S + 1, n)."""
        return np.abs(self.states - self.exact).max(axis=-1)


@as_numpy_does()
def trace_sweeps(
    n: int = 256,
    *,
    kernel: str = "mala",
    model: Model | None = None,
    random_seed: Any = 0,
    **deer_options: Any,
) -> SweepTrace:
    """Solve n transitions in windows, and keep what every sweep made of them.

    A pilot chain warms up as one of :class:`DeerMALA` does with these options, the same in every
    call but for the options, and the transitions go on from where it ends. Sweeps are run one by
    one from Python: for pictures, not for draws.

    Parameters
    ----------
    n
        Number of transitions; 256 by default.
    kernel
        ``"mala"``, the default, or ``"hmc"``.
    model
        The model; from the context by default. Discrete variables keep their initial values.
    random_seed
        Of the transitions; 0 by default.
    **deer_options
        Arguments of :class:`DeerMALA` or :class:`DeerHMC`. Left open, `window` is n, `jacobian`
        ``"secant"``, `curvature` 1.5 and `backend` JAX. `noise` is the host's, and no sweep is
        refused, whatever `max_sweeps` says.

    Returns
    -------
    SweepTrace
        For :func:`pymc_deer.plots.plot_sweeps` and :func:`pymc_deer.plots.plot_guesses`.

    Raises
    ------
    OptionError, ModelError, BackendError, StartError, ForkError
        As :class:`DeerMALA` and its chains.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_deer import trace_sweeps
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     trace = trace_sweeps(100, window=50)
    >>> trace.residuals.shape == (trace.n_sweeps, 100)
    True
    >>> bool(trace.errors[-1].max() < 1e-5)
    True
    """
    if not is_integer(n, 1):
        raise invalid_option("trace_sweeps", "n", n, "an integer of at least 1")
    n = int(n)
    if not isinstance(kernel, str) or kernel not in OPTIONS:
        raise invalid_option("trace_sweeps", "kernel", kernel, f"one of {tuple(OPTIONS)}")
    refuse_seed("trace_sweeps", "random_seed", random_seed)
    asked = OPTIONS[kernel].from_arguments(deer_options)
    options = replace(asked, window=1, noise="host")
    context: Any = given_model(model, "trace_sweeps")
    chosen = continuous_variables(context, "trace_sweeps")
    density = build_density(context, chosen, options.hvp)
    # In one process, and for a few sweeps: what compiles in seconds.
    backend = resolve_backend("jax" if options.backend == "auto" else options.backend)
    alone = prepare(options, density, context, backend, alone=True).solver
    with alone.one_blas_thread():
        pilot = warmed_up(options, alone, context, density.initial_point)
    window = n if asked.window == "auto" else min(n, asked.window)
    solver = alone.with_plan(replace(alone.plan, window=window))
    streams = Streams.spawn(np.random.default_rng(random_seed))
    with solver.one_blas_thread():
        # The last windows reach behind the end.
        tape = streams.tape(n + window, density.size, pilot.tuning)
        request = TapedRequest(pilot.z, tape, pilot.tuning, streams.probes)
        exact = alone.run(request, pilot.params).first(n)
        kept = TracedSolve(solver, request, pilot.params).traced(n)
    rate = float(acceptance_rates(exact.log_alpha).mean())
    return SweepTrace(exact.z, *kept, window, solver.plan.tol, rate)


@dataclass(frozen=True)
class TracedSolve:
    """A chain to solve sweep by sweep: its solver, and what it is asked for."""

    solver: Solver
    request: TapedRequest
    params: Sequence[np.ndarray]

    def traced(self, n: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """States, residuals and numbers of committed steps of the first n transitions."""
        vectorized, mapped = (partial(self.solver.sweep_alone, form) for form in BATCHINGS)
        try:
            return self._traced(vectorized(), n)
        except Exception:  # noqa: BLE001 - as in the compiled loops, the other form may work
            return self._traced(mapped(), n)

    def _traced(
        self, sweep: Callable[..., Any], n: int
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        solver, window = self.solver, self.solver.plan.window
        size, dtype = solver.density.size, solver.density.dtype
        tape = Noise.of(self.request.tape, self.request.tuning.step_size, dtype)
        start, constant = self.request.start.astype(dtype), self._constant
        known = np.full((n + window, size), np.nan, dtype)
        known[:window] = start
        ahead, bend = known_ahead(start, tape, self.request.tuning)
        known[: min(window, len(ahead))] = ahead[:window]
        memory = np.full((n + window, solver.spec.memory_size(size)), np.nan, dtype)
        states, residuals, committed = [known], [], [0]
        while (done := committed[-1]) < n:
            rows = slice(done, done + window)
            guess, noise = known[rows], tape.part(rows)
            arguments = (noise.xi, noise.log_u, self._probes(), noise.step_sizes, noise.n_leapfrog)
            arguments = (*arguments, bend[rows])
            solved, memory[rows], found, *_, k = sweep(
                guess, memory[rows], start, *arguments, *constant
            )
            residuals.append(np.full(n + window, np.nan))
            residuals[-1][rows] = np.abs(found - guess).max(axis=1)
            committed.append(min(n, done + int(k)))
            start, known = found[k - 1], known.copy()
            known[rows] = np.concatenate([found[:k], solved[k:]])
            # Slide: the guess for steps not seen before is the forecast, or where the window ends.
            unseen = slice(rows.stop, done + int(k) + window)
            known[unseen] = ahead[unseen] if len(ahead) else solved[-1]
            states.append(known)
        return np.stack(states)[:, :n], np.stack(residuals)[:, :n], np.array(committed)

    @property
    def _constant(self) -> tuple[np.ndarray, ...]:
        """Arguments that all sweeps have in common."""
        dtype, tuning = self.solver.density.dtype, self.request.tuning
        bounds = (tuning.curvature, self.solver.plan.tol)
        block = np.asarray(self.solver.plan.window)
        arrays = (*tuning.metric.astype(dtype).arrays, *self.params)
        return (*(np.asarray(value, dtype) for value in bounds), block, *arrays)

    def _probes(self) -> np.ndarray:
        density, spec = self.solver.density, self.solver.spec
        if spec.rule == "exact":
            return unit_probes(density.size, density.dtype)
        shape = (self.solver.plan.window, spec.n_probes(density.size), density.size)
        return self.request.probe_rng.choice([-1.0, 1.0], shape).astype(density.dtype)
