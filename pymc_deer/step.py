"""PyMC's step-method contract, for all kernels, and nothing else."""

import copy
import logging
import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from pymc.model import Model, modelcontext
from pymc.stats.convergence import SamplerWarning, WarningType
from pymc.step_methods.compound import BlockedStep, Competence, StepMethodState
from pymc.step_methods.state import dataclass_state
from pymc.util import get_random_generator
from pymc.vartypes import continuous_types
from pytensor.graph.traversal import ancestors
from rich.progress import TextColumn
from rich.table import Column

from pymc_deer.backends import resolve_backend, resolve_noise
from pymc_deer.backends.base import Solver
from pymc_deer.backends.blas import Blas
from pymc_deer.chains.calibration import Calibration
from pymc_deer.chains.chain import Chain, ChainRecord
from pymc_deer.chains.prepare import Prepared, new_warmup, prepare
from pymc_deer.chains.stretch import Streams
from pymc_deer.chains.trials import UNKNOWN
from pymc_deer.density import Density, build_density
from pymc_deer.floating_point import as_numpy_does
from pymc_deer.garbage import uncollected
from pymc_deer.options import BackendName, Options, refuse_seed
from pymc_deer.precision import in_precision, precision_of
from pymc_deer.start import find_starts
from pymc_deer.stats import STATS_DTYPES_SHAPES
from pymc_deer.status import ModelError, OptionError, invalid_option
from pymc_deer.variables import chosen_variables, continuous_variables, given_model

# A child of PyMC's logger: shown, and silenced, as PyMC's own messages are.
_log = logging.getLogger("pymc.deer")


@dataclass_state
class DeerState(StepMethodState):
    """What PyMC stores and restores of a :class:`DeerStep`; each sampler has a class of its own,
    so that none takes another's.
    """

    tune: bool
    record: ChainRecord | None
    fresh: bool


class _GivenOut(NamedTuple):
    """The point that PyMC was given last, whose values of this step's variables are views of x."""

    point: Mapping[str, np.ndarray]
    values: tuple[np.ndarray, ...]
    x: np.ndarray

    def is_still(self, point: Mapping[str, np.ndarray], position: np.ndarray) -> bool:
        """Whether `point` is that one, with nothing replaced or written into."""
        return (
            point is self.point
            and all(map(operator.is_, point.values(), self.values))
            and self.x.tobytes() == position.tobytes()
        )


class DeerStep(BlockedStep):
    """A step method whose chain is solved in windows; what its kernels have in common.

    Parameters
    ----------
    vars
        Variables to sample; all continuous ones of the model by default.
    options
        What the user asked for.
    model, rng, compile_kwargs, blocked
        As PyMC gives them to step methods.
    """

    default_blocked = True
    default_tune_steps: int = 1000  # pyright: ignore[reportIncompatibleVariableOverride]
    stats_dtypes_shapes = STATS_DTYPES_SHAPES
    model: Any
    backend: BackendName
    _foreseen = UNKNOWN
    """What is known of the run: PyMC tells a step method neither its chains nor its draws."""

    def __new__(cls, *args: Any, **kwargs: Any) -> Any:
        # PyMC asks the model for its variables before a step can look at it, and for all of them.
        model = given_model(kwargs.get("model"), cls.__name__)
        chosen = args[0] if args else kwargs.get("vars")
        if chosen is None and not kwargs.get("blocked", True):
            args, kwargs = (), kwargs | {"vars": continuous_variables(model, cls.__name__)}
        return super().__new__(cls, *args, **kwargs)

    def __init__(
        self,
        vars: Any,
        options: Options,
        *,
        model: Model | None,
        rng: Any,
        compile_kwargs: dict[str, Any] | None,
        blocked: bool,
    ) -> None:
        if compile_kwargs:
            raise OptionError(
                f"{options.sampler} compiles for itself: write {options.sampler}(backend='numba') "
                f"or 'jax' in place of compile_kwargs={compile_kwargs!r}."
            )
        refuse_seed(options.sampler, "rng", rng)
        self.model = modelcontext(model)
        self.vars = chosen_variables(vars, self.model, options.sampler)
        # Kept where the step is pickled: a process that is started anew has PyTensor's default.
        self._precision = precision_of(self.vars)
        self._terms = {term.name for term in _terms_of(self.model)}
        self._refuse_more_terms()
        self.options = options
        self.backend = self._resolved_backend(options.backend)
        self.options = replace(options, noise=resolve_noise(options, self.backend))
        self.blocked = blocked
        self.rng = get_random_generator(rng)
        self.tune = True
        self.fresh = True
        self._chain: Chain | None = None
        self._given_out: _GivenOut | None = None
        self._calibration: Calibration | None = None
        self._compile()

    def _resolved_backend(self, name: BackendName) -> BackendName:
        """The backend to run on, of the vars and options that are known by now."""
        return resolve_backend(name)

    @cached_property
    def density(self) -> Density:
        """The log-density of this step's variables."""
        # With the threads that every process has: what follows from data may round by them.
        with uncollected(), Blas().one_thread(), in_precision(self._precision):
            return build_density(self.model, self.vars, self.options.hvp)

    @cached_property
    def _prepared(self) -> Prepared:
        with uncollected():
            return prepare(
                self.options,
                self.density,
                self.model,
                self.backend,
                alone=self._alone,
                run=self._foreseen,
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
        self._given_out = None
        self._chain = None if record is None else Chain(self.solver, record)

    @property
    def n_left(self) -> tuple[int, int]:
        """Draws of warm-up and after it that the chain has still to give out."""
        record = self.record
        if record is None:
            return 0, 0
        if record.n_tune_left:
            return record.n_tune_left - record.handed_out, record.n_draws_left
        return 0, record.n_draws_left - record.handed_out

    def last_point(self) -> dict[str, np.ndarray]:
        """Where the chain stands, unconstrained; for a step that moves all variables."""
        assert self._chain is not None
        assert self._alone
        self._chain.resume(self.density.param_values({}))
        point = self.density.layout.unravel(self._chain.position)
        return {var.name: point[var.name] for var in self.model.value_vars}

    def setup_chain(self, rng: Any, tune: int, draws: int) -> None:
        """Begin a chain: new random streams and an untouched warm-up."""
        if tune < 0:
            raise invalid_option("pm.sample", "tune", tune, "an integer of at least 0")
        self.take_model_as_it_is()
        super().setup_chain(rng, tune, draws)
        self.record = self.new_record(self.rng, tune, draws)
        self.tune = tune > 0
        self.fresh = True

    def take_model_as_it_is(self) -> None:
        """Go on with the model and the data as they are now.

        Raises
        ------
        ModelError
            If the model says more of this step's variables than it did when the step was made.
        """
        self._refuse_more_terms()
        self.solver.forget_data()

    def _refuse_more_terms(self) -> None:
        """Refuse a model that says more of this step's variables than its log-density does: since
        it was made, or outside of a nested model.
        """
        moved = {self.model.values_to_rvs[value] for value in self.vars}
        others = (term for term in _terms_of(self.model.root) if term.name not in self._terms)
        if more := [str(term.name) for term in others if not moved.isdisjoint(ancestors([term]))]:
            raise ModelError(
                f"{', '.join(more)}: in the model, and no part of the log-density that is sampled. "
                "Make the step, or sample, when the model is whole, in the context of the "
                "outermost one."
            )

    def new_record(self, rng: np.random.Generator, tune: int, draws: int) -> ChainRecord:
        """A chain that has not begun, with random streams of its own."""
        curvature, factor = self.calibration.curvature, self._prepared.factor
        warmup = new_warmup(self.options, self.density, tune, curvature, factor)
        nowhere = np.full(self.density.size, np.nan, self.density.dtype)
        return ChainRecord(nowhere, Streams.spawn(rng), warmup, tune, draws)

    @as_numpy_does()
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
        if self.fresh:
            rng = chain.record.streams.start
            kept = self._kept(point)
            [start] = find_starts(self.model, self.solver, [point], [kept], params, [rng])
            chain.begin(start, params)
            self.fresh = False
        elif not self._is_where_it_was(point, chain.position):
            chain.move(self.density.layout.ravel(point, self.density.dtype))
        x, stats = chain.next_draw(params, tuning=self.tune, alone=self._alone)
        stats["warning"] = self._warning(stats, stats.pop("divergence"), point)
        # The chain's own draws stay out of reach of steps that write into what they are given.
        x = x.copy()
        moved = self.density.layout.unravel(x)
        after = {name: moved.get(name, value) for name, value in point.items()}
        self._given_out = _GivenOut(after, tuple(after.values()), x)
        return after, [stats]

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
            TextColumn(
                "{task.fields[sweeps_per_1000]:0.0f}", table_column=Column("Sweeps/1000", ratio=1)
            ),
        ]
        # Marimo makes its column headings of these.
        names = ("step_size", "acceptance", "window", "sweeps_per_1000")
        return columns, {name: [0] * n_chains for name in names}

    @staticmethod
    def _make_progressbar_update_functions() -> tuple[Callable[..., dict[str, Any]]]:
        def update_stats(stats: dict[str, Any]) -> dict[str, Any]:
            return {
                "step_size": stats["step_size"],
                "acceptance": stats["acceptance_rate"],
                "window": stats["window"],
                "sweeps_per_1000": 1000 * stats["sweeps"] / stats["n_transitions"],
                "failing": stats["divergences"] > 0,
            }

        return (update_stats,)

    @property
    def _alone(self) -> bool:
        """Whether no other step method moves anything between our draws."""
        return len(self.vars) == len(self.model.value_vars)

    def _kept(self, point: Mapping[str, np.ndarray]) -> set[str]:
        """Variables that start where the user said: PyMC tells a step only where they start.

        They are elsewhere than the model's initial point, which data set since may have moved.
        """

        def elsewhere(than: Mapping[str, np.ndarray]) -> set[str]:
            names = self.density.layout.names
            return {name for name in names if not np.array_equal(point[name], than[name])}

        return elsewhere(self.density.initial_point) and elsewhere(self.model.initial_point())

    def _is_where_it_was(self, point: Mapping[str, np.ndarray], position: np.ndarray) -> bool:
        """Whether nothing has moved this step's variables since it gave them out."""
        layout, given, dtype = self.density.layout, self._given_out, self.density.dtype
        # Quicker than comparing variable by variable, where all of them are views of one array.
        if given is not None and set(layout.dtypes) == {dtype} and given.is_still(point, position):
            return True
        # Given out in the variables' own types, which may be narrower.
        position = layout.ravel(layout.unravel(position), dtype)
        return np.array_equal(layout.ravel(point, dtype), position)

    def _warning(
        self, stats: Mapping[str, Any], place: Any, point: Mapping[str, np.ndarray]
    ) -> SamplerWarning | None:
        """In the form that PyMC logs while it samples; divergences with their place, as NUTS's."""
        if stats["warning"] is not None:
            return SamplerWarning(WarningType.CONVERGENCE, stats["warning"], "warn")
        if stats["tune"] or not stats["diverging"]:
            return None
        source = None
        if place is not None:
            source = {**point, **self.density.layout.unravel(place.copy())}
        text = "The energy error of a transition exceeded 1000 or was not finite."
        kind = WarningType.DIVERGENCE
        return SamplerWarning(kind, text, "debug", divergence_point_source=source)

    @as_numpy_does()
    def _compile(self) -> None:
        """Compile and calibrate now: errors come early, and forked workers share what was made."""
        self._calibration = self.calibration
        if self.batching == "mapped":
            _log.info(
                "%s on %s: the vectorised graph does not compile, so the states of a window "
                "are evaluated one by one.",
                self.options.sampler,
                self.backend,
            )

    def __copy__(self) -> "DeerStep":
        """The same chain, to go on with by itself; the model and what is compiled are shared."""
        other = object.__new__(type(self))
        vars(other).update(self.__dict__)
        other.record = copy.deepcopy(self.record)
        return other

    def __deepcopy__(self, memo: dict[int, Any]) -> "DeerStep":
        other = copy.copy(self)
        other.rng = copy.deepcopy(self.rng, memo)
        return other

    def __getstate__(self) -> dict[str, Any]:
        # Here, where errors are told, not where it is unpickled: do data still fit?
        self.density.param_values(self.density.initial_point)
        derived = ("density", "_prepared", "_chain", "_given_out")
        state = {k: v for k, v in self.__dict__.items() if k not in derived}
        return state | {"_record": copy.deepcopy(self.record)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        record = state.pop("_record")
        vars(self).update(state)
        self._chain = self._given_out = None
        if record is not None:
            self.record = record


def _terms_of(model: Model) -> list[Any]:
    """All that adds to the model's log-density."""
    return [*model.free_RVs, *model.observed_RVs, *model.potentials]
