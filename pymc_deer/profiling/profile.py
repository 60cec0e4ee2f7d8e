"""``pymc_deer.profile``: what a model costs on each backend, step by step and in windows."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import numpy as np
from pymc.model import Model

from pymc_deer.backends import gpu_name, resolve_backend
from pymc_deer.chains.prepare import metric_kind, prepare, warmed_up
from pymc_deer.chains.trials import DEFAULT_RULE, Pilot, Trials
from pymc_deer.density import Density, build_density
from pymc_deer.floating_point import as_numpy_does
from pymc_deer.options import BackendName, Options, profiled_backends, profiled_windows
from pymc_deer.profiling.cost_shares import count_constants, count_gradient, libraries
from pymc_deer.profiling.recommendation import CPU, WindowCost
from pymc_deer.profiling.report import Profile
from pymc_deer.status import BackendError, ForkError
from pymc_deer.variables import continuous_variables, given_model

_BACKEND_SECONDS = 20.0
"""Time for the measurements on one backend, compilation apart, after which no width is begun."""

_RUN_SECONDS = 2.0
"""Time that windows of one width may take to solve the pilot's transitions, at least."""

_LEAST_SWEEPS = 8
"""Sweeps that a window is given in any case."""


@as_numpy_does()
def profile(
    model: Model | None = None,
    *,
    windows: Sequence[int] = (1, 16, 64, 256),
    backends: Sequence[Literal["numba", "jax"]] | None = None,
) -> Profile:
    """What runs where, what it costs, and whether a GPU or a window pays.

    Measured, for Numba on one CPU thread and for JAX on its default device: the time of a gradient
    alone and in sweeps of each width, the sweeps that 1000 transitions take, and compilation. The
    transitions are those of a pilot chain that warms up as a chain of `DeerMALA` with its defaults
    does, the same for all backends. Beyond compilation, it takes seconds for each backend.

    Predicted: transitions per second, those of the pilot as if a chain went on like it, and the
    memory of a window, from the arrays that it holds. Counted in the model's graph: the shares of
    matrix products, elementwise work and indexing.

    Parameters
    ----------
    model
        The model; from the context by default. Only its continuous variables are moved.
    windows
        Widths to measure, from 1 to 1048576; 1, 16, 64 and 256 by default. Width 1, the chain step
        by step, is always among them: all others are judged by it.
    backends
        Some of ``"numba"`` and ``"jax"``; both by default. One that is not installed or cannot
        compile the model stays in the report, with the reason.

    Returns
    -------
    Profile
        Prints itself, shows itself in a notebook, has `to_dataframe()` and `recommendation`.

    Raises
    ------
    OptionError
        For a wrong `model`, `windows` or `backends`.
    ModelError, StartError
        As :class:`DeerMALA` and its chains: a model that no backend could sample.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_deer
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     report = pymc_deer.profile(windows=(1,), backends=["jax"])
    >>> report.n_dim
    1
    >>> report.to_dataframe()["window"].tolist()
    [1]
    """
    widths, names = profiled_windows(windows), profiled_backends(backends)
    context: Any = given_model(model, "profile")
    density = build_density(context, continuous_variables(context, "profile"))
    n_constants, params = count_constants(density), density.param_values(context.initial_point())
    bench = _Bench(context, density, widths)
    costs = [cost for name in names for cost in bench.measure(name)]
    devices: dict[BackendName, str] = {c.backend: c.device for c in costs if c.device}
    return Profile(
        n_dim=density.size,
        dtype=density.dtype,
        n_data=n_constants + sum(np.size(p) for p in params),
        data_bytes=sum(np.asarray(p).nbytes for p in params)
        + n_constants * np.dtype(density.dtype).itemsize,
        metric=metric_kind(Options(), density),
        work=count_gradient(density),
        libraries={n: libraries(n, device) for n, device in devices.items()},
        costs=tuple(costs),
        discrete=tuple(v.name for v in context.value_vars if v.name not in density.layout.names),
    )


class _Bench:
    """Measures one backend after the other on one pilot chain, that of the first that runs."""

    def __init__(self, model: Model, density: Density, widths: Sequence[int]) -> None:
        self.model, self.density, self.widths = model, density, widths
        self.pilot: Pilot | None = None

    def measure(self, name: BackendName) -> list[WindowCost]:
        """Costs of all widths."""
        device, begun = "", time.perf_counter()
        try:
            resolve_backend(name)
            device = gpu_name(name) or CPU
            options = Options(backend=name, window=1)
            solver = prepare(options, self.density, self.model, name, alone=True).solver
        except (BackendError, ForkError) as error:
            return [WindowCost(name, device, width, note=str(error)) for width in self.widths]
        compiling, state_bytes = time.perf_counter() - begun, solver.bytes_per_state()
        costs = [WindowCost(name, device, w, memory_bytes=w * state_bytes) for w in self.widths]
        with solver.one_blas_thread():
            if self.pilot is None:
                point = self.model.initial_point()
                self.pilot = warmed_up(options, solver, self.model, point)
            trials = Trials(solver, self.pilot)
            costs[0] = step_by_step_cost(costs[0], trials, compiling)
            end = time.perf_counter() + _BACKEND_SECONDS
            for i in range(1, len(costs)):
                if time.perf_counter() > end:
                    costs[i] = replace(costs[i], note="not tried, the time for it was over.")
                    continue
                costs[i] = window_cost(costs[i], trials)
                end += np.nan_to_num(costs[i].compile_seconds)
        return costs


def step_by_step_cost(cost: WindowCost, trials: Trials, compile_seconds: float) -> WindowCost:
    """The cost of width 1 with what was measured."""
    seconds = trials.sequential_seconds
    return replace(
        cost,
        gradient_us=1e6 * seconds,
        sweeps_per_1000=0.0,
        transitions_per_second=1 / seconds,
        compile_seconds=compile_seconds,
    )


def window_cost(cost: WindowCost, trials: Trials) -> WindowCost:
    """The cost of a width above 1 with what was measured."""
    width, single, begun = cost.window, trials.sequential_seconds, time.perf_counter()
    if not trials.fits(width):
        return replace(cost, note="not tried, too much for the memory that is free or too slow.")
    try:
        trials.warm_up(width, DEFAULT_RULE)
    except BackendError as error:
        return replace(cost, note=str(error))
    compiling = time.perf_counter() - begun
    sweep = trials.sweep_seconds(width, DEFAULT_RULE)
    # As many sweeps as there is time for: a window that does not pay should say how far it is.
    n_windows = max(1.0, trials.n_transitions / width)
    allowed = max(1.5 * width * single, _RUN_SECONDS / n_windows) / sweep
    max_sweeps = int(np.clip(allowed, _LEAST_SWEEPS, width))
    trial = trials.run(width, DEFAULT_RULE, max_sweeps)
    if found := np.isfinite(trial.microseconds):
        # Nearer to a chain's than three sweeps in a call of their own.
        sweep = 1e-3 * trial.microseconds / trial.sweeps_per_1000
        cost = replace(
            cost,
            sweeps_per_1000=trial.sweeps_per_1000,
            transitions_per_second=1e6 / trial.microseconds,
        )
    least = 1000 * max_sweeps / width
    return replace(
        cost,
        gradient_us=1e6 * sweep / (2 * width),
        pays_below=1000 * single / sweep,
        compile_seconds=compiling,
        note="" if found else f"more than {least:.0f} sweeps for 1000 transitions, given up.",
    )
