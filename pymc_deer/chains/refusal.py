"""What can be seen to be impossible before a chain runs, and is said then."""

from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Any

import numpy as np
from pymc.model import Model
from pytensor.compile.sharedvalue import SharedVariable
from pytensor.graph.basic import Constant, Variable
from pytensor.graph.traversal import ancestors

from pymc_deer.backends.base import Solver
from pymc_deer.density import Density
from pymc_deer.graphs.checks import term_logps
from pymc_deer.layout import Layout, Point
from pymc_deer.metric import identity_metric
from pymc_deer.options import Options
from pymc_deer.precision import in_precision
from pymc_deer.status import ModelError, invalid_option

_DENSE_MATRICES = 20
"""Matrices D x D that a dense metric takes: L, the moments of two halves that it is estimated from,
those of all, and workspace."""

_OF_SECOND_DERIVATIVES = ("stochastic", "exact")
"""Rules that take products with the Hessian."""

_FAR = (1.0, 1e3, 1e6)
"""How far out a coordinate is moved to see whether logp feels it, in unconstrained units."""


def refuse_dense(options: Options, solver: Solver) -> None:
    """Refuse to adapt a dense metric that memory has no room for."""
    if not isinstance(options.metric, str) or options.metric != "dense":
        return
    size, free = solver.density.size, solver.free_memory()
    needed = _DENSE_MATRICES * 8.0 * size**2
    if needed > free:
        raise invalid_option(
            options.sampler,
            "metric",
            options.metric,
            f"'diag' or 'low_rank' in {size} dimensions: a dense one takes {needed / 1e9:.0f} GB, "
            f"and {free / 1e9:.0f} GB are free",
        )


def refuse_hvp(options: Options, density: Density) -> None:
    """Refuse an `hvp` of the user's that gives no vector, and a rule that needs one if none can be.

    Raises
    ------
    OptionError
        With what the user's function, or PyTensor, has to say.
    """
    if options.hvp is None:
        if options.window != 1 and options.jacobian in _OF_SECOND_DERIVATIVES:
            _refuse_second_derivative(options, density)
        return
    expected = "a function (x, v) -> H v of symbolic vectors, which gives another"
    v = density.x.type("v")
    try:
        product: Any = options.hvp(density.x, v)
        if not isinstance(product, Variable) or getattr(product.type, "ndim", None) != 1:
            raise TypeError(f"It gives {product}.")
        if others := _roots_beside(product, {density.x, v}):
            names = ", ".join(map(str, others))
            raise TypeError(f"It depends on {names}, too: put values in their place.")
    except Exception as error:
        raise invalid_option(options.sampler, "hvp", options.hvp, expected) from error


def _roots_beside(product: Variable, known: Set[Variable]) -> list[Variable]:
    """What a graph is made of beside constants and what is known."""
    roots = (v for v in ancestors([product]) if v.owner is None)
    return [root for root in roots if root not in known and not isinstance(root, Constant)]


def _refuse_second_derivative(options: Options, density: Density) -> None:
    try:
        with in_precision(density.dtype):
            density.hvp(density.x, density.x.type("v"))
    except Exception as error:
        raise invalid_option(
            options.sampler,
            "jacobian",
            options.jacobian,
            f"'secant' or 'preconditioned', as logp has no second derivative here ({error}), or "
            "have an hvp=... beside it",
        ) from error


def refuse_data(model: Model, point: Point) -> None:
    """Refuse data and parameters that hold NaN, where they make logp NaN: no start would help.

    Called where logp is not finite at `point`.
    """
    logps = term_logps(model, point)

    def spoilt(terms: Mapping[str, Sequence[Any]]) -> str:
        return ", ".join(n for n, term in terms.items() if np.isnan(logps[n]) and _hold_nan(term))

    if priors := spoilt({rv.name: [rv] for rv in model.free_RVs}):
        raise ModelError(
            f"logp of {priors} is NaN, and there is NaN among the numbers that its prior is "
            "computed from. Give it others."
        )
    terms = {var.name: [var] for var in model.potentials}
    terms |= {rv.name: [rv, model.rvs_to_values[rv]] for rv in model.observed_RVs}
    if likelihoods := spoilt(terms):
        raise ModelError(
            f"logp of {likelihoods} is NaN, and there is NaN in the data that it is computed "
            "from. Leave those rows out; or give missing values to observed=, and PyMC imputes "
            "them."
        )


def refuse_improper(
    solver: Solver, x: np.ndarray, model: Model, params: Sequence[np.ndarray]
) -> None:
    """Refuse a logp that does not change with some elements: their posterior is improper.

    An element counts if its gradient is exactly 0 beside x, shape (D,), and far from it, and if
    logp is the same to the last bit wherever such elements are moved. Angles do not: all round a
    circle such a posterior is proper.
    """
    layout, rng = solver.density.layout, np.random.default_rng(0)
    identity = identity_metric(solver.spec.metric, layout.size)

    def evaluate(at: np.ndarray) -> tuple[float, np.ndarray]:
        return solver.evaluate(at, identity, params)

    x = x + rng.uniform(-1.0, 1.0, len(x))
    logp, dlogp = evaluate(x)
    idle = dlogp == 0
    idle[layout.columns_of_angles] = False
    moved = x
    for far in _FAR:
        if not idle.any() or not np.isfinite(logp):
            return
        moved = np.where(idle, far * rng.standard_normal(len(x)), x)
        idle &= evaluate(moved)[1] == 0
    if idle.any() and evaluate(np.where(idle, moved, x))[0] == logp:
        rv_names = {value.name: rv.name for rv, value in model.rvs_to_values.items()}
        elements = ", ".join(_elements(idle, layout, rv_names))
        raise ModelError(
            f"{elements}: logp does not change with it, so there is no posterior to sample. Give "
            "it a proper prior, or leave it out."
        )


def _elements(chosen: np.ndarray, layout: Layout, rv_names: Mapping[str, str]) -> Iterator[str]:
    """The variables with chosen elements; the first of these where not all are chosen."""
    for value, where in layout.unravel(chosen.astype(float)).items():
        name = rv_names[value]
        if where.all() and where.size:
            yield name
        elif where.any():
            index = np.unravel_index(int(np.argmax(where)), where.shape)
            yield f"{name}[{', '.join(map(str, index))}]"


def _hold_nan(variables: Sequence[Any]) -> bool:
    """Whether anything that the variables are computed from is NaN."""
    for source in ancestors(variables):
        if isinstance(source, Constant):
            value = source.data
        elif isinstance(source, SharedVariable):
            value = source.get_value(borrow=True)
        else:
            continue
        if getattr(value, "dtype", np.dtype(object)).kind == "f" and np.isnan(value).any():
            return True
    return False
