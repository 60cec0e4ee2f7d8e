"""Dataclasses of numbers, arrays and generators as bytes, and back, without pickle.

What is read back is the same to the last bit, types of scalars included, and what was one object
is one object again. Nothing in the bytes is run: only classes that the reader names are made.
"""

import io
import json
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from pymc_deer.noise import generator_at

_TREE = "tree"
"""Entry of the archive that holds everything but the arrays, as JSON."""


def packed(value: Any) -> bytes:
    """Dataclasses, lists, tuples, dicts with strings as keys, arrays, numbers, generators.

    Raises
    ------
    TypeError
        For anything else in `value`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(1)
    >>> again = unpacked(packed({"rng": rng, "row": (0.1, np.arange(2))}), [])
    >>> again["row"]
    (0.1, array([0, 1]))
    >>> bool(again["rng"].random() == rng.random())
    True
    """
    packer = _Packer()
    tree = packer.pack(value)
    archive = io.BytesIO()
    arrays: dict[str, Any] = {_TREE: np.array(json.dumps(tree)), **packer.arrays}
    np.savez(archive, **arrays)
    return archive.getvalue()


def unpacked(data: bytes, classes: Sequence[type]) -> Any:
    """What :func:`packed` was given.

    Parameters
    ----------
    classes
        The dataclasses that it may contain.

    Raises
    ------
    ValueError, KeyError
        If `data` is something else.
    """
    with np.load(io.BytesIO(data), allow_pickle=False) as archive:
        tree = json.loads(str(archive[_TREE]))
        return _Unpacker(archive, {kind.__name__: kind for kind in classes}).unpack(tree)


class _Packer:
    def __init__(self) -> None:
        self.arrays: dict[str, np.ndarray] = {}
        # By identity: the objects are kept, so that no other is given the same one.
        self._seen: dict[int, tuple[str, Any]] = {}

    def pack(self, value: Any) -> Any:
        # NumPy's float64 is a float too, and computes in other types than Python's.
        if isinstance(value, np.generic):
            return {"scalar": self._array(np.asarray(value))}
        if value is None or isinstance(value, bool | int | float | str):
            return value
        if isinstance(value, list):
            return [self.pack(item) for item in value]
        if isinstance(value, tuple):
            return {"tuple": [self.pack(item) for item in value]}
        if isinstance(value, dict):
            return {"dict": {key: self.pack(item) for key, item in value.items()}}
        if isinstance(value, np.random.Generator):
            return {"generator": self.pack(value.bit_generator.state)}
        if id(value) in self._seen:
            return {"again": self._seen[id(value)][0]}
        name = str(len(self._seen))
        self._seen[id(value)] = name, value
        if isinstance(value, np.ndarray) and value.dtype.kind in "biufcU":
            return {"array": self._array(value), "name": name}
        if is_dataclass(value) and not isinstance(value, type):
            content = {f.name: self.pack(getattr(value, f.name)) for f in fields(value)}
            return {"class": type(value).__name__, "name": name, "fields": content}
        raise TypeError(f"{type(value).__name__} is nothing that can be stored")

    def _array(self, array: np.ndarray) -> str:
        name = f"a{len(self.arrays)}"
        self.arrays[name] = array
        return name


class _Unpacker:
    def __init__(self, arrays: Any, classes: dict[str, type]) -> None:
        self._arrays, self._classes = arrays, classes
        self._made: dict[str, Any] = {}

    def unpack(self, tree: Any) -> Any:
        if isinstance(tree, list):
            return [self.unpack(item) for item in tree]
        if not isinstance(tree, dict):
            return tree
        [kind, *_] = tree
        content = tree[kind]
        if kind == "scalar":
            return self._arrays[content][()]
        if kind == "tuple":
            return tuple(self.unpack(item) for item in content)
        if kind == "dict":
            return {key: self.unpack(item) for key, item in content.items()}
        if kind == "generator":
            state = self.unpack(content)
            return generator_at(getattr(np.random, state["bit_generator"]), state)
        if kind == "again":
            return self._made[content]
        made = self._arrays[content] if kind == "array" else self._instance(tree)
        self._made[tree["name"]] = made
        return made

    def _instance(self, tree: Any) -> Any:
        content = {name: self.unpack(item) for name, item in tree["fields"].items()}
        return self._classes[tree["class"]](**content)
