"""A solve kept sweep by sweep, to look at: what each sweep guessed, and by how much it was wrong.

The compiled loops keep nothing of a sweep but what it commits. Here the sweep's graph, the one that
they are compiled around, is called from Python by PyTensor's own linker, window after window.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytensor
from pymc.model import Model, modelcontext

from pymc_deer.adaptation import acceptance_rates
from pymc_deer.backends import resolve_backend
from pymc_deer.backends.base import Run
from pymc_deer.backends.trajectory import Noise
from pymc_deer.batch import BATCHINGS, Batching
from pymc_deer.calibration import Pilot
from pymc_deer.density import Density, build_density, continuous_variables
from pymc_deer.jacobian import unit_probes
from pymc_deer.options import HMCOptions, Options, is_integer
from pymc_deer.prepare import prepare, warmed_up
from pymc_deer.status import invalid_option
from pymc_deer.stretch import Streams
from pymc_deer.sweep import SweepSpec, build_sweep

_OPTIONS: dict[str, type[Options]] = {kind.kernel: kind for kind in (Options, HMCOptions)}


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
        Number of transitions.
    kernel
        ``"mala"`` or ``"hmc"``.
    model
        The model; from the context by default. Discrete variables keep their initial values.
    random_seed
        Of the transitions.
    **deer_options
        Arguments of :class:`DeerMALA` or :class:`DeerHMC`. Left open, `window` is n, `jacobian`
        ``"secant"`` and `curvature` 1.5. `noise` is the host's, and no sweep is refused, whatever
        `max_sweeps` says.

    Returns
    -------
    SweepTrace
        For :func:`pymc_deer.plots.plot_sweeps` and :func:`pymc_deer.plots.plot_guesses`.

    Raises
    ------
    OptionError, ModelError, BackendError, StartError
        As :class:`DeerMALA` and its chains.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_deer import trace_sweeps
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     trace = trace_sweeps(100, window=50, backend="jax")
    >>> trace.residuals.shape == (trace.n_sweeps, 100)
    True
    >>> bool(trace.errors[-1].max() < 1e-5)
    True
    """
    if not is_integer(n, 1):
        raise invalid_option("trace_sweeps", "n", n, "an integer of at least 1")
    if kernel not in _OPTIONS:
        raise invalid_option("trace_sweeps", "kernel", kernel, f"one of {tuple(_OPTIONS)}")
    asked = _OPTIONS[kernel].from_arguments(deer_options)
    options = replace(asked, window=1, noise="host")
    context: Any = modelcontext(model)
    chosen = continuous_variables(context, "trace_sweeps")
    density = build_density(context, chosen, options.hvp)
    backend = resolve_backend(options.backend)
    solver = prepare(options, density, context, backend, alone=True).solver
    with solver.one_blas_thread():
        pilot = warmed_up(options, solver, context, context.initial_point())
    streams = Streams.spawn(np.random.default_rng(random_seed))
    tape = streams.tape(n, density.size, pilot.tuning)
    exact = solver.run(Run(pilot.z, tape, pilot.tuning, streams.probes), pilot.params)
    noise = Noise.of(tape, pilot.tuning.step_size, density.dtype)
    window = n if asked.window == "auto" else min(n, int(asked.window))
    solve = TracedSolve(density, solver.spec, pilot, noise, window, solver.plan.tol)
    rate = float(acceptance_rates(exact.log_alpha).mean())
    return SweepTrace(exact.z, *solve.traced(streams.probes), window, solve.tol, rate)


@dataclass(frozen=True)
class TracedSolve:
    """A chain to solve sweep by sweep, from where its pilot ended."""

    density: Density
    spec: SweepSpec
    pilot: Pilot
    noise: Noise
    window: int
    tol: float

    def traced(self, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """All that is kept of the sweeps: states, residuals, and numbers of committed steps."""
        # Nothing is compiled, neither the sweep nor what its Ops hold, which happens at first call.
        with pytensor.config.change_flags(mode="FAST_COMPILE", cxx=""):
            try:
                return self._traced(_compiled(self.density, self.spec, BATCHINGS[0]), rng)
            except Exception:  # noqa: BLE001 - as on backends, the other form may work
                return self._traced(_compiled(self.density, self.spec, BATCHINGS[1]), rng)

    def _traced(
        self, sweep: Callable[..., Any], rng: np.random.Generator
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        n, size, dtype = len(self.noise.log_u), self.density.size, self.density.dtype
        start = self.pilot.z.astype(dtype)
        known = np.full((n, size), np.nan, dtype)
        known[: self.window] = start
        memory = np.full((n, self.spec.memory_size(size)), np.nan, dtype)
        states, residuals, committed = [known], [], [0]
        while (done := committed[-1]) < n:
            window = slice(done, min(n, done + self.window))
            guess, noise = known[window], self.noise.part(window)
            arguments = (noise.xi, noise.log_u, self._probes(len(guess), rng), *noise[2:])
            solved, memory[window], found, *_, k = sweep(
                guess, memory[window], start, *arguments, *self._constant
            )
            residuals.append(np.full(n, np.nan))
            residuals[-1][window] = np.abs(found - guess).max(axis=1)
            committed.append(done + int(k))
            start, known = found[k - 1], known.copy()
            known[window] = np.concatenate([found[:k], solved[k:]])
            # Slide: the guess for steps not seen before is where the window ends now.
            known[window.stop : committed[-1] + self.window] = solved[-1]
            states.append(known)
        return np.stack(states), np.stack(residuals), np.array(committed)

    @property
    def _constant(self) -> tuple[np.ndarray, ...]:
        """Arguments that all sweeps have in common."""
        dtype, tuning = self.density.dtype, self.pilot.tuning
        bounds = (np.asarray(value, dtype) for value in (tuning.curvature, self.tol))
        metric = tuning.metric.astype(dtype).arrays
        return (*bounds, np.zeros(2, int), *metric, *self.pilot.params)

    def _probes(self, width: int, rng: np.random.Generator) -> np.ndarray:
        size, dtype = self.density.size, self.density.dtype
        if self.spec.rule == "exact":
            return unit_probes(size, dtype)
        shape = (width, self.spec.n_probes(size), size)
        return rng.choice([-1.0, 1.0], shape).astype(dtype)


def _compiled(density: Density, spec: SweepSpec, batching: Batching) -> Callable[..., Any]:
    program = build_sweep(density, spec, batching)
    return pytensor.function(program.inputs, program.outputs, on_unused_input="ignore")
