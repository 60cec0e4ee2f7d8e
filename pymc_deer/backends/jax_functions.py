"""PyTensor's programs as functions that JAX can trace, and what it makes of them."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from pytensor.compile.mode import Mode

from pymc_deer.sweep import Program


def compiled(program: Program, mode: Mode) -> Callable[..., Any]:
    """The program as a JAX function, traced once to see that it can be."""
    with warnings.catch_warnings():
        # PyTensor's dispatch warns of what JAX may not trace; whether it does is tried next.
        warnings.filterwarnings("ignore", module="pytensor.link.jax")
        warnings.filterwarnings("ignore", message="Skipping .* Op", category=UserWarning)
        function = program.linked(mode)
    jax.eval_shape(function, *map(abstract, program.inputs))
    return function


def sizes(jaxpr: Any) -> Iterator[int]:
    """Bytes of each intermediate result, but for transposed data."""
    for equation in jaxpr.eqns:
        inner = [p for p in equation.params.values() if hasattr(p, "jaxpr")]
        for closed in inner:
            yield from sizes(closed.jaxpr)
        if not inner and equation.primitive.name != "transpose":
            yield from (v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)


def abstract(variable: Any) -> jax.ShapeDtypeStruct:
    """An input of the program, as far as tracing needs it."""
    # What is left open (the rank of a metric) must trace whatever its length.
    shape = tuple(1 if n is None else n for n in variable.type.shape)
    return jax.ShapeDtypeStruct(shape, variable.type.dtype)
