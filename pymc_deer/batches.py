"""The same arithmetic for a row wherever it stands: batches of one length."""

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
    missing = -len(rows) % length
    padded = np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)])
    parts = [function(padded[i : i + length]) for i in range(0, len(padded), length)]
    return [np.concatenate(columns)[: len(rows)] for columns in zip(*parts, strict=True)]
