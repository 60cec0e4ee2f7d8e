"""Progress of `pymc_deer.sample`, whose draws come by stretches."""

from collections.abc import Sequence
from typing import Any

from pymc.progress_bar.progress import MCMCProgressBarManager

from pymc_deer.chains.chain import ChainRecord
from pymc_deer.chains.stretch import SolvedStretch
from pymc_deer.step import DeerStep


class StretchProgress(MCMCProgressBarManager):
    """PyMC's progress bars, which advance by stretches."""

    @classmethod
    def of(
        cls, step: DeerStep, records: Sequence[ChainRecord], progressbar: Any, theme: Any
    ) -> "StretchProgress":
        """Bars for the draws that chains have still to make."""
        n_tune, n_draws = records[0].n_tune_left, records[0].n_draws_left
        return cls(step, len(records), n_draws, n_tune, progressbar, theme)

    def show(self, stretches: Sequence[SolvedStretch]) -> None:
        """Advance the bar of each chain, or that of all."""
        if not self._show_progress:
            return
        n_draws = len(stretches[0])
        of_each = self.completed_draws // self.chains + n_draws
        combined = self.combined_progress
        last = [{name: v[-1] for name, v in s.statistics.items()} for s in stretches]
        of_all = {"divergences": sum(each["divergences"] for each in last)} if combined else {}
        for chain, of_chain in enumerate(last):
            self.completed_draws += n_draws
            failing, stats = self._extract_stats([of_chain | of_all])
            task, done = (0, self.completed_draws) if combined else (chain, of_each)
            stats["draw"] = done - self._tune_total if done > self._tune_total else done
            self._backend.update(
                task_id=task,
                advance=n_draws,
                failing=failing,
                stats=stats,
                is_last=done == self.total_draws,
                total=self.total_draws,
            )
