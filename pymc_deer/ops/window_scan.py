# pyright: reportAttributeAccessIssue=false, reportOperatorIssue=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""What of a sweep runs along the window: the next guess, and the error of the one before.

See :mod:`pymc_deer.sweep` for the formulas. XLA makes many kernels of them for a GPU, one for every
few levels of an associative scan, of which some compute again what others have; there are two for
each scan in :mod:`pymc_deer.ops.window_scan_kernel`. Other devices have the formulas as they are
written here.
"""

from collections.abc import Sequence
from typing import Any

import pytensor.tensor as pt
from pytensor.compile.builders import OpFromGraph
from pytensor.graph.rewriting.basic import node_rewriter

from pymc_deer.acceptance import accepts
from pymc_deer.ops.row_blocks import STATES
from pymc_deer.ops.scan import chain_scan
from pymc_deer.typing import Tensor


class WindowScan(OpFromGraph):
    """The formulas, which all compilers see as such, but for those that have an Op for them."""


class WindowScanInKernel(OpFromGraph):
    """The same in kernels of ours."""


def window_scan(
    jacobian: Tensor,
    proposals: Tensor,
    previous: Tensor,
    guess: Tensor,
    start: Tensor,
    log_alpha: Tensor,
    log_u: Tensor,
    bend: Tensor,
) -> tuple[Tensor, Tensor]:
    """The next guess, shape (W, D), and bounds on the error of `guess`, shape (W,).

    Parameters
    ----------
    guess
        Of the states behind each transition, shape (W, D).
    jacobian, proposals, previous, start, log_alpha, log_u, bend
        As of :class:`~pymc_deer.ops.scan.ChainScan`.
    """
    inputs = [jacobian, proposals, previous, guess, start, log_alpha, log_u, bend]
    next_guess, error = _op(WindowScan, inputs, inline=True).make_node(*inputs).outputs
    return next_guess, error


def _op(kind: type[OpFromGraph], inputs: Sequence[Any], *, inline: bool) -> OpFromGraph:
    own = [variable.type() for variable in inputs]
    return kind(own, _formulas(*own), inline=inline)


def _formulas(
    jacobian: Any,
    proposals: Any,
    previous: Any,
    guess: Any,
    start: Any,
    log_alpha: Any,
    log_u: Any,
    bend: Any,
) -> list[Tensor]:
    solved = chain_scan(jacobian, proposals, previous, start, log_alpha, log_u, bend)
    states = pt.switch(accepts(log_alpha, log_u)[:, None], proposals, previous)
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
