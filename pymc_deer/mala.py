"""DeerMALA: one leapfrog step a transition."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from pymc.model import Model
from pymc.step_methods.state import dataclass_state

from pymc_deer.jacobian import Rule
from pymc_deer.metric import MetricKind
from pymc_deer.noise import NoiseSource
from pymc_deer.options import PYMC_ARGUMENTS, Auto, BackendName, GivenMetric, Options
from pymc_deer.step import DeerState, DeerStep


@dataclass_state
class MALAState(DeerState):
    """What PyMC stores and restores of a :class:`DeerMALA`."""


class DeerMALA(DeerStep):
    r"""Metropolis-adjusted Langevin steps, solved in parallel windows of the chain.

    With its random numbers drawn in advance, the chain is a recursion; DEER solves W of its steps
    at once by Newton sweeps, each one batch of W transitions and one scan. The states are those of
    the sequential chain on the same random numbers, up to `tol`, whatever the window, the rule and
    the backend.

    Parameters
    ----------
    vars
        Variables to sample; all continuous ones of the model by default.
    backend
        ``"numba"``, ``"jax"``, or ``"auto"``, the default: JAX where it has a GPU, otherwise Numba,
        which runs in the processes that `pm.sample` forks. (`pymc_deer.sample`, which has one
        process, takes JAX on a CPU too, unless the model indexes much data or factors large
        matrices, or JAX cannot run it.)
    step_size
        Leapfrog step size in whitened units (the Langevin drift step is its square over 2).
        Adapted in warm-up by default.
    step_size_jitter
        Share by which the step size of each transition is varied, uniformly either way; 0 by
        default: MALA's single leapfrog step resonates with nothing.
    small_steps
        Share of the transitions that take a smaller step size instead, down to a tenth (uniform
        on a log scale), with which a chain gets out of places too narrow for the tuned one. 0 by
        default.
    target_accept
        Acceptance rate that warm-up aims at. ``"auto"``, the default, is 0.7, above the optimum of
        sequential MALA, 0.574, because sweeps converge faster at smaller steps.
    metric
        Whitening, adapted in warm-up: ``"diag"``, ``"dense"``, ``"low_rank"`` (scales and the at
        most 32 directions that they cannot whiten), or ``"auto"``, the default: dense up to 100
        dimensions, low rank beyond. An array fixes it: variances (D,) or a covariance matrix (D, D)
        of the raveled unconstrained vector. (Only the centre is then learnt.)
    jacobian
        Rule of the sweeps: ``"preconditioned"`` (one curvature for all) or ``"secant"`` (one for
        each coordinate, from successive sweeps), neither with Hessian-vector products;
        ``"stochastic"`` (one product a probe) or ``"exact"`` (D products, for checks). ``"auto"``,
        the default, is ``"secant"``, or ``"stochastic"`` where a pilot chain on JAX finds it
        faster; Numba would take half a minute to compile it.
    probes
        Rademacher probes of the ``stochastic`` rule; 1 by default.
    curvature
        Bound c on the whitened curvature that the rules assume; sweeps converge where the true one
        is below 2 c; ``secant`` assumes it where nothing has moved yet, and is drawn to it where
        other coordinates moved more. By default the one that takes a pilot chain the fewest sweeps,
        and 1.5 where nothing is measured: step by step, and of a given `window` with ``"exact"``.
    window
        Transitions solved at once, W; 1 is plain sequential MALA. ``"auto"``, the default, is 1 on
        a CPU, and on a GPU the fastest on a pilot chain, but 1 where the draws of
        `pymc_deer.sample` are over before windows are compiled, and beside other step methods;
        `step.calibration` says why. Where the sweeps of a window run out, the chain goes on with
        narrower ones, and says so.
    steps_per_draw
        MALA transitions for each recorded draw. ``"auto"``, the default, takes 10 in warm-up and
        then, from the autocorrelation seen there, as many as make a draw of the slowest coordinate
        worth about half an independent one (at most 64).
    tol
        Tolerance, in whitened units, of the states from which the next ones are committed: 1e-6 in
        float64 and 1e-4 in float32 by default.
    max_sweeps
        Sweeps allowed for every W transitions; the rest then runs step by step and is counted in
        the statistic ``fallback``. By default W / 2 + 8, of narrow windows 3/4 W or 6, and always
        less than W: with few more transitions than sweeps, these no longer pay on any device; with
        ``window="auto"`` 1.5 times the sweeps at which the window would be no faster than single
        steps.
    noise
        Where the momenta of the tape are made. ``"host"``: NumPy's numbers, the same for all
        backends, devices and dtypes. ``"device"``: by JAX where the chain runs, from a key for each
        transition, so that millions of parameters neither fill the host's memory nor wait for it;
        a seed then gives other draws than on the host. ``"auto"``, the default, is the device
        where that is a GPU.
    hvp
        Callable ``(x, v) -> H v`` on symbolic vectors of shape (D,): the Hessian of logp at x times
        v, in place of automatic differentiation.
    model
        The model; from the context by default.
    rng
        Seed or generator, used only where `pm.sample` does not give one.
    initial_point
        Accepted for PyMC's sake; chains start where `pm.sample` says, jittered by U(-1, 1) in the
        variables that stand at the model's default.
    compile_kwargs
        Accepted for PyMC's sake and refused if not empty: choose with `backend`.
    blocked
        False makes one DeerMALA for each variable.

    Raises
    ------
    OptionError, ModelError, BackendError
        At construction, naming the argument, variable or package.
    StartError
        When a chain cannot start: logp or its gradient is not finite there, naming the terms, or a
        starting value has the wrong shape.
    ForkError
        In a forked process on the JAX backend.

    References
    ----------
    Zoltowski et al. (2025), "Parallelizing MCMC across the sequence length", arXiv:2508.18413.
    Lim et al. (2024), "Parallelizing non-linear sequential models over the sequence length",
    ICLR, arXiv:2309.12252.

    Examples
    --------
    >>> import pymc as pm
    >>> from pymc_deer import DeerMALA
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     idata = pm.sample(
    ...         step=DeerMALA(), chains=2, cores=1, random_seed=1, progressbar=False
    ...     )
    >>> idata.posterior["x"].sizes["draw"]
    1000
    """

    name = "deer_mala"
    _state_class = MALAState

    def __init__(
        self,
        vars: Any = None,
        *,
        backend: BackendName = "auto",
        step_size: float | None = None,
        step_size_jitter: float = 0.0,
        small_steps: float = 0.0,
        target_accept: float | Auto = "auto",
        metric: MetricKind | Auto | GivenMetric = "auto",
        jacobian: Rule | Auto = "auto",
        probes: int = 1,
        curvature: float | None = None,
        window: int | Auto = "auto",
        steps_per_draw: int | Auto = "auto",
        tol: float | None = None,
        max_sweeps: int | None = None,
        noise: NoiseSource | Auto = "auto",
        hvp: Callable[..., Any] | None = None,
        model: Model | None = None,
        rng: Any = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        **unknown: Any,
    ) -> None:
        options = Options.from_arguments(
            {
                "backend": backend,
                "step_size": step_size,
                "step_size_jitter": step_size_jitter,
                "small_steps": small_steps,
                "target_accept": target_accept,
                "metric": metric,
                "jacobian": jacobian,
                "probes": probes,
                "curvature": curvature,
                "window": window,
                "steps_per_draw": steps_per_draw,
                "tol": tol,
                "max_sweeps": max_sweeps,
                "noise": noise,
                "hvp": hvp,
                **unknown,
            },
            also=PYMC_ARGUMENTS,
        )
        super().__init__(
            vars, options, model=model, rng=rng, compile_kwargs=compile_kwargs, blocked=blocked
        )
