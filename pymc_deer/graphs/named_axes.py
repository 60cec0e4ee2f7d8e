"""Variables whose axes have names, as those of `pymc.dims`, as the arrays that they hold.

PyTensor lowers names to positions when it compiles; a density is differentiated and vectorised
before that, as PyTensor can only without names.
"""

from collections.abc import Sequence

from pytensor.graph.rewriting.utils import rewrite_graph
from pytensor.tensor.type import TensorType
from pytensor.xtensor.basic import tensor_from_xtensor, xtensor_from_tensor
from pytensor.xtensor.type import XTensorType

from pymc_deer.typing import Tensor

ARRAY_TYPES = (TensorType, XTensorType)
"""Types of variables that hold an array, with names for its axes or without."""


def array_like(variable: Tensor, shape: tuple[int | None, ...] | None = None) -> Tensor:
    """A fresh input for the variable's values, of its name, its dtype, and its shape or `shape`."""
    shape = variable.type.shape if shape is None else shape
    # `pytensor.tensor.tensor` takes no name that means a dtype, such as "long" or "half".
    return TensorType(variable.type.dtype, shape)(variable.name)


def named_as(variable: Tensor, array: Tensor) -> Tensor:
    """`array`, to stand where the variable does: with its names, if it has any."""
    if isinstance(variable.type, XTensorType):
        return xtensor_from_tensor(array, dims=variable.type.dims)
    return array


def without_names(outputs: Sequence[Tensor]) -> list[Tensor]:
    """The same computed without names, from inputs that have none."""
    arrays = [tensor_from_xtensor(v) if isinstance(v.type, XTensorType) else v for v in outputs]
    lowering = ("lower_xtensor", "inline_ofg_expansion_xtensor")
    return list(rewrite_graph(arrays, include=lowering))  # type: ignore[arg-type]
