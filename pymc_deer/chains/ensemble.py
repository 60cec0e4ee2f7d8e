"""Several chains that go side by side, and warm up together.

Step sizes are each chain's own. Metric, path lengths and steps per draw are learnt from the draws
of all chains, so that each warms up on C times as much, and are the same for all, so that one
program runs them in one batch.
"""

from collections.abc import Sequence

import numpy as np

from pymc_deer.backends.base import Solver
from pymc_deer.chains.chain import Chain, ChainRecord, begin_together, mixing_warning
from pymc_deer.chains.stretch import SolvedStretch
from pymc_deer.start import Start
from pymc_deer.warmup.adaptation import observe
from pymc_deer.warmup.metric_estimate import first_metric

_MOST_NUMBERS = 2**19
"""Numbers kept of all chains, 4 MiB, beyond which stretches are not made longer: memory holds
several times as much, and they are long enough to make what lies between them cheap."""

_OVERLAPPING = 4
"""Calls of a stretch in windows, of which all but the last are fetched while others run."""

_MOST_NUMBERS_IN_WINDOWS, _MOST_READ_IN_WINDOWS = 2**24, 2**32
"""Numbers that they may keep, 128 MiB, and that their gradients may read, on a GPU a second's work
or so: longer calls hide what lies between them anyway, and progress bars are to move."""

_PER_TRANSITION = 3
"""Numbers kept of each transition, beside the states that are."""


class Ensemble:
    """C chains of one density, from stretch to stretch.

    Parameters
    ----------
    solver
        Compiled solver of the chains' density.
    records
        Where the chains stand, all at the same draw of the same schedule; kept up to date.
    """

    def __init__(self, solver: Solver, records: Sequence[ChainRecord]) -> None:
        self.solver = solver
        self.chains = [Chain(self.solver, record) for record in records]
        self._pace = solver.pace_kind()

    @property
    def records(self) -> list[ChainRecord]:
        """From these the ensemble can go on; what comes after does not change them."""
        return [chain.record for chain in self.chains]

    def begin(self, starts: Sequence[Start], params: Sequence[np.ndarray]) -> None:
        """Put each chain at its start, with a step size that suits the place, and all with the
        same metric.
        """
        metric = first_metric(self.solver.spec.metric, starts)
        begin_together(self.chains, starts, metric, params)

    @property
    def tuning(self) -> bool:
        """Whether warm-up still goes on."""
        return self.chains[0].record.n_tune_left > 0

    @property
    def finished(self) -> bool:
        """Whether all draws are out."""
        record = self.chains[0].record
        return not record.n_tune_left and not record.n_draws_left

    def _calls(self, *, tuning: bool) -> int:
        """Calls of the solver for the next stretch.

        As many as the time allows, where their number leaves no trace: in warm-up it would in the
        rounding of what is learnt, and where windows fail, in when they are narrowed.
        """
        plan, steps = self.solver.plan, self.records[0].warmup.steps_per_draw
        if tuning or steps > plan.capacity:
            return 1
        if plan.window > 1:
            return self._calls_in_windows if self.solver.overlaps else 1
        return min(self._pace.allows(1), self._affordable_calls(_MOST_NUMBERS))

    @property
    def _calls_in_windows(self) -> int:
        """As many as hide what lies between them; a function of the model and the chains alone."""
        solver = self.solver
        read = solver.plan.capacity * solver.density.n_numbers * len(self.chains)
        affordable = self._affordable_calls(_MOST_NUMBERS_IN_WINDOWS)
        return max(1, min(_OVERLAPPING, affordable, _MOST_READ_IN_WINDOWS // read))

    def _affordable_calls(self, most: int) -> int:
        """Calls of the solver whose results together are no more numbers than these, or one."""
        of_each = self.solver.density.size / self.chains[0].stride + _PER_TRANSITION
        of_one = self.solver.plan.capacity * of_each * len(self.chains)
        return max(1, int(most / of_one))

    def next_stretch(self, params: Sequence[np.ndarray]) -> list[SolvedStretch]:
        """The next draws of all chains, as many of each."""
        tuning = self.tuning
        if not tuning:
            self._end_warmup()
        calls = self._calls(tuning=tuning)
        at_once = self.chains[0].draws_at_once * self.records[0].warmup.steps_per_draw
        tasks = [chain.begin_stretch(calls, tuning=tuning) for chain in self.chains]
        n_draws = self.records[0].stretch_draws
        solver = tasks[0].solver
        trajectories = solver.run_together(tasks, params, min(at_once, solver.plan.capacity))
        self._pace.took(-(-tasks[0].n_transitions // at_once), 1)
        solved = [t.solved(found, params) for t, found in zip(tasks, trajectories, strict=True)]
        records = [c.after(s, n_draws) for c, s in zip(self.chains, solved, strict=True)]
        with self.solver.one_blas_thread():
            observe([record.warmup for record in records], trajectories, n_draws)
        for chain, record, stretch in zip(self.chains, records, solved, strict=True):
            chain.go_on(record, stretch, n_draws)
        # One program for all: as narrow as the chain that needs it narrowest.
        narrowing = max(record.narrowing for record in self.records)
        for record in self.records:
            record.narrowing = narrowing
        return solved

    def _end_warmup(self) -> None:
        """Fix what was tuned, and as many transitions to a draw as all chains can afford.

        Their paths differ in steps, since their step sizes do; their draws come side by side.
        """
        if self.records[0].warmup.finished:
            return
        for chain in self.chains:
            chain.end_warmup()
        fewest = min(record.warmup.steps_per_draw for record in self.records)
        for chain in self.chains:
            chain.take_steps(fewest)

    def narrowing_warning(self) -> str | None:
        """That windows were too wide, once: they are of one width, and the first chain tells."""
        return self.chains[0].narrowing_warning()

    def mixing_warning(self) -> str | None:
        """What the user should know of chains that mix slowly."""
        return mixing_warning(self.chains)
