"""How kernels of our own are called, in Pallas.

Imported where there is a GPU: Pallas takes longer to import than all of JAX.
"""

import warnings
from collections.abc import Callable
from typing import Any

from jax.experimental import pallas as pl


def kernel(*arguments: Any, **options: Any) -> Callable[..., Any]:
    """As Pallas's own call of a kernel, for its backend that compiles by Triton.

    JAX warns that it will be gone from a later version, which there is nothing for users to do
    about: where kernels cannot be compiled, XLA's own are taken, and that is logged. A filter that
    makes an error of the warning would have the same effect, hence one before it, which stays: JAX
    compiles when the program first runs, be it in another thread.
    """
    warnings.filterwarnings("ignore", "The Pallas Triton backend", DeprecationWarning)
    return pl.pallas_call(*arguments, **options)
