"""PyTensor's programs as functions that JAX can trace, and what it makes of them."""

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import jax
from pytensor.compile.mode import Mode

from pymc_deer.sweep import Program
from pymc_deer.warning_filters import own_filters


def compiled(program: Program, mode: Mode) -> Callable[..., Any]:
    """The program as a JAX function, traced once to see that it can be."""
    with own_filters():
        # PyTensor's dispatch warns of what JAX may not trace; whether it does is tried next.
        warnings.filterwarnings("ignore", module="pytensor.link.jax")
        warnings.filterwarnings("ignore", message="Skipping .* Op", category=UserWarning)
        function = program.linked(mode)
    jax.eval_shape(function, *map(abstract, program.inputs))
    return function


def largest_result(function: Callable[..., Any], program: Program) -> int:
    """Bytes of the largest intermediate result of the program's function."""
    traced = jax.make_jaxpr(function)(*map(abstract, program.inputs))
    return max(_sizes(traced), default=0)


def _sizes(jaxpr: Any) -> Iterator[int]:
    """Bytes of each intermediate result in memory, but for transposed data."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        inner = [] if name == "pallas_call" else list(_inside(equation))
        for inside in inner:
            yield from _sizes(inside)
        if not inner and name != "transpose":
            yield from (v.aval.size * v.aval.dtype.itemsize for v in equation.outvars)


def _inside(equation: Any) -> Iterator[Any]:
    for value in equation.params.values():
        parts = value if isinstance(value, tuple) else (value,)
        yield from (part for part in parts if hasattr(part, "eqns"))


def abstract(variable: Any) -> jax.ShapeDtypeStruct:
    """An input of the program, as far as tracing needs it."""
    # What is left open (the rank of a metric) must trace whatever its length.
    shape = tuple(1 if n is None else n for n in variable.type.shape)
    return jax.ShapeDtypeStruct(shape, variable.type.dtype)
