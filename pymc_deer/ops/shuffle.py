"""Axes in another order, put in or left out, as an Op that Numba compiles fast.

PyTensor has Numba compile three to five functions for it, in a tenth of a second; a graph has
several. The dispatch lives in ``shuffle_numba``; ``backends.numba_mode`` puts the Op into graphs.
"""

from pytensor.tensor.elemwise import DimShuffle


class Shuffle(DimShuffle):
    """A ``DimShuffle`` that leaves out no axes but those that are known to be of length 1."""
