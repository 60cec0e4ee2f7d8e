"""The sampler's options: one frozen, validated object. Every wrong one is reported here."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, ClassVar, Literal, Self, TypedDict, get_args

import numpy as np
from pymc.util import get_random_generator

from pymc_deer.acceptance import TargetAccept
from pymc_deer.jacobian import RULES, Rule
from pymc_deer.metric import KINDS, MetricKind
from pymc_deer.noise import NoiseSource
from pymc_deer.path_length import FIRST_LENGTH, MAX_STEPS, PathLength
from pymc_deer.status import OptionError, invalid_option
from pymc_deer.sweep import Kernel

BackendName = Literal["auto", "numba", "jax"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)

MAX_WINDOW = 2**20
MAX_STEPS_PER_DRAW = 10_000
MAX_PROBES = 64
"""Beyond these lie typing errors: the tape of a single draw, or of a window, must fit in memory."""

PYMC_ARGUMENTS = ("vars", "model", "rng", "initial_point", "compile_kwargs", "blocked")
"""Arguments that all step methods of PyMC take."""

Auto = Literal["auto"]

GivenMetric = np.ndarray | Sequence[float] | Sequence[Sequence[float]]
"""Variances, (D,), or a covariance, (D, D)."""


class CommonArguments(TypedDict, total=False):
    """Arguments that all samplers take; see :class:`~pymc_deer.DeerMALA`."""

    backend: BackendName
    step_size: float | None
    step_size_jitter: float
    small_steps: float
    target_accept: float | Auto
    metric: MetricKind | Auto | GivenMetric
    jacobian: Rule | Auto
    probes: int
    curvature: float | None
    window: int | Auto
    steps_per_draw: int | Auto
    tol: float | None
    max_sweeps: int | None
    noise: NoiseSource | Auto
    hvp: Callable[..., Any] | None


@dataclass(frozen=True)
class Options:
    """Options of DeerMALA; see :class:`~pymc_deer.DeerMALA` for what each one does.

    Raises
    ------
    OptionError
        Naming the argument, the value given and what is accepted.
    """

    sampler: ClassVar[str] = "DeerMALA"
    kernel: ClassVar[Kernel] = "mala"
    warmup_steps_per_draw: ClassVar[int] = 10
    # Draws worth half an independent one.
    thinning: ClassVar[float] = 0.5
    # Sweeps and single steps hardly feel a curvature of 1.5.
    white: ClassVar[float] = 1.5
    # Divergences cost single steps less than what would prevent them.
    first_target: ClassVar[TargetAccept] = TargetAccept(0.7)

    backend: BackendName = "auto"
    step_size: float | None = None
    step_size_jitter: float = 0.0
    small_steps: float = 0.0
    target_accept: float | Auto = "auto"
    metric: MetricKind | Auto | GivenMetric = "auto"
    jacobian: Rule | Auto = "auto"
    probes: int = 1
    curvature: float | None = None
    window: int | Auto = "auto"
    steps_per_draw: int | Auto = "auto"
    tol: float | None = None
    max_sweeps: int | None = None
    noise: NoiseSource | Auto = "auto"
    hvp: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        self._one_of("backend", BACKENDS)
        self._one_of("jacobian", ("auto", *RULES))
        self._one_of("noise", ("auto", *get_args(NoiseSource)))
        for name in ("step_size", "curvature", "tol"):
            self._positive_or_none(name)
        for name in ("step_size_jitter", "small_steps"):
            self._number(name, "in [0, 1)", lambda v: 0 <= v < 1)
        if not _is_auto(self.target_accept):
            self._number("target_accept", "'auto' or between 0 and 1", lambda v: 0 < v < 1)
            if self.step_size is not None:
                expected = "'auto' where step_size is given, which stays as it is"
                raise self._invalid("target_accept", expected)
        self._integer("probes", f"an integer from 1 to {MAX_PROBES}", MAX_PROBES)
        if self.max_sweeps is not None:
            # A window never takes more sweeps than it has transitions.
            self._integer("max_sweeps", f"None or an integer from 1 to {MAX_WINDOW}", MAX_WINDOW)
        self._auto_or_integer("window", MAX_WINDOW)
        self._auto_or_integer("steps_per_draw", MAX_STEPS_PER_DRAW)
        if isinstance(self.metric, str):
            self._one_of("metric", ("auto", *KINDS), " or an array of shape (D,) or (D, D)")
        if self.hvp is not None and not callable(self.hvp):
            raise self._invalid("hvp", "a callable (x, v) -> H v, or None")

    @property
    def path(self) -> PathLength:
        """The paths that warm-up begins with."""
        return PathLength()

    @property
    def target(self) -> TargetAccept:
        """The acceptance rate that warm-up begins to aim at."""
        if isinstance(self.target_accept, str):
            return self.first_target
        return TargetAccept(self.target_accept)

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any], also: Sequence[str] = ()) -> Self:
        """Options from keyword arguments; an unknown one is reported with the known ones.

        Parameters
        ----------
        also
            Further names that the caller takes, for the report.
        """
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(arguments) - set(known))
        if not unknown:
            return cls(**arguments)
        has_none = f"{cls.sampler} has no argument {', '.join(unknown)}"
        for other in OPTIONS.values():
            if {*unknown} <= {f.name for f in fields(other)}:
                raise OptionError(
                    f"{has_none}, which {other.sampler} has: write {other.sampler}(...), or "
                    f"kernel={other.kernel!r} in pymc_deer.sample."
                )
        raise OptionError(f"{has_none}; it takes {', '.join([*also, *known])}.")

    def metric_factor(self, size: int) -> np.ndarray | None:
        """The user's metric as a factor L, (D,) or lower-triangular (D, D); None if adapted.

        The user gives variances (D,) or a covariance matrix (D, D) of the unconstrained vector.
        """
        if isinstance(self.metric, str):
            return None
        try:
            covariance = np.asarray(self.metric)
        except ValueError as error:  # ragged
            raise self._invalid("metric", "an array of real numbers") from error
        if covariance.dtype.kind not in "fiu":
            raise self._invalid("metric", "an array of real numbers")
        covariance = covariance.astype(float)
        if covariance.shape not in ((size,), (size, size)):
            raise self._invalid(
                "metric",
                f"of shape ({size},) or ({size}, {size}), one row per unconstrained dimension",
            )
        if not np.isfinite(covariance).all():
            raise self._invalid("metric", "finite")
        if covariance.ndim == 1:
            if not (covariance > 0).all():
                raise self._invalid("metric", "positive: it holds variances")
            return np.sqrt(covariance)
        try:
            if not np.allclose(covariance, covariance.T):
                raise np.linalg.LinAlgError
            return np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError as error:
            raise self._invalid("metric", "a symmetric positive definite covariance") from error

    def _one_of(self, name: str, accepted: tuple[str, ...], more: str = "") -> None:
        value = getattr(self, name)
        if not isinstance(value, str) or value not in accepted:
            raise self._invalid(name, f"one of {accepted}{more}")

    def _number(self, name: str, expected: str, accepts: Callable[[Any], bool]) -> None:
        value = getattr(self, name)
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or not _is_finite(value) or not accepts(value):
            raise self._invalid(name, expected)
        self._set(name, float(value))

    def _positive_or_none(self, name: str) -> None:
        if getattr(self, name) is not None:
            self._number(name, "a positive number or None", lambda v: v > 0)

    def _integer(self, name: str, expected: str, most: int) -> None:
        if not is_integer(getattr(self, name), 1, most):
            raise self._invalid(name, expected)
        self._set(name, int(getattr(self, name)))

    def _set(self, name: str, number: float) -> None:
        """Python's own number in place of another type's, which may overflow or not be stored."""
        object.__setattr__(self, name, number)

    def _auto_or_integer(self, name: str, most: int) -> None:
        if not _is_auto(getattr(self, name)):
            self._integer(name, f"'auto' or an integer from 1 to {most}", most)

    def _invalid(self, name: str, expected: str) -> OptionError:
        return invalid_option(self.sampler, name, getattr(self, name), expected)


@dataclass(frozen=True)
class HMCOptions(Options):
    """Options of DeerHMC; see :class:`~pymc_deer.DeerHMC`."""

    sampler: ClassVar[str] = "DeerHMC"
    kernel: ClassVar[Kernel] = "hmc"
    warmup_steps_per_draw: ClassVar[int] = 2
    # Draws nearly independent: recording one costs as much as a few transitions of a small model.
    thinning: ClassVar[float] = 1.0
    # Paths go round a curvature of 3; a direction costs as much as the few steps that it saves.
    white: ClassVar[float] = 3.0
    first_target: ClassVar[TargetAccept] = TargetAccept(0.8, adapts=True)

    step_size_jitter: float = 0.2
    small_steps: float = 0.05
    n_leapfrog: int | Auto = "auto"
    path_length: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._auto_or_integer("n_leapfrog", MAX_STEPS)
        self._positive_or_none("path_length")
        if self.path_length is not None and not _is_auto(self.n_leapfrog):
            raise self._invalid(
                "n_leapfrog", "'auto' where path_length is given, which decides the number of steps"
            )
        steps = None if self.step_size is None else 2 * self.step_size
        if self.path_length is not None and steps is not None and self.path_length < steps:
            raise self._invalid("path_length", f"at least two steps, {steps:g}")

    @property
    def path(self) -> PathLength:
        if not isinstance(self.n_leapfrog, str):
            return PathLength(self.n_leapfrog)
        if self.path_length is not None:
            return PathLength(None, self.path_length)
        return PathLength(None, FIRST_LENGTH, adapts=True)


def profiled_windows(windows: object) -> tuple[int, ...]:
    """Widths to profile, in ascending order; 1 is always among them."""
    listed_windows = listed(windows)
    if not listed_windows or not all(is_integer(w, 1, MAX_WINDOW) for w in listed_windows):
        expected = f"a sequence of integers from 1 to {MAX_WINDOW}"
        raise invalid_option("profile", "windows", windows, expected)
    return tuple(sorted({1, *map(int, listed_windows)}))


def profiled_backends(backends: object) -> tuple[BackendName, ...]:
    """Backends to profile, all for None."""
    named = tuple(name for name in BACKENDS if name != "auto")
    chosen = named if backends is None else listed(backends)
    if not chosen or not all(isinstance(name, str) and name in named for name in chosen):
        raise invalid_option("profile", "backends", backends, f"None or some of {named}")
    return tuple(dict.fromkeys(chosen))


def listed(values: Any) -> Sequence[Any]:
    """The values of a sequence; none if it is something else."""
    if isinstance(values, str):
        return ()
    try:
        return list(values)
    except TypeError:
        return ()


def is_integer(value: Any, least: float, most: float = np.inf) -> bool:
    """Whether an argument is an integer within bounds; True and False are none."""
    return (
        isinstance(value, Integral) and not isinstance(value, bool) and least <= int(value) <= most
    )


OPTIONS: dict[str, type[Options]] = {kind.kernel: kind for kind in (Options, HMCOptions)}
"""Options by the kernel that they are of."""


def refuse_seed(sampler: str, name: str, seed: Any) -> None:
    """Refuse what no random numbers come from.

    Raises
    ------
    OptionError
        Naming the argument.
    """
    try:
        get_random_generator(seed)
    except (TypeError, ValueError) as error:
        expected = "None, an integer of at least 0, a list of such, or a NumPy Generator"
        raise invalid_option(sampler, name, seed, expected) from error


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except OverflowError:
        return False


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"
