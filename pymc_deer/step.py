"""DeerMALA: PyMC's step-method contract, and nothing else."""

import copy
import logging
from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any

import numpy as np
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator, get_value_vars_from_user_vars
from pymc.vartypes import continuous_types
from rich.progress import TextColumn
from rich.table import Column

from pymc_deer.backends import resolve_backend
from pymc_deer.backends.base import Solver
from pymc_deer.calibration import Calibration
from pymc_deer.chain import Chain, ChainRecord, Streams
from pymc_deer.density import Density, build_density
from pymc_deer.options import BackendName, Options
from pymc_deer.prepare import Prepared, new_warmup, prepare
from pymc_deer.start import find_start
from pymc_deer.stats import STATS_DTYPES_SHAPES
from pymc_deer.status import ModelError, OptionError

# A child of PyMC's logger: shown, and silenced, as PyMC's own messages are.
_log = logging.getLogger("pymc.deer")


@dataclass_state
class DeerMALAState(StepMethodState):
    """What PyMC stores and restores of a :class:`DeerMALA`."""

    tune: bool
    record: ChainRecord | None
    fresh: bool


class DeerMALA(BlockedStep):
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
        ``"numba"``, ``"jax"``, or ``"auto"``: JAX where it has a GPU, otherwise Numba.
    step_size
        Leapfrog step size in whitened units (the Langevin drift step is its square over 2).
        Adapted in warm-up by default.
    step_size_jitter
        Share by which the step size of each transition is varied, uniformly either way; 0 by
        default: MALA's single leapfrog step resonates with nothing.
    target_accept
        Acceptance rate that warm-up aims at. The default, 0.7, lies above the optimum of
        sequential MALA, 0.574, because sweeps converge faster at smaller steps.
    metric
        Whitening, adapted in warm-up: ``"diag"``, ``"dense"``, ``"low_rank"`` (scales and the at
        most 32 directions that they cannot whiten), or ``"auto"``: dense up to 100 dimensions, low
        rank beyond. An array fixes it: variances (D,) or a covariance matrix (D, D) of the raveled
        unconstrained vector.
    jacobian
        Rule of the sweeps: ``"preconditioned"`` (one curvature for all) or ``"secant"`` (one for
        each coordinate, from successive sweeps), neither with Hessian-vector products;
        ``"stochastic"`` (one product a probe) or ``"exact"`` (D products, for checks). ``"auto"``
        is ``"secant"``, or ``"stochastic"`` where a pilot chain on JAX finds it faster; Numba would
        take half a minute to compile it.
    probes
        Rademacher probes of the ``stochastic`` rule.
    curvature
        Bound c on the whitened curvature that the rules assume; sweeps converge where the true one
        is below 2 c; ``secant`` assumes it where nothing has moved yet. By default the one that
        takes a pilot chain the fewest sweeps.
    window
        Transitions solved at once, W; 1 is plain sequential MALA. ``"auto"`` is the fastest on a
        pilot chain, `step.calibration` says why: often 1 on a few cores, hundreds to thousands on
        a GPU. Where the sweeps of a window run out, the chain goes on with narrower ones, and says
        so.
    steps_per_draw
        MALA transitions for each recorded draw. ``"auto"`` takes 10 in warm-up and then, from the
        autocorrelation seen there, as many as make a draw of the slowest coordinate worth about
        half an independent one (at most 64).
    tol
        Tolerance, in whitened units, of the states from which the next ones are committed: 1e-6 in
        float64 and 1e-4 in float32 by default.
    max_sweeps
        Sweeps allowed for every W transitions; the rest then runs step by step and is counted in
        the statistic ``fallback``. By default W / 2 + 8, below two transitions a sweep, where
        sweeps no longer pay on any device; with ``window="auto"`` 1.5 times the sweeps at which
        the window would be no faster than single steps.
    hvp
        Callable ``(x, v) -> H v`` on symbolic vectors of shape (D,): the Hessian of logp at x times
        v, in place of automatic differentiation.
    model
        The model; from the context by default.
    rng
        Seed or generator, used only where `pm.sample` does not give one.
    initial_point
        Accepted for PyMC's sake; chains start where `pm.sample` says, jittered by U(-1, 1) in the
        variables for which no ``initvals`` were given.
    compile_kwargs
        Accepted for PyMC's sake and refused if not empty: choose with `backend`.
    blocked
        False makes one DeerMALA for each variable.

    Raises
    ------
    OptionError, ModelError, BackendError
        At construction, naming the argument, variable or package.
    StartError
        When a chain starts where logp is not finite, naming the terms.
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
    default_blocked = True
    default_tune_steps = 1000
    stats_dtypes_shapes = STATS_DTYPES_SHAPES
    _state_class = DeerMALAState
    model: Any
    backend: BackendName

    def __init__(
        self,
        vars: Any = None,
        *,
        backend: BackendName = "auto",
        step_size: float | None = None,
        step_size_jitter: float = 0.0,
        target_accept: float = 0.7,
        metric: str | np.ndarray = "auto",
        jacobian: str = "auto",
        probes: int = 1,
        curvature: float | None = None,
        window: Any = "auto",
        steps_per_draw: Any = "auto",
        tol: float | None = None,
        max_sweeps: int | None = None,
        hvp: Callable[..., Any] | None = None,
        model: Model | None = None,
        rng: Any = None,
        initial_point: Mapping[str, np.ndarray] | None = None,
        compile_kwargs: dict[str, Any] | None = None,
        blocked: bool = True,
        **unknown: Any,
    ) -> None:
        self.options = Options.from_arguments(
            {
                "backend": backend,
                "step_size": step_size,
                "step_size_jitter": step_size_jitter,
                "target_accept": target_accept,
                "metric": metric,
                "jacobian": jacobian,
                "probes": probes,
                "curvature": curvature,
                "window": window,
                "steps_per_draw": steps_per_draw,
                "tol": tol,
                "max_sweeps": max_sweeps,
                "hvp": hvp,
                **unknown,
            },
            also=("vars", "model", "rng", "initial_point", "compile_kwargs", "blocked"),
        )
        if compile_kwargs:
            raise OptionError(
                "DeerMALA compiles for itself: write DeerMALA(backend='numba') or 'jax' in place "
                f"of compile_kwargs={compile_kwargs!r}."
            )
        self.model = modelcontext(model)
        self.backend = resolve_backend(backend)
        self.vars = _value_vars(vars, self.model)
        self.blocked = blocked
        self.rng = get_random_generator(rng)
        self.tune = True
        self.fresh = True
        self._chain: Chain | None = None
        self._calibration: Calibration | None = None
        self._compile()

    @cached_property
    def density(self) -> Density:
        """The log-density of this step's variables."""
        return build_density(self.model, self.vars, self.options.hvp)

    @cached_property
    def _prepared(self) -> Prepared:
        return prepare(
            self.options,
            self.density,
            self.model,
            self.backend,
            alone=self._alone,
            calibration=self._calibration,
        )

    @property
    def solver(self) -> Solver:
        """The compiled solver of this step's chains."""
        return self._prepared.solver

    @property
    def calibration(self) -> Calibration:
        """How windows are solved, and the measurements that decided it."""
        return self._prepared.calibration

    @property
    def attrs(self) -> dict[str, str | int | float]:
        """What was chosen, for ``idata.sample_stats.attrs.update(step.attrs)``.

        PyMC gives step methods no way to write attributes themselves.
        """
        choice = {"deer_backend": self.backend, "deer_metric": self.solver.spec.metric}
        return {**choice, **self.calibration.attrs}

    @property
    def batching(self) -> str | None:
        """How windows are evaluated: ``vectorized``, or ``mapped`` one by one; None if W = 1."""
        return self.solver.batching

    @property
    def record(self) -> ChainRecord | None:
        """Where the chain stands; None before it starts."""
        return None if self._chain is None else self._chain.record

    @record.setter
    def record(self, record: ChainRecord | None) -> None:
        self._chain = None if record is None else Chain(self.solver, record)

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin a chain: new random streams and an untouched warm-up."""
        super().setup_chain(rng, tune, draws)
        warmup = new_warmup(self.options, self.density.size, tune, self.calibration.curvature)
        nowhere = np.full(self.density.size, np.nan)
        self.record = ChainRecord(nowhere, Streams.spawn(self.rng), warmup, tune, draws)
        self.tune = tune > 0
        self.fresh = True

    def step(
        self, point: Mapping[str, np.ndarray]
    ) -> tuple[dict[str, np.ndarray], list[dict[str, Any]]]:
        """Move this step's variables by one recorded draw."""
        if self._chain is None:
            self.setup_chain(self.rng, 0, 1)
        chain = self._chain
        assert chain is not None
        params = self.density.param_values(point)
        chain.resume(params)
        x = self.density.layout.ravel(point, self.density.dtype)
        if self.fresh:
            rng = chain.record.streams.start
            chain.begin(find_start(self.model, self.solver, point, params, rng), params)
            self.fresh = False
        elif not np.array_equal(x, chain.position):
            chain.move(x)
        x, stats = chain.next_draw(params, tuning=self.tune, alone=self._alone)
        stats["warning"] = _sampler_warning(stats["warning"])
        moved = self.density.layout.unravel(x)
        return {name: moved.get(name, value) for name, value in point.items()}, [stats]

    def stop_tuning(self) -> None:
        self.tune = False

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Any:
        if var.dtype in continuous_types and has_grad:
            return Competence.COMPATIBLE
        return Competence.INCOMPATIBLE

    @staticmethod
    def _progressbar_config(n_chains: int = 1) -> tuple[list[TextColumn], dict[str, list[float]]]:
        columns = [
            TextColumn("{task.fields[step_size]:0.3f}", table_column=Column("Step size", ratio=1)),
            TextColumn("{task.fields[acceptance]:0.2f}", table_column=Column("Accept", ratio=1)),
            TextColumn("{task.fields[window]}", table_column=Column("Window", ratio=1)),
            TextColumn("{task.fields[sweeps]:0.0f}", table_column=Column("Sweeps/1000", ratio=1)),
        ]
        names = ("step_size", "acceptance", "window", "sweeps")
        return columns, {name: [0] * n_chains for name in names}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable[..., dict[str, Any]]]:
        def update_stats(stats: dict[str, Any]) -> dict[str, Any]:
            return {
                "step_size": stats["step_size"],
                "acceptance": stats["acceptance_rate"],
                "window": stats["window"],
                "sweeps": 1000 * stats["sweeps"] / stats["n_steps"],
                "failing": stats["diverging"] and not stats["tune"],
            }

        return (update_stats,)

    @property
    def _alone(self) -> bool:
        """Whether no other step method moves anything between our draws."""
        return len(self.vars) == len(self.model.value_vars)

    def _compile(self) -> None:
        """Compile and calibrate now: errors come early, and forked workers share what was made."""
        self._calibration = self.calibration
        if self.batching == "mapped":
            _log.info(
                "DeerMALA on %s: the vectorised graph does not compile, so the states of a window "
                "are evaluated one by one.",
                self.backend,
            )

    def __getstate__(self) -> dict[str, Any]:
        derived = ("density", "_prepared", "_chain")
        state = {k: v for k, v in self.__dict__.items() if k not in derived}
        return state | {"_calibration": self.calibration, "_record": copy.deepcopy(self.record)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        record = state.pop("_record")
        for name, value in state.items():
            setattr(self, name, value)
        self._chain = None
        if record is not None:
            self.record = record


def _sampler_warning(message: Any) -> SamplerWarning | None:
    """In the form that PyMC logs while it samples."""
    return message and SamplerWarning(WarningType.CONVERGENCE, message, "warn")


def _value_vars(vars: Any, model: Model) -> list[Any]:
    if vars is None:
        chosen = model.continuous_value_vars
        if not chosen:
            raise ModelError(
                "The model has no continuous free variables: DeerMALA has nothing to sample."
            )
        return chosen
    listed = list(vars) if isinstance(vars, list | tuple) else [vars]
    names = {rv.name: rv for rv in model.free_RVs}
    known = [*model.free_RVs, *model.value_vars]
    resolved = []
    for var in listed:
        rv = names.get(var) if isinstance(var, str) else var
        if rv is None or not any(rv is k for k in known):
            raise OptionError(
                f"DeerMALA: {var} is not a free variable of the model, whose free variables are "
                f"{', '.join(names)}."
            )
        resolved.append(rv)
    return get_value_vars_from_user_vars(resolved, model)
