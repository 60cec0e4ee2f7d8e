"""Numba's compiler, for functions that run the same code whatever the process has compiled before.

A function's code has copies of functions that it calls and LLVM has not inlined. As Numba leaves
them, the first copy of a name that a process loads is the one that all code in it calls: where a
function has just been compiled, those that were compiled on the way, and where it comes from disk,
its own. LLVM has optimised these once more, and may sum in another order.
"""

from typing import Any

from numba.core.codegen import JITCodeLibrary
from numba.core.compiler import Compiler

_COPIED = "linkonce_odr"
"""How LLVM calls what may be there several times, once for each who needs it."""

_OF_NUMBA = "NRT_"
"""Functions of Numba's own begin so, which it knows by their names."""


class _Library(JITCodeLibrary):
    """Code that calls its own copies."""

    def _optimize_final_module(self) -> None:
        # What is inlined is decided before, as elsewhere.
        super()._optimize_final_module()
        module: Any = self._final_module
        for function in module.functions:
            is_copy = not function.is_declaration and function.linkage.name == _COPIED
            if is_copy and not function.name.startswith(_OF_NUMBA):
                function.linkage = "internal"


class SelfContained(Compiler):
    """To be given to Numba as ``pipeline_class``."""

    def __init__(self, typingctx: Any, targetctx: Any, library: Any, *rest: Any) -> None:
        if library is None:
            library = _Library(targetctx.codegen(), type(self).__name__)
            # As Numba does with those that it makes.
            library.enable_object_caching()
        super().__init__(typingctx, targetctx, library, *rest)
