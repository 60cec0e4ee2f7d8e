"""The device that chains run on, unless the user says otherwise."""

from typing import Any

import jax


def default_device() -> Any:
    """That to which JAX sends arrays by itself, as ``jax.config.jax_default_device`` says."""
    asked = jax.config.jax_default_device
    if asked is None:
        return jax.local_devices()[0]
    return jax.local_devices(backend=asked)[0] if isinstance(asked, str) else asked
