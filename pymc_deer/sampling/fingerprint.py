"""Whether a model is the one that a stored run has sampled."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from pymc.backends.arviz import find_constants, find_observations
from pymc.model import Model

from pymc_deer.backends.base import Solver
from pymc_deer.metric import identity_metric
from pymc_deer.precision import precision_of
from pymc_deer.sampling.recorder import Values
from pymc_deer.status import ModelError

_ROUNDING = {"float64": 1e-9, "float32": 1e-5}
"""Share by which logp of the same model may differ, computed in another place."""


@dataclass(frozen=True)
class Fingerprint:
    """What a model is known by.

    Attributes
    ----------
    precision
        Type of its density.
    variables
        Shapes of the unconstrained variables by name, in their order.
    data
        Digests of the observed and constant data by name, of coordinates, and of which variable has
        which.
    recorded
        Shapes of what is recorded of a draw, by name.
    x, logp, dlogp
        A state, shape (D,), and the model's log-density there with its gradient.
    sums
        Of what is recorded of that state, by name, with weights.
    """

    precision: str
    variables: dict[str, list[int]]
    data: dict[str, str]
    recorded: dict[str, list[int]]
    x: np.ndarray
    logp: float
    dlogp: np.ndarray
    sums: dict[str, float]

    @classmethod
    def of(
        cls, values: Values, solver: Solver, x: np.ndarray, params: Sequence[np.ndarray]
    ) -> "Fingerprint":
        """Of a model whose density is evaluated at x, shape (D,)."""
        model, there = values.model, _evaluated(solver, x, params)
        known = _variables(model), _data(model)
        return cls(solver.density.dtype, *known, values.shapes, x, *there, _sums(values, x))

    def has_transformed(self, model: Model) -> bool:
        """Whether values of transformed variables are recorded as well."""
        constrained = {variable.name for variable in model.unobserved_RVs}
        return any(v.name in self.recorded.keys() - constrained for v in model.value_vars)

    def refuse_other_variables(self, model: Model) -> None:
        """Refuse a model of another precision, or of other variables or data.

        Raises
        ------
        ModelError
            Naming them.
        """
        precision = precision_of(model.value_vars)
        if precision != self.precision:
            raise ModelError(
                f"sample(resume=...): the run is in {self.precision}, and this model in "
                f"{precision}. Write pytensor.config.floatX = {self.precision!r} before the model "
                "is made, and leave it so."
            )
        variables, data = _variables(model), _data(model)
        if list(variables.items()) != list(self.variables.items()):
            raise _refusal(f"variables {_listed(self.variables)}, not {_listed(variables)}")
        names = {*self.data, *data}
        changed = sorted(n for n in names if self.data.get(n) != data.get(n))
        if changed:
            raise _refusal(f"other data in {', '.join(changed)}")

    def refuse_other_values(self, values: Values) -> None:
        """Refuse a model of which other values would be recorded.

        Raises
        ------
        ModelError
            Naming them.
        """
        if values.shapes != self.recorded:
            pairs = (self.recorded, values.shapes), (values.shapes, self.recorded)
            there, here = (
                _listed({n: shape for n, shape in one.items() if other.get(n) != shape}) or "none"
                for one, other in pairs
            )
            raise _refusal(f"recorded values {there}, not {here}")
        share = 100 * _ROUNDING[self.precision]
        for name, value in _sums(values, self.x).items():
            if not np.isclose(value, self.sums[name], rtol=share, atol=share, equal_nan=True):
                raise _refusal(f"other values of {name}")

    def refuse_other_density(self, solver: Solver, params: Sequence[np.ndarray]) -> None:
        """Refuse a model of the same variables and data, but other distributions.

        Raises
        ------
        ModelError
            Telling logp here and there.
        """
        (logp, dlogp), share = _evaluated(solver, self.x, params), _ROUNDING[solver.density.dtype]
        if not np.isclose(logp, self.logp, rtol=share, atol=share):
            raise _refusal(f"a log-density of {self.logp:.9g} where here it is {logp:.9g}")
        # Where a coefficient is 0, logp has nothing to say of its covariate.
        least = 100 * share * (1 + np.abs(self.dlogp).max())
        if not np.allclose(dlogp, self.dlogp, rtol=0.0, atol=least):
            raise _refusal("another gradient of its log-density")


def _variables(model: Model) -> dict[str, list[int]]:
    return {name: list(np.shape(value)) for name, value in model.initial_point().items()}


def _data(model: Model) -> dict[str, str]:
    data = {**find_constants(model), **find_observations(model)}
    known = {dim: values for dim, values in model.coords.items() if values is not None}
    data |= {f"the coordinates of {dim}": values for dim, values in known.items()}
    dims = model.named_vars_to_dims
    data |= {f"the dims of {name}": [str(dim) for dim in dims[name]] for name in dims}
    return {str(name): _digest(np.asarray(value)) for name, value in data.items()}


def _digest(array: np.ndarray) -> str:
    # Objects by their values as text: their bytes are addresses.
    plain = array.astype(str) if array.dtype.kind == "O" else np.ascontiguousarray(array)
    head = f"{plain.shape}{plain.dtype.str}".encode()
    return hashlib.sha256(head + plain.tobytes()).hexdigest()


def _evaluated(
    solver: Solver, x: np.ndarray, params: Sequence[np.ndarray]
) -> tuple[float, np.ndarray]:
    logp, dlogp = solver.evaluate(x, identity_metric(solver.spec.metric, len(x)), params)
    return float(logp), np.array(dlogp)


def _sums(values: Values, x: np.ndarray) -> dict[str, float]:
    """Of what is recorded at x, by name: weighted, so that what changes places shows."""
    found = values.at(x[None, None], 0)
    return {name: _weighted(_real(value)) for name, value in found.items()}


def _real(value: np.ndarray) -> np.ndarray:
    """All its numbers in a row: of complex ones the real parts and the imaginary ones."""
    return value.ravel().astype(complex).view(float) if value.dtype.kind == "c" else value.ravel()


def _weighted(value: np.ndarray) -> float:
    weights = 1 + np.cos(np.arange(len(value)))
    return float(weights @ value.astype(float)) / max(len(value), 1)


def _listed(variables: dict[str, list[int]]) -> str:
    return ", ".join(f"{name} {tuple(shape)}" for name, shape in variables.items())


def _refusal(what: str) -> ModelError:
    return ModelError(
        f"sample(resume=...): the run is of another model, with {what}. Make the model as it was."
    )
