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

from collections.abc import Callable
from typing import NamedTuple

import pytensor.tensor as pt

from pymc_deer.typing import Tensor

LogpDlogp = Callable[[Tensor], "list[Tensor]"]
"""Logp (...) and its gradient (..., D) at z (..., D)."""


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
    log_alpha
        Log of the Metropolis ratio, shape (...): minus the energy error of the path. NaN or
        infinite where the proposal's logp or gradient is.
    accepted
        Whether the proposal became the next state, shape (...).
    path
        Positions at which the leapfrog path evaluated the gradient, the proposal excluded.
    """

    state: State
    log_alpha: Tensor
    accepted: Tensor
    path: tuple[Tensor, ...]


def transition(
    density: LogpDlogp,
    state: State,
    xi: Tensor,
    log_u: Tensor,
    step_size: Tensor,
    n_leapfrog: int = 1,
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
    step_size
        Leapfrog step size, shape (...).
    n_leapfrog
        Number of leapfrog steps; 1 is MALA.
    """
    step_size = pt.expand_dims(step_size, -1)
    half_step = step_size / 2
    path = [state.z]
    momentum = xi + half_step * state.dlogp
    position = state.z + step_size * momentum
    logp, dlogp = density(position)
    for _ in range(n_leapfrog - 1):
        path.append(position)
        momentum = momentum + step_size * dlogp
        position = position + step_size * momentum
        logp, dlogp = density(position)
    momentum = momentum + half_step * dlogp
    kinetic_change = pt.sum(momentum * momentum, axis=-1) - pt.sum(xi * xi, axis=-1)
    log_alpha = logp - state.logp - kinetic_change / 2

    # A comparison with NaN is false, so only +inf needs a word: it is an overflow, not a proposal.
    accepted = (log_alpha > log_u) & (log_alpha < float("inf"))
    proposal = State(position, logp, dlogp)
    return Transition(_select(accepted, proposal, state), log_alpha, accepted, tuple(path))


def _select(accepted: Tensor, proposal: State, state: State) -> State:
    wide = pt.expand_dims(accepted, -1)
    return State(
        pt.switch(wide, proposal.z, state.z),
        pt.switch(accepted, proposal.logp, state.logp),
        pt.switch(wide, proposal.dlogp, state.dlogp),
    )
