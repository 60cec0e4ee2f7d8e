"""Functions of elements that Numba compiles as one, rather than one for each of their operations.

PyTensor fuses successive functions of elements into one, a ``Composite``, and has Numba compile a
function, and another one around it, for each sum, product or comparison in it. A large model has a
hundred of them, a hundredth of a second each. The dispatch lives in ``inlined_composite_numba``;
``backends.numba_mode`` puts the Op into graphs.
"""

from pytensor.scalar.basic import Composite


class InlinedComposite(Composite):
    """A ``Composite`` in all but the way in which Numba compiles it."""
