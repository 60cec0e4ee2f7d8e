# pyright: reportArgumentType=false, reportAttributeAccessIssue=false, reportCallIssue=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportOperatorIssue=false
# pyright: reportReturnType=false
# (PyTensor's annotations give most symbolic expressions no type that could be checked.)
"""One Metropolis-adjusted transition, symbolically, in whitened coordinates.

L leapfrog steps of size eps from momentum xi, then a Metropolis test against log u (Neal 2011,
"MCMC using Hamiltonian dynamics", section 5.2). L = 1 is MALA (Roberts and Tweedie 1996): in the
Langevin convention its drift step is eps^2 / 2 and its noise scale eps.

All functions work on one state (D,) and on a batch (W, D) alike: only the last axis is summed.
"""

from typing import NamedTuple

import pytensor.tensor as pt

from pymc_deer.acceptance import accepts
from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.leapfrog import Path, Phase, Tangent, leapfrog
from pymc_deer.precision import wide_sum
from pymc_deer.typing import Tensor


class State(NamedTuple):
    """A state of the chain with its log-density and gradient: shapes (..., D), (...), (..., D)."""

    z: Tensor
    logp: Tensor
    dlogp: Tensor


class Transition(NamedTuple):
    """Outcome of one transition.

    Attributes
    ----------
    state
        The next state.
    proposal
        Where the path ends, shape (..., D).
    log_alpha
        Log of the Metropolis ratio, shape (...): minus the energy error of the path. NaN or
        infinite where the proposal's logp or gradient is.
    energy
        Hamiltonian where the path starts, momentum included, shape (...).
    tangent
        What the path made of the directions it was asked to follow; None if of none.
    """

    state: State
    proposal: Tensor
    log_alpha: Tensor
    energy: Tensor
    tangent: Tensor | None


def transition(
    density: GradientFirst,
    state: State,
    xi: Tensor,
    log_u: Tensor,
    path: Path,
    tangent: Tangent | None = None,
) -> Transition:
    """Move `state` by one transition with the noise (xi, log_u) of the tape.

    Parameters
    ----------
    density
        Log-density and gradient in whitened coordinates.
    xi
        Standard normal momentum, shape (..., D).
    log_u
        Log of a uniform number, shape (...).
    path
        Step size and number of leapfrog steps.
    tangent
        Directions at the state to carry along the path.
    """
    start = Phase(state.z, xi, state.logp, state.dlogp)
    end, moved = leapfrog(density, start, path, tangent)
    kinetic = wide_sum(xi * xi)
    kinetic_change = wide_sum(end.momentum * end.momentum) - kinetic
    log_alpha = end.logp - state.logp - kinetic_change / 2

    next_state = _select(accepts(log_alpha, log_u), State(end.z, end.logp, end.dlogp), state)
    energy = kinetic / 2 - state.logp
    return Transition(next_state, end.z, log_alpha, energy, moved)


def _select(accepted: Tensor, proposal: State, state: State) -> State:
    wide = pt.expand_dims(accepted, -1)
    return State(
        pt.switch(wide, proposal.z, state.z),
        pt.switch(accepted, proposal.logp, state.logp),
        pt.switch(wide, proposal.dlogp, state.dlogp),
    )
