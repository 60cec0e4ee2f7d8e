"""Where a chain starts: jittered unless the user said where, and only where logp is finite."""

from collections.abc import Collection, Generator, Sequence
from dataclasses import dataclass

import numpy as np
from pymc.model import Model

from pymc_deer.backends.base import Solver
from pymc_deer.density import Density
from pymc_deer.graphs.checks import term_logps
from pymc_deer.layout import Layout, Point
from pymc_deer.lockstep import in_lockstep
from pymc_deer.metric import identity_metric
from pymc_deer.status import StartError

_RETRIES = 100
"""Jittered points to try, as many as Stan tries, and then what they are around. All chains have to
start: of PyMC's ten, a chain misses all where one point of twenty is in order."""


@dataclass(frozen=True)
class Start:
    """A state and the gradient of logp there, both (D,)."""

    x: np.ndarray
    dlogp: np.ndarray


def find_starts(
    model: Model,
    solver: Solver,
    points: Sequence[Point],
    kept: Sequence[Collection[str]],
    params: Sequence[np.ndarray],
    rngs: Sequence[np.random.Generator],
) -> list[Start]:
    """Where each chain starts, in the density's dtype.

    PyMC jitters the starting points of NUTS and of no other step method. Here all variables but
    those in `kept` are moved by U(-1, 1), so that chains start apart, unless logp is finite nowhere
    but where the model puts them.

    Parameters
    ----------
    points
        Where PyMC would start them.
    kept
        Value variables of each chain that start where the user said.
    solver, params
        What evaluates logp and its gradient there, with the density's parameters.
    rngs
        Of each chain.

    Raises
    ------
    StartError
        Naming the terms of logp that are not finite, or the variable whose start has another shape.
    """
    identity = identity_metric(solver.spec.metric, solver.density.size)

    def evaluate(asked: Sequence[np.ndarray]) -> Sequence[tuple[float, np.ndarray]]:
        return solver.evaluate_together(asked, identity, params)

    trials = [
        _trials(model, solver.density, point, names, rng)
        for point, names, rng in zip(points, kept, rngs, strict=True)
    ]
    return in_lockstep(trials, evaluate)


def _trials(
    model: Model,
    density: Density,
    point: Point,
    kept: Collection[str],
    rng: np.random.Generator,
) -> Generator[np.ndarray, tuple[float, np.ndarray], Start]:
    """Yields states to try, and is sent logp and its gradient there."""
    layout = density.layout
    _refuse_shapes(model, layout, point)
    x = layout.ravel(point, "float64")
    free = np.repeat([name not in kept for name in layout.names], layout.sizes)
    candidate = x
    for i in range(_RETRIES + 1 if free.any() else 1):
        # Where nothing around the model's own start will do, that may.
        jitter = rng.uniform(-1.0, 1.0, len(x)) if i < _RETRIES else 0.0
        candidate = np.where(free, x + jitter, x)
        logp, dlogp = yield candidate
        if np.isfinite(logp) and np.isfinite(dlogp).all():
            return Start(candidate.astype(density.dtype), dlogp)
    raise StartError(_describe(model, {**point, **layout.unravel(candidate)}))


def _refuse_shapes(model: Model, layout: Layout, point: Point) -> None:
    """Refuse starting values of other shapes than the variables have, by the names users know."""
    names = {value.name: rv.name for rv, value in model.rvs_to_values.items()}
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        # Where the model has come to have another shape itself, that is what is to be told.
        given = np.shape(point[name])
        if given != shape and np.shape(model.initial_point()[name]) == shape:
            raise wrong_shape(names[name], given, shape)


def wrong_shape(name: str, given: tuple[int, ...], shape: tuple[int | None, ...]) -> StartError:
    """Of a starting value."""
    return StartError(
        f"The chain cannot start: the starting value of {name} has the shape {given}, and the "
        f"variable {shape}. Write initvals={{{name!r}: ...}} with an array of its shape."
    )


def _describe(model: Model, point: Point) -> str:
    outside = [
        rv.name
        for rv, value in model.rvs_to_values.items()
        if value.name in point and not np.isfinite(point[value.name]).all()
    ]
    if outside:
        return (
            f"The chain cannot start: the starting value of {', '.join(outside)} lies outside of "
            "what the variable can be. Give another one, initvals={...}."
        )
    terms = term_logps(model, point)
    bad = [
        f"{name} is {'NaN' if np.isnan(value) else value}"
        for name, value in terms.items()
        if not np.isfinite(value)
    ]
    what = f"logp of {', '.join(bad)}" if bad else "the gradient of logp is not finite"
    observed = [rv.name for rv in model.observed_RVs if not np.isfinite(terms.get(rv.name, 0.0))]
    data = f"the data of {', '.join(observed)} and " if observed else ""
    return (
        f"The chain cannot start: {what}. Give finite starting values, initvals={{...}}, or look "
        f"at {data}model.debug()."
    )
