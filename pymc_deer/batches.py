"""Batches of one length: the same arithmetic for a row wherever it stands, and one program."""

from collections.abc import Callable, Sequence

import numpy as np


def in_batches(
    function: Callable[[np.ndarray], Sequence[np.ndarray]], rows: np.ndarray, length: int
) -> list[np.ndarray]:
    """What `function` makes of rows, (n, D): arrays (n, ...), to the last bit as in any other n.

    Matrix products round differently in batches of other lengths, and what is computed of a draw
    should not depend on where its stretch ended. So each call has `length` rows, the last of all
    repeated where some are missing.

    Examples
    --------
    >>> import numpy as np
    >>> [twice] = in_batches(lambda rows: [2 * rows], np.arange(3.0)[:, None], 2)
    >>> twice.ravel()
    array([0., 2., 4.])
    """
    rows, n = np.ascontiguousarray(rows), len(rows)
    whole = n - n % length
    parts = [function(rows[i : i + length]) for i in range(0, whole, length)]
    if whole < n:
        padded = np.empty((length, *rows.shape[1:]), rows.dtype)
        padded[: n - whole], padded[n - whole :] = rows[whole:], rows[-1]
        parts.append(function(padded))
    columns = parts[0] if len(parts) == 1 else map(np.concatenate, zip(*parts, strict=True))
    return [column[:n] for column in columns]


def as_many[T](items: Sequence[T], n: int) -> list[T]:
    """The items, and the first one again until there are n: a batch that is compiled for n."""
    return [*items, *[items[0]] * (n - len(items))]
