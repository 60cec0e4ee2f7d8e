"""What all test layers share."""

import os

BACKENDS = tuple(os.environ.get("PYMC_DEER_TEST_BACKENDS", "numba,jax").split(","))
"""Backends under test: all of them, unless the environment names fewer."""
