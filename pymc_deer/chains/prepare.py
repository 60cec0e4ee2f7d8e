"""From options and a density to a compiled, calibrated solver and an untouched warm-up."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from pymc.model import Model

from pymc_deer.backends import make_solver, resolve_noise, runs_on_gpu
from pymc_deer.backends.base import Solver
from pymc_deer.backends.blas import Blas
from pymc_deer.chains.calibration import (
    Calibration,
    choose_curvature,
    choose_window,
    rule_windows_out,
)
from pymc_deer.chains.plan import affordable_window, in_windows, window_plan
from pymc_deer.chains.refusal import refuse_data, refuse_dense, refuse_hvp, refuse_improper
from pymc_deer.chains.trials import (
    DEFAULT_CURVATURE,
    DEFAULT_RULE,
    PILOT_DRAWS,
    UNKNOWN,
    Foreseen,
    Pilot,
    Trials,
    run_pilot,
)
from pymc_deer.density import Density
from pymc_deer.jacobian import Rule
from pymc_deer.layout import Point
from pymc_deer.metric import MetricKind, identity_metric
from pymc_deer.options import Auto, BackendName, Options
from pymc_deer.start import find_starts
from pymc_deer.status import StartError, shrunk_window, warn_caller
from pymc_deer.sweep import SweepSpec
from pymc_deer.warmup.adaptation import Warmup
from pymc_deer.warmup.start import start_warmup

_DENSE_LIMIT = 100
"""Largest dimension for which ``metric="auto"`` is dense: whitening decides how well MALA mixes,
and up to here a D x D product costs little beside that."""

_SMALL = 32
"""Dimension up to which it is dense for HMC too. Longer paths need whitening less, so beyond it
a D x D product must be no more work than the gradient, by the numbers that this reads."""

_FEW_CHAINS = 64
"""Chains whose batch takes a pilot chain less time than it takes to compile a step of one."""

_DEFAULT_TOL = {"float64": 1e-6, "float32": 1e-4}


@dataclass(frozen=True)
class Prepared:
    """A solver, how its windows were chosen, and the user's metric as a factor, if there is one."""

    solver: Solver
    calibration: Calibration
    factor: np.ndarray | None


def metric_kind(options: Options, density: Density) -> MetricKind:
    """The kind of metric the options mean.

    ``auto`` is ``dense`` where that is cheap, otherwise ``low_rank``, whose rank is the number of
    eigenvalues that warm-up finds to need it: 0 makes it ``diag``.
    """
    metric = options.metric
    if not isinstance(metric, str):
        return "diag" if np.ndim(metric) == 1 else "dense"
    if metric == "auto":
        return "dense" if _dense_is_cheap(options, density) else "low_rank"
    return metric


def _dense_is_cheap(options: Options, density: Density) -> bool:
    if density.size > _DENSE_LIMIT or options.kernel == "mala":
        return density.size <= _DENSE_LIMIT
    return density.size <= _SMALL or density.size**2 <= density.n_numbers


def new_warmup(
    options: Options, density: Density, n_tune: int, curvature: float, factor: np.ndarray | None
) -> Warmup:
    """Adaptation of a chain that has not begun, with the user's metric as a factor, if any."""
    return start_warmup(
        density.size,
        n_tune,
        kind=metric_kind(options, density),
        factor=factor,
        step_size=options.step_size,
        target=options.target,
        curvature=curvature,
        fixed_steps=None if options.steps_per_draw == "auto" else options.steps_per_draw,
        jitter=options.step_size_jitter,
        small_steps=options.small_steps,
        path=options.path,
        warmup_steps_per_draw=options.warmup_steps_per_draw,
        thinning=options.thinning,
        white=options.white,
        angles=density.layout.columns_of_angles,
    )


def prepare(
    options: Options,
    density: Density,
    model: Model,
    backend: BackendName,
    *,
    alone: bool,
    run: Foreseen = UNKNOWN,
    calibration: Calibration | None = None,
) -> Prepared:
    """Compile the solver, so that errors come early, and choose what the options left open.

    Parameters
    ----------
    alone
        Whether no other step method moves anything between draws.
    run
        What is known of the run that it is for.
    calibration
        What an earlier preparation chose, in another process.
    """
    # With the threads that every process has: what follows from a metric rounds by their number.
    with Blas().one_thread():
        factor = options.metric_factor(density.size)
    kind = metric_kind(options, density)
    rules: Sequence[Rule] = () if options.jacobian == "auto" else (options.jacobian,)
    rule = rules[0] if rules else DEFAULT_RULE
    noise = resolve_noise(options, backend)
    spec = SweepSpec(kind, rule, options.probes, options.kernel, noise)
    tol = options.tol or _DEFAULT_TOL[density.dtype]
    plan = window_plan(1, options.max_sweeps, tol, density)
    solver = make_solver(backend, density, spec, plan).for_chains(run.n_chains)
    solver = in_windows(solver, 1, options.max_sweeps)
    point = density.initial_point
    if is_first := calibration is None:
        refuse_dense(options, solver)
        refuse_hvp(options, density)
        options = _within_memory(options, solver)
    calibration = calibration or _as_asked(options, alone=alone)
    # What chains in worker processes have: windows that pay for all of them must pay so.
    with solver.one_blas_thread():
        if calibration is None:
            device = "gpu" if runs_on_gpu(backend) else "cpu"
            allowed = rules or solver.trial_rules
            calibration = _measured(options, solver, model, point, allowed, device, run.n_draws)
            # Of all widths that were tried.
            solver.spare_nothing()
        solver = solver.with_rule(calibration.jacobian)
        solver = in_windows(solver, calibration.window, calibration.max_sweeps)
        x, params = density.layout.ravel(point, density.dtype), density.param_values(point)
        logp, _ = solver.evaluate(x, identity_metric(kind, density.size), params)
        if is_first and not np.isfinite(logp):
            refuse_data(model, point)
        elif is_first:
            refuse_improper(solver, x, model, params)
    return Prepared(solver, calibration, factor)


def _within_memory(options: Options, solver: Solver) -> Options:
    """The options with a window that fits in memory, which the user is told of."""
    if options.window == "auto":
        return options
    asked, n_chains = options.window, solver.n_together
    window = affordable_window(solver, asked, n_chains)
    if window < asked:
        warn_caller(shrunk_window(asked, window, n_chains))
    return replace(options, window=window)


def _as_asked(options: Options, *, alone: bool) -> Calibration | None:
    """The calibration that the options leave no choice about; None if they do."""
    window, rule, curvature = options.window, options.jacobian, options.curvature
    reason = "As asked."
    if window == "auto" and not alone:
        window = 1
        reason = "Other step methods move between the draws: stretches are too short for windows."
    if window == "auto" or (window > 1 and are_sweeps_open(rule, curvature)):
        return None
    rule = DEFAULT_RULE if rule == "auto" else rule
    return Calibration(window, rule, curvature or DEFAULT_CURVATURE, options.max_sweeps, reason)


def are_sweeps_open(rule: Rule | Auto, curvature: float | None) -> bool:
    """Whether how windows are swept, whatever their width, is left to a pilot chain."""
    return rule == "auto" or (rule != "exact" and curvature is None)


def warmed_up(options: Options, solver: Solver, model: Model, point: Point) -> Pilot:
    """A pilot chain to measure on.

    Raises
    ------
    StartError
        If no chain can start near the model's initial point.
    """
    if solver.n_together > _FEW_CHAINS:
        solver = solver.for_chains(1)
    params = solver.density.param_values(point)
    rng = np.random.default_rng(0)
    [start] = find_starts(model, solver, [point], [()], params, [rng])
    curvature = options.curvature or DEFAULT_CURVATURE
    density = solver.density
    factor = options.metric_factor(density.size)
    warmup = new_warmup(options, density, PILOT_DRAWS, curvature, factor)
    return run_pilot(solver, start, warmup, params)


def _measured(
    options: Options,
    solver: Solver,
    model: Model,
    point: Point,
    rules: Sequence[Rule],
    device: str,
    n_draws: int | None,
) -> Calibration:
    """What a pilot chain finds fastest for a run of so many draws."""
    params = solver.density.param_values(point)
    curvature = options.curvature or DEFAULT_CURVATURE
    as_given = {"jacobian": rules[0], "curvature": curvature, "max_sweeps": options.max_sweeps}
    if options.window == "auto" and (ruled_out := rule_windows_out(solver, params)):
        return replace(ruled_out, **as_given)
    try:
        pilot = warmed_up(options, solver, model, point)
    except StartError as error:
        # The chains may be given better starting values; if not, they will say so.
        window = 1 if options.window == "auto" else options.window
        reason = f"No pilot chain could start. {error}"
        return Calibration(window, reason=reason, **as_given)
    curvatures = None if options.curvature is None else (options.curvature,)
    trials = Trials(solver, pilot, curvatures, n_draws)
    if options.window == "auto":
        found = choose_window(trials, rules, device, options.max_sweeps)
        # Nothing was found out of what only windows have.
        return replace(found, **as_given) if found.window == 1 else found
    return choose_curvature(trials, options.window, rules, options.max_sweeps)
