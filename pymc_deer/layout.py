# pyright: reportArgumentType=false, reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""Where a model's value variables lie in one raveled, unconstrained vector."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise, starmap
from math import prod

import numpy as np
from pymc.logprob.transforms import CircularTransform
from pymc.model import Model

from pymc_deer.status import ModelError
from pymc_deer.typing import Tensor

Point = Mapping[str, np.ndarray]

_CIRCULAR = CircularTransform.__name__
"""What the class for angles is called, also that of `pymc.dims`, which is another one."""


@dataclass(frozen=True)
class Layout:
    """Where each value variable lies in the raveled vector.

    Attributes
    ----------
    names, shapes, dtypes
        One entry per value variable, in the model's order.
    angles
        Which of them are angles, as `pm.VonMises` has them: 2 pi on, the density is the same.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    angles: tuple[bool, ...]

    @classmethod
    def of(cls, values: Sequence[Tensor], point: Point, model: Model) -> "Layout":
        """That of some value variables, of the shapes that they have at a point."""
        transforms = {model.rvs_to_values[rv]: t for rv, t in model.rvs_to_transforms.items()}
        return cls(
            names=tuple(v.name for v in values),
            shapes=tuple(np.shape(point[v.name]) for v in values),
            dtypes=tuple(v.dtype for v in values),
            angles=tuple(type(transforms.get(v)).__name__ == _CIRCULAR for v in values),
        )

    @cached_property
    def sizes(self) -> list[int]:
        """Numbers that each of them has."""
        return [prod(shape) for shape in self.shapes]

    @cached_property
    def size(self) -> int:
        """D, the dimension of the raveled vector."""
        return sum(self.sizes)

    @cached_property
    def columns_of_angles(self) -> np.ndarray:
        """Where the angles lie in the raveled vector, shape (A,)."""
        return np.flatnonzero(np.repeat(self.angles, self.sizes))

    @cached_property
    def _parts(self) -> list[tuple[str, slice, tuple[int, ...], str]]:
        """Of each its name, where it lies in the raveled vector, shape and dtype."""
        places = starmap(slice, pairwise(accumulate(self.sizes, initial=0)))
        return list(zip(self.names, places, self.shapes, self.dtypes, strict=True))

    def ravel(self, point: Point, dtype: str) -> np.ndarray:
        """Raveled copy, shape (D,), of the point's values."""
        for name, shape in zip(self.names, self.shapes, strict=True):
            if np.shape(point[name]) != shape:
                raise changed_shape(name, shape, np.shape(point[name]))
        return np.concatenate([np.asarray(point[n], dtype=dtype).ravel() for n in self.names])

    def unravel(self, x: np.ndarray) -> dict[str, np.ndarray]:
        """Values by name, each in its own shape and dtype: views of x where x is of that dtype."""
        return {n: x[at].reshape(s).astype(t, copy=False) for n, at, s, t in self._parts}

    def unravel_symbolic(self, x: Tensor) -> dict[str, Tensor]:
        """The same of a symbolic x, shape (D,)."""
        return {n: x[at].reshape(s).astype(t) for n, at, s, t in self._parts}


def changed_shape(name: str, old: tuple[int, ...], new: tuple[int, ...]) -> ModelError:
    """What to raise of something that is not as it was when the density was built."""
    return ModelError(
        f"{name} changed from shape {old} to {new} since this step was made. Make the step anew, "
        "after the change."
    )


def other_type(name: str, expected: np.dtype, given: np.dtype) -> ModelError:
    """What to raise of a variable's values that are not of its type, and do not become it."""
    return ModelError(
        f"{name}: another step gives it values of type {given}, and it is of type {expected}. Have "
        "that step give values of its type."
    )
