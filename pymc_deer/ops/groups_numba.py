"""Numba implementation of :class:`~pymc_deer.ops.groups.GroupValues` and ``GroupSums``."""

from typing import Any

import numpy as np
from pytensor.graph.basic import Apply
from pytensor.link.numba.dispatch.basic import numba_njit, register_funcify_and_cache_key

from pymc_deer.ops.groups import GroupSums, GroupValues
from pymc_deer.ops.numba_source import from_source

_VALUES = """
def group_values(values, {indices}):
    {groups}
    found = np.empty(len(group_0), values.dtype)
    for i in range(len(found)):
        found[i] = values[{group}]
    return found
"""

_SUMS = """
def group_sums(rows, {indices}):
    {groups}
    sums = np.zeros({shape}, rows.dtype)
    for i in range(len(rows)):
        sums[{group}] += rows[i]
    return sums
"""

_INNER = "counted from first"
"""The name on disk of what is called besides."""


@numba_njit
def _counted_from_first(index: Any, n_groups: Any) -> Any:
    """The index, of which nothing is below 0 or too large."""
    first, last = 0, -1
    for i in range(len(index)):
        first, last = min(first, index[i]), max(last, index[i])
    if first < -n_groups or last >= n_groups:
        raise IndexError("An index is not that of a group.")
    # Unsigned, so that Numba does not look for those below 0 again.
    if first == 0:
        return np.ascontiguousarray(index).view(np.uint64)
    groups = np.empty(len(index), np.uint64)
    for i in range(len(index)):
        groups[i] = index[i] + n_groups if index[i] < 0 else index[i]
    return groups


@register_funcify_and_cache_key(GroupValues)
def numba_funcify_group_values(op: GroupValues, node: Apply, **kwargs: object):
    lengths = [f"values.shape[{axis}]" for axis in range(len(node.inputs) - 1)]
    source = _VALUES.format(**_parts(lengths))
    return from_source("group_values", source, _counted_from_first, _INNER)


@register_funcify_and_cache_key(GroupSums)
def numba_funcify_group_sums(op: GroupSums, node: Apply, **kwargs: object):
    source = _SUMS.format(shape=op.shape, **_parts([str(n) for n in op.shape]))
    return from_source("group_sums", source, _counted_from_first, _INNER)


def _parts(lengths: list[str]) -> dict[str, str]:
    """What the sources have for each axis, of so many groups."""
    axes = range(len(lengths))
    return {
        "indices": ", ".join(f"index_{axis}" for axis in axes),
        "groups": "\n    ".join(
            f"group_{axis} = inner(index_{axis}, {lengths[axis]})" for axis in axes
        ),
        "group": ", ".join(f"group_{axis}[i]" for axis in axes),
    }
