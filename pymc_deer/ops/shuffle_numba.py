"""Numba implementation of :class:`~pymc_deer.ops.shuffle.Shuffle`: a view, by one intrinsic."""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
from numba.core import cgutils, types
from numba.core.imputils import impl_ret_borrowed
from numba.extending import intrinsic
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_deer.ops.inline_numba import inlined_in_graphs
from pymc_deer.ops.numba_source import key_of
from pymc_deer.ops.shuffle import Shuffle

_NEW = -1
"""Stands for a new axis where axes are listed."""


@register_funcify_and_cache_key(Shuffle)
def numba_funcify_shuffle(op: Shuffle, node: Apply, **kwargs: object) -> Any:
    shape: Sequence[int | None] = node.inputs[0].type.shape
    long_axes = tuple(axis for axis, n in enumerate(shape) if n != 1)
    order = tuple(_NEW if axis == "x" else axis for axis in op.new_order)
    view = _view_of(order, long_axes)

    @numba_njit
    def of_array(x: Any) -> Any:
        return view(x)

    @numba_njit
    def of_scalar(x: Any) -> Any:
        # Numba has some arrays of no dimensions as numbers.
        return view(np.asarray(x))

    shuffled = of_array if shape else of_scalar
    return inlined_in_graphs(shuffled), key_of(str(type(op)), str(order), str(long_axes))


@cache
def _view_of(order: tuple[int, ...], long_axes: tuple[int, ...]) -> Callable[..., Any]:
    """A function that gives the view: which axes, in which order, and all those longer than 1."""

    @intrinsic
    def view(typing_context: Any, x: types.Array) -> Any:
        result = types.Array(x.dtype, len(order), _layout(x.layout, order, long_axes))

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            given = context.make_array(x)(context, builder, value=arguments[0])
            made = context.make_array(result)(context, builder)
            for_new = {"shape": 1, "strides": 0}
            integer = context.get_value_type(types.intp)
            lengths = {}
            for name, new in for_new.items():
                old = cgutils.unpack_tuple(builder, getattr(given, name))
                numbers = [integer(new) if axis == _NEW else old[axis] for axis in order]
                lengths[name] = cgutils.pack_array(builder, numbers, ty=integer)
            context.populate_array(
                made,
                data=given.data,
                itemsize=given.itemsize,
                meminfo=given.meminfo,
                parent=given.parent,
                **lengths,
            )
            return impl_ret_borrowed(context, builder, result, made._getvalue())

        return result(x), generate

    return view


def _layout(layout: str, order: Sequence[int], long_axes: Sequence[int]) -> str:
    """How the view lies in memory, as Numba has it: axes of length 1 may be anywhere."""
    kept = [axis for axis in order if axis in long_axes]
    if layout in "CF" and kept == sorted(kept):
        same = layout
    elif layout in "CF" and kept == sorted(kept, reverse=True):
        same = "F" if layout == "C" else "C"
    else:
        return "A"
    return "C" if len(order) < 2 or len(kept) < 2 else same
