"""Numba calls elementary functions for several numbers at once, where C's library has such calls.

LLVM vectorises a loop around a function if it is told of variants of it for vectors. The GNU C
library has them for x86-64, in ``libmvec``: exponentials take a third of the time, within 4 units
in the last place. Numba knows of no such library but Intel's, which its wheels are not built for.

A call says by an attribute which variants there are (LLVM, "Vector Function ABI Variants"), and
nothing outside our own functions changes.
"""

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
from llvmlite import binding, ir
from numba.core import types
from numba.extending import intrinsic
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key
from pytensor.scalar.basic import ScalarOp
from pytensor.scalar.math import Sigmoid, Softplus

from pymc_deer.ops.numba_source import key_of
from pymc_deer.ops.vector_math import CALLED, VECTOR_OPS

_LIBRARY = "libmvec.so.1"

_BYTES = {"b": 16, "d": 32, "e": 64}
_FEATURES = {"b": "+sse2", "d": "+avx2", "e": "+avx512f"}
"""Vectors that variants take, and what a processor must have, by their letters in names."""


@cache
def _load_library() -> None:
    with suppress(RuntimeError):
        binding.load_library_permanently(_LIBRARY)


def _symbol(letter: str, name: str, bits: int) -> str:
    """The library's name of a variant, for numbers of so many bits."""
    lanes = 8 * _BYTES[letter] // bits
    return f"_ZGV{letter}N{lanes}v_{name}{'f' if bits == 32 else ''}"


@cache
def has_variants(name: str) -> bool:
    """Whether the machine's C library has a function for vectors of all kinds."""
    _load_library()
    symbols = [_symbol(letter, name, bits) for letter in _BYTES for bits in (32, 64)]
    return all(binding.address_of_symbol(symbol) is not None for symbol in symbols)


def _call(name: str) -> Callable[..., Any]:
    """The function of C's library, of float32 or float64, with its variants."""

    @intrinsic
    def call(typing_context: Any, x: types.Float) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            features = context.codegen().magic_tuple()[2].split(",")
            letters = [letter for letter, needed in _FEATURES.items() if needed in features]
            function = _declared(builder.module, name, x.bitwidth, letters)
            return builder.call(function, arguments)

        return x(x), generate

    return call


def _declared(module: ir.Module, name: str, bits: int, letters: list[str]) -> ir.Function:
    """The function as a module has it, with the variants of those kinds."""
    number = ir.FloatType() if bits == 32 else ir.DoubleType()
    scalar = name + ("f" if bits == 32 else "")
    if scalar in module.globals:
        return module.globals[scalar]
    function = ir.Function(module, ir.FunctionType(number, [number]), scalar)
    variants, mappings = [], []
    for letter in letters:
        symbol, lanes = _symbol(letter, name, bits), 8 * _BYTES[letter] // bits
        vector = ir.VectorType(number, lanes)
        variants.append(ir.Function(module, ir.FunctionType(vector, [vector]), symbol))
        mappings.append(f"_ZGV_LLVM_N{lanes}v_{scalar}({symbol})")
    # llvmlite knows few of LLVM's attributes by name.
    for attribute in ("nounwind", "willreturn", "memory(none)"):
        set.add(function.attributes, attribute)
    if variants:
        set.add(function.attributes, f'"vector-function-abi-variant"="{",".join(mappings)}"')
        _keep(module, variants)
    return function


def _keep(module: ir.Module, functions: list[ir.Function]) -> None:
    """Have LLVM keep functions that nobody calls yet."""
    pointer = ir.IntType(8).as_pointer()
    used = [function.bitcast(pointer) for function in functions]
    array = ir.ArrayType(pointer, len(used))
    kept = ir.GlobalVariable(module, array, "llvm.compiler.used")
    kept.linkage, kept.section = "appending", "llvm.metadata"
    kept.initializer = ir.Constant(array, used)  # type: ignore[assignment]


def _compiled(name: str) -> Callable[..., Any]:
    """The function, in a module of its own: a module has one list of what is kept."""
    call = _call(name)

    def function(x: Any) -> Any:
        return call(x)

    return numba_njit(function)


_COMPILED = {name: _compiled(name) for names in CALLED.values() for name in names}
_exp, _log1p = _COMPILED["exp"], _COMPILED["log1p"]

# Numbers of float32 take the type of what they meet. There are no branches: they keep a loop from
# being vectorised.


@numba_njit
def _sigmoid(x: Any) -> Any:
    # Numba's own division raises an error where it is by 0, by a branch.
    return np.divide(np.float32(1), np.float32(1) + _exp(-x))


@numba_njit
def _softplus(x: Any) -> Any:
    return max(x, np.float32(0)) + _log1p(_exp(-abs(x)))


_COMPOSED: dict[type[ScalarOp], Callable[..., Any]] = {Sigmoid: _sigmoid, Softplus: _softplus}


def _register(op: type[ScalarOp], ours: type[ScalarOp]) -> None:
    function = _COMPOSED.get(op) or _COMPILED[CALLED[op][0]]
    key = key_of(str(ours))

    @register_funcify_and_cache_key(ours)
    def numba_funcify_vector_op(_: ScalarOp, node: object = None, **kwargs: object) -> Any:
        return function, key


for _op, _ours in VECTOR_OPS.items():
    _register(_op, _ours)
