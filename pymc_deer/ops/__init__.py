"""PyTensor Ops of our own, and how JAX and Numba run them.

An Op's own module says what it computes and where it is put in. ``OP_jax`` and ``OP_numba`` have
its dispatches, and are imported by the backend that needs them.
"""
