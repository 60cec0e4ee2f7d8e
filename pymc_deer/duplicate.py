"""Copies of plain state."""

from typing import Any


def duplicate[T](state: T, **changes: Any) -> T:
    """The same object once more, with other values of some attributes; the rest is shared.

    As `dataclasses.replace` and `copy.copy`, which take longer than a short stretch of chain to
    find out how, and leave behind what pickling does.

    Examples
    --------
    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Place:
    ...     x: float
    ...     y: float
    >>> duplicate(Place(1.0, 2.0), y=3.0)
    Place(x=1.0, y=3.0)
    """
    other = object.__new__(type(state))
    object.__setattr__(other, "__dict__", vars(state) | changes)
    return other
