"""Functions of Numba's that call their own copies of others, whichever the process has loaded."""

from typing import Any

import pytest

pytest.importorskip("numba")

from pytensor.link.numba.dispatch.basic import numba_njit

from pymc_deer.ops.numba_source import compiled_under


@numba_njit
def called(n: int) -> int:
    """What LLVM does not inline: it calls itself, twice."""
    if n < 2:
        return n
    return called(n - 1) + called(n - 2)


def linkages(**options: Any) -> dict[str, str]:
    """Of the functions that the code of one has, by their names."""
    source = "def run(n):\n    return inner(n)"
    run: Any = compiled_under(None, source, "run", {"inner": called}, **options)
    assert run(10) == 55
    [compiled] = run.overloads.values()
    functions = compiled.library._final_module.functions
    return {f.name: f.linkage.name for f in functions if not f.is_declaration}


def copies(found: dict[str, str]) -> set[str]:
    """How those are linked that others than Numba have written, and that callers have copies of."""
    return {
        linkage
        for name, linkage in found.items()
        if not name.startswith("NRT_") and linkage != "external"
    }


def test_copies_are_its_own() -> None:
    assert copies(linkages()) == {"internal"}


def test_as_numba_leaves_them_they_are_anyones() -> None:
    from numba.core.compiler import Compiler

    assert copies(linkages(pipeline_class=Compiler)) == {"linkonce_odr"}
