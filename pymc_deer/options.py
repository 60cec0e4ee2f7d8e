"""The sampler's options: one frozen, validated object. Every wrong argument is reported here."""

from collections.abc import Callable, Sequence, Sized
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, Literal, get_args

import numpy as np

from pymc_deer.jacobian import RULES
from pymc_deer.status import OptionError, invalid_option

BackendName = Literal["auto", "numba", "jax"]
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
METRICS = ("auto", "diag", "dense", "low_rank")


@dataclass(frozen=True)
class Options:
    """Options of a DEER sampler; see :class:`~pymc_deer.DeerMALA` for what each one does.

    Raises
    ------
    OptionError
        Naming the argument, the value given and what is accepted.
    """

    backend: BackendName = "auto"
    step_size: float | None = None
    step_size_jitter: float = 0.0
    target_accept: float = 0.7
    metric: str | np.ndarray = "auto"
    jacobian: str = "auto"
    probes: int = 1
    curvature: float | None = None
    window: int | Literal["auto"] = "auto"
    steps_per_draw: int | Literal["auto"] = "auto"
    tol: float | None = None
    max_sweeps: int | None = None
    hvp: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        _one_of("backend", self.backend, BACKENDS)
        _one_of("jacobian", self.jacobian, ("auto", *RULES))
        if self.step_size is not None:
            _number("step_size", self.step_size, "a positive number or None", lambda v: v > 0)
        _number("step_size_jitter", self.step_size_jitter, "in [0, 1)", lambda v: 0 <= v < 1)
        _number("target_accept", self.target_accept, "between 0 and 1", lambda v: 0 < v < 1)
        if self.curvature is not None:
            _number("curvature", self.curvature, "a positive number or None", lambda v: v > 0)
        if self.tol is not None:
            _number("tol", self.tol, "a positive number or None", lambda v: v > 0)
        _positive_integer("probes", self.probes)
        if self.max_sweeps is not None:
            _positive_integer("max_sweeps", self.max_sweeps, "a positive integer or None")
        for name in ("window", "steps_per_draw"):
            if not _is_auto(getattr(self, name)):
                _positive_integer(name, getattr(self, name), "'auto' or a positive integer")
        if isinstance(self.metric, str):
            _one_of("metric", self.metric, METRICS, " or an array of shape (D,) or (D, D)")
        if self.hvp is not None and not callable(self.hvp):
            raise invalid_option("hvp", self.hvp, "a callable (x, v) -> H v, or None")

    @classmethod
    def from_arguments(cls, arguments: dict[str, Any], also: Sequence[str] = ()) -> "Options":
        """Options from keyword arguments; an unknown one is reported with the known ones.

        Parameters
        ----------
        also
            Further names that the caller takes, for the report.
        """
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(arguments) - set(known))
        if unknown:
            raise OptionError(
                f"DeerMALA has no argument {', '.join(unknown)}; it takes "
                f"{', '.join([*also, *known])}."
            )
        return cls(**arguments)

    def metric_factor(self, size: int) -> np.ndarray | None:
        """The user's metric as a factor L, (D,) or lower-triangular (D, D); None if adapted.

        The user gives variances (D,) or a covariance matrix (D, D) of the unconstrained vector.
        """
        if isinstance(self.metric, str):
            return None
        try:
            covariance = np.asarray(self.metric)
        except ValueError as error:  # ragged
            raise invalid_option("metric", self.metric, "an array of numbers") from error
        if covariance.dtype.kind not in "fiu":
            raise invalid_option("metric", self.metric, "an array of real numbers")
        covariance = covariance.astype(float)
        if covariance.shape not in ((size,), (size, size)):
            raise invalid_option(
                "metric",
                covariance,
                f"of shape ({size},) or ({size}, {size}), one row per unconstrained dimension",
            )
        if not np.isfinite(covariance).all():
            raise invalid_option("metric", covariance, "finite")
        if covariance.ndim == 1:
            if not (covariance > 0).all():
                raise invalid_option("metric", covariance, "positive: it holds variances")
            return np.sqrt(covariance)
        try:
            if not np.allclose(covariance, covariance.T):
                raise np.linalg.LinAlgError
            return np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError as error:
            raise invalid_option(
                "metric", covariance, "a symmetric positive definite covariance"
            ) from error


def _one_of(name: str, value: object, accepted: Sized, more: str = "") -> None:
    if not isinstance(value, str) or value not in accepted:  # type: ignore[operator]
        raise invalid_option(name, value, f"one of {accepted}{more}")


def _number(name: str, value: object, expected: str, accepts: Callable[[Any], bool]) -> None:
    number = isinstance(value, Real) and not isinstance(value, bool)
    if not number or not _is_finite(value) or not accepts(value):
        raise invalid_option(name, value, expected)


def _is_finite(value: Any) -> bool:
    try:
        return bool(np.isfinite(float(value)))
    except OverflowError:
        return False


def _is_auto(value: object) -> bool:
    return isinstance(value, str) and value == "auto"


def _positive_integer(name: str, value: object, expected: str = "a positive integer") -> None:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise invalid_option(name, value, expected)
