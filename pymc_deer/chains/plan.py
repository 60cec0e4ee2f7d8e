"""How many transitions a window has, and a call of the solver."""

from dataclasses import replace

from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density
from pymc_deer.memory import affordable_rows

SHORTEST_CALL, _LONGEST_CALL = 256, 4096
"""Fewest and most transitions of a call, which costs as much as hundreds of the smallest model."""

_MOST_READ, _MOST_HELD = 2**25, 2**17
"""Numbers that the gradients of a call may read, in a tenth of a second or so, and that its states
may have, a megabyte, where it is longer than the shortest."""

_MOST_HELD_TOGETHER = 2**20
"""And those of all chains that are one batch."""

_LARGE_TOGETHER = 8
"""Chains of a batch that may each have as long a call of large states as one alone."""

_AFFORDABLE_SHARE = 0.4
"""Share of the memory free that windows which were asked for may take: where a density has many
large intermediate results (the matrices of a Gaussian process, functions of counts), a state takes
up to 2.3 times what is estimated."""


def window_plan(
    window: int, max_sweeps: int | None, tol: float, density: Density, n_together: int = 1
) -> WindowPlan:
    """A plan whose calls are long enough for their own cost to vanish, and short enough for
    progress bars to move and memory to hold them.

    Where a call ends leaves a trace in the last bit, so it depends on nothing but the problem, and
    on the chains that are one batch.
    """
    if window == 1:
        held = min(_MOST_HELD, _MOST_HELD_TOGETHER // n_together) // density.size
        most = min(_MOST_READ // density.n_numbers, held, _LONGEST_CALL)
    else:
        most = 4 * window
    affordable = affordable_rows(density.size * max(1, n_together // _LARGE_TOGETHER))
    wanted = min(max(SHORTEST_CALL, most), affordable)
    # Whole windows: the last one of a call sweeps as many states, however few are left.
    wanted -= wanted % window
    return WindowPlan(window, max_sweeps, tol, capacity=max(wanted, window))


def in_windows(solver: Solver, window: int, max_sweeps: int | None) -> Solver:
    """The same solver with windows of that width, and calls as they suit its chains."""
    tol, density = solver.plan.tol, solver.density
    return solver.with_plan(window_plan(window, max_sweeps, tol, density, solver.n_together))


def affordable_window(solver: Solver, window: int, n_chains: int = 1) -> int:
    """The window asked for, or the widest quarter of a quarter that fits in the memory free.

    So many chains have one at the same time.
    """
    free = _AFFORDABLE_SHARE * solver.free_memory() / n_chains
    plan = replace(solver.plan, window=window)
    if window * solver.most_bytes_per_state() <= free:
        return window
    needed = solver.bytes_per_state()
    while plan.window > 1 and plan.window * needed > free:
        plan = plan.narrowed(1)
    return plan.window
