"""Batches of one length: the same arithmetic for a row wherever it stands, and one program."""

from collections.abc import Callable, Sequence

import numpy as np


def in_batches(
    function: Callable[[np.ndarray], Sequence[np.ndarray]],
    rows: np.ndarray,
    length: int,
    first: int = 0,
) -> list[np.ndarray]:
    """What `function` makes of rows, (n, D): arrays (n, ...), to the last bit as among any others.

    Matrix products round differently in batches of other lengths, and at other places in a batch,
    and what is computed of a draw should not depend on where its stretch ended. So each call has
    `length` rows, and a row's place among them follows from its number, the first one's being
    `first`. Where some are missing, others are there in their stead.

    Examples
    --------
    >>> import numpy as np
    >>> [twice] = in_batches(lambda rows: [2 * rows], np.arange(3.0)[:, None], 2)
    >>> twice.ravel()
    array([0., 2., 4.])
    """
    rows, n, before = np.ascontiguousarray(rows), len(rows), first % length
    places = range(-before, n, length)
    parts = [function(_filled(rows, place, length)) for place in places]
    columns = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return [column[before : before + n] for column in columns]


def _filled(rows: np.ndarray, place: int, length: int) -> np.ndarray:
    """The `length` rows from one on: beyond either end the one that is there."""
    if 0 <= place <= len(rows) - length:
        return rows[place : place + length]
    return rows[np.clip(np.arange(place, place + length), 0, len(rows) - 1)]


def as_many[T](items: Sequence[T], n: int) -> list[T]:
    """The items, and the first one again until there are n: a batch that is compiled for n."""
    return [*items, *[items[0]] * (n - len(items))]
