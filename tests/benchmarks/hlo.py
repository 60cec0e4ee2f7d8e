"""What the loops of a compiled program consist of, read from XLA's text of it."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

_FREE = ("parameter", "constant", "tuple", "get-tuple-element", "bitcast", "while", "after-all")
"""What no kernel runs for, but for what is inside of a loop."""

_COMPUTATION = re.compile(r"^(?:ENTRY )?%?([\w.\-]+) \(.*\{$")
_LINE = re.compile(r"^\s+(?:ROOT )?%?([\w.\-]+) = (.*?) ([a-z][a-z\-]*)\((.*?)\)(.*)$")
_ARRAY = re.compile(r"\b(?!s8\[)(?:pred|bf|[a-z])(\d*)\[([\d,]*)\]")
"""All but signed bytes, which are the scratch space of cuBLAS."""


@dataclass(frozen=True)
class Work:
    """Kernels of one round of a loop, those of them that cuBLAS runs, and bytes of all operands.

    `inside` is that of a loop inside of it.
    """

    kernels: int
    products: int
    n_bytes: int
    inside: "Work | None"


@dataclass(frozen=True)
class _Instruction:
    name: str
    n_bytes: int
    operation: str
    operands: tuple[str, ...]
    rest: str


def work_of_loop(text: str) -> Work:
    """Of the last loop of the program whose text this is: what goes before it prepares it.

    Raises
    ------
    ValueError
        If it has none.
    """
    computations = dict(_computations(text))
    entry = computations[next(name for name in computations if f"ENTRY %{name} " in text)]
    found = _loop_within(entry, computations)
    if found is None:
        raise ValueError("The program has no loop.")
    return found


def _loop_within(body: list[_Instruction], every: dict[str, list[_Instruction]]) -> Work | None:
    loops = (re.search(r"body=%([\w.\-]+)", i.rest) for i in body if i.operation == "while")
    names = [loop[1] for loop in loops if loop]
    if not names:
        return None
    name = names[-1]
    sizes = {i.name: i.n_bytes for i in every[name]}
    kernels = [i for i in every[name] if i.operation not in _FREE]
    moved = sum(i.n_bytes + sum(sizes.get(o, 0) for o in i.operands) for i in kernels)
    products = sum('custom_call_target="__cublas' in i.rest for i in kernels)
    return Work(len(kernels), products, moved, _loop_within(every[name], every))


def _computations(text: str) -> Iterator[tuple[str, list[_Instruction]]]:
    name, body = None, []
    for line in text.splitlines():
        if begun := _COMPUTATION.match(line):
            name, body = begun[1], []
        elif line.startswith("}") and name is not None:
            yield name, body
            name = None
        elif name is not None and (found := _LINE.match(line)):
            operands = tuple(re.findall(r"%([\w.\-]+)", found[4]))
            body.append(_Instruction(found[1], _size(found[2]), found[3], operands, found[5]))


def _size(types: str) -> int:
    """Bytes of an array, or of all of a tuple."""
    arrays = _ARRAY.findall(types)
    return sum(
        prod(int(n) for n in shape.split(",") if n) * int(bits or 8) // 8 for bits, shape in arrays
    )
