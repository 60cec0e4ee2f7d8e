"""What NumPy says of overflows and the like, which chains have for good reasons."""

from functools import partial

import numpy as np

as_numpy_does = partial(np.errstate, divide="warn", over="warn", under="ignore", invalid="warn")
"""NumPy's own settings, whatever the user's are: probabilities underflow, and no harm is done."""
