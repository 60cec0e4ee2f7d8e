"""Plain NumPy: sequential MALA and HMC, and the window loop, as written in the design.

The oracle of the tests. It shares no code with the compiled path, and nothing else imports it.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

LogpDlogp = Callable[[np.ndarray], tuple[float, np.ndarray]]
"""Logp and gradient at one whitened state of shape (D,)."""


class Step(NamedTuple):
    """One transition: next state and proposal (D,), log ratio, acceptance, the path, and soundness.

    Sound is one that begins where logp and its gradient are finite.
    """

    z: np.ndarray
    proposal: np.ndarray
    log_alpha: float
    accepted: bool
    path: list[np.ndarray]
    sound: bool


def kick_shares(n_leapfrog: int, step_size: float) -> np.ndarray:
    """What the momentum is kicked by at each of the path's states, its ends too, (L + 1,).

    In units of step size times gradient. See :mod:`pymc_deer.leapfrog`.
    """
    share = 0.5
    if n_leapfrog % 2 == 0:
        share = min(0.5, (3 - 5**0.5) / 2 + 0.0336 * step_size**2 + 0.008 * step_size**4)
    kicks = np.full(n_leapfrog + 1, 2 * share)
    kicks[1::2] = 2 * (1 - share)
    kicks[[0, -1]] /= 2
    return kicks


def flow(
    gradient: Callable[[Any], Any], z: Any, momentum: Any, step_size: float, n_leapfrog: int
) -> tuple[Any, Any]:
    """Position and momentum at the end of a path: arrays of one shape, or numbers."""
    first, *kicks = step_size * kick_shares(n_leapfrog, step_size)
    momentum = momentum + first * gradient(z)
    for kick in kicks:
        z = z + step_size * momentum
        momentum = momentum + kick * gradient(z)
    return z, momentum


def gaussian_factor(step_size: float, curvature: float, n_leapfrog: int) -> float:
    """Where a path that starts at 1 at rest ends, on a Gaussian of that curvature."""
    return flow(lambda z: -curvature * z, 1.0, 0.0, step_size, n_leapfrog)[0]


def transition(
    density: LogpDlogp,
    z: np.ndarray,
    xi: np.ndarray,
    log_u: float,
    step_size: float,
    n_leapfrog: int = 1,
) -> Step:
    """One transition of `n_leapfrog` leapfrog steps and a Metropolis test."""
    path, logps, slopes = [], [], []

    def gradient(position: np.ndarray) -> np.ndarray:
        logp, dlogp = density(position)
        path.append(position)
        logps.append(logp)
        slopes.append(dlogp)
        return dlogp

    position, momentum = flow(gradient, z, xi, step_size, n_leapfrog)
    log_alpha = logps[-1] - 0.5 * momentum @ momentum - logps[0] + 0.5 * xi @ xi
    accepted = bool(np.isfinite(log_alpha) and log_alpha > log_u)
    end, sound = position if accepted else z, bool(np.isfinite([logps[0], *slopes[0]]).all())
    return Step(end, position, float(log_alpha), accepted, path[:-1], sound)


def sequential(
    density: LogpDlogp,
    start: np.ndarray,
    xi: np.ndarray,
    log_u: np.ndarray,
    step_size: float | np.ndarray,
    n_leapfrog: int | np.ndarray = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """The chain itself: states (n, D) and log Metropolis ratios (n,).

    Step sizes and numbers of steps are the same for all transitions, or arrays (n,).
    """
    states, ratios = np.empty_like(xi), np.empty_like(log_u)
    sizes, lengths = (np.broadcast_to(a, len(xi)) for a in (step_size, n_leapfrog))
    z = start
    for t in range(len(xi)):
        step = transition(density, z, xi[t], log_u[t], sizes[t], lengths[t])
        states[t] = z = step.z
        ratios[t] = step.log_alpha
    return states, ratios


def windowed(
    density: LogpDlogp,
    start: np.ndarray,
    xi: np.ndarray,
    log_u: np.ndarray,
    step_size: float | np.ndarray,
    *,
    window: int,
    curvature: float,
    tol: float,
    n_leapfrog: int | np.ndarray = 1,
    ahead: np.ndarray | None = None,
    bend: float | np.ndarray = 0.0,
) -> tuple[np.ndarray, int]:
    """The chain by Newton sweeps with the ``preconditioned`` rule: states (n, D) and sweeps.

    States are first guessed to be those of `ahead`, (n, D), or those where the window ends. From
    other states than those it was computed from, the log of a transition's ratio is smaller by
    `bend`, a number or (n,), times what the squared length changes by more.
    """
    n = len(xi)
    states = np.empty_like(xi)
    sizes, lengths = (np.broadcast_to(a, n) for a in (step_size, n_leapfrog))
    bends = np.broadcast_to(bend, n)
    moved = [gaussian_factor(e, curvature, steps) for e, steps in zip(sizes, lengths, strict=True)]
    guess = np.tile(start, (min(window, n), 1)) if ahead is None else ahead[:window]
    done = sweeps = 0
    while done < n:
        width = min(len(guess), n - done)
        guess = guess[:width]
        previous = np.vstack([start, guess[:-1]])
        new, solved = np.empty_like(guess), np.empty_like(guess)
        sound = np.empty(width, bool)
        carried = start
        for t in range(width):
            i = done + t
            step = transition(density, previous[t], xi[i], log_u[i], sizes[i], lengths[i])
            new[t], sound[t] = step.z, step.sound
            proposal = step.proposal + np.clip(moved[i], 0, 1) * (carried - previous[t])
            change = proposal @ proposal - carried @ carried
            known = step.proposal @ step.proposal - previous[t] @ previous[t]
            ratio = step.log_alpha - bends[i] * (change - known)
            carried = proposal if np.isfinite(ratio) and ratio > log_u[i] else carried
            solved[t] = carried
        wrong = np.abs(np.cumsum(new - guess, axis=0)).max(axis=1)[:-1] > tol
        wrong |= ~sound[1:]
        committed = 1 + (int(np.argmax(wrong)) if wrong.any() else width - 1)
        states[done : done + committed] = new[:committed]
        start = new[committed - 1]
        end = done + width
        unseen = np.tile(solved[-1], (committed, 1)) if ahead is None else ahead[end:][:committed]
        guess = np.vstack([solved[committed:], unseen])
        done += committed
        sweeps += 1
    return states, sweeps
