# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""What of a sweep runs along the window: the next guess, and the error of the one before.

See :mod:`pymc_deer.sweep` for the formulas. XLA makes many kernels of them for a GPU, one for every
few levels of an associative scan, of which some compute again what others have; there are two for
all of it in :mod:`pymc_deer.window_scan_kernel`. Other devices have the formulas as they are
written here.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.rewriting.basic import node_rewriter

from pymc_deer.row_blocks import STATES
from pymc_deer.scan import affine_scan
from pymc_deer.typing import Tensor


class WindowScan(OpFromGraph):
    """The formulas, which all compilers see as such, but for those that have an Op for them."""


class WindowScanInKernel(OpFromGraph):
    """The same in kernels of ours."""


def window_scan(
    jacobian: Tensor, states: Tensor, previous: Tensor, guess: Tensor, start: Tensor
) -> tuple[Tensor, Tensor]:
    """The next guess, shape (W, D), and bounds on the error of `guess`, shape (W,).

    Parameters
    ----------
    jacobian
        Of each transition, shape (W, D), or (W, 1) for one of all coordinates.
    states
        What transitions make of `previous`, both (W, D).
    guess, start
        Of the states behind each transition, (W, D), and the state before the first one, (D,).
    """
    inputs = [jacobian, states, previous, guess, start]
    next_guess, error = _op(WindowScan, inputs, inline=True).make_node(*inputs).outputs
    return next_guess, error


def _op(kind: type[OpFromGraph], inputs: Sequence[Any], *, inline: bool) -> OpFromGraph:
    own = [variable.type() for variable in inputs]
    return kind(own, _formulas(*own), inline=inline)


def _formulas(jacobian: Any, states: Any, previous: Any, guess: Any, start: Any) -> list[Tensor]:
    solved = affine_scan(jacobian, states - jacobian * previous, start)
    # A guess from which the linearisation overflowed is replaced by the plain iterate.
    finite = pt.all(pt.abs(solved) < float("inf"), axis=1, keepdims=True)
    next_guess = pt.switch(finite, solved, states)
    error = pt.max(pt.abs(pt.cumsum(states - guess, axis=0)), axis=1)
    return [next_guess, error]


@node_rewriter([WindowScan])
def window_scan_in_kernel(fgraph: Any, node: Any) -> list[Any] | None:
    """Kernels of ours in place of the formulas, for windows that are cut into equal chunks."""
    width = node.inputs[1].type.shape[0]
    if width is None or width % STATES:
        return None
    return _op(WindowScanInKernel, node.inputs, inline=False).make_node(*node.inputs).outputs
