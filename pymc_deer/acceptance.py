"""Acceptance of proposals: rates, divergences, and the rate that warm-up aims at."""

from dataclasses import dataclass
from typing import Any

import numpy as np

DIVERGENCE = 1000.0
"""Energy error from which a transition counts as divergent, as in PyMC and Stan."""

_RARE = 3e-4
"""Share of recorded draws with a divergence that is left alone."""

_POWER = 0.3
"""With which rejections follow divergences: half as many of them go with a tenth of these.

On the models of ``tests/benchmarks/divergences.py`` a third to a thirteenth.
"""

_HIGHEST = 0.95
"""At 0.98 a gradient is worth a third less: what is left is for another parametrisation."""


def accepts(log_alpha: Any, log_u: Any) -> Any:
    """Whether transitions with these Metropolis ratios are accepted: arrays of any library.

    A comparison with NaN is false, so only +inf needs a word: it is an overflow, not a proposal.
    """
    return (log_alpha > log_u) & (log_alpha < float("inf"))


def acceptance_rates(log_alpha: np.ndarray) -> np.ndarray:
    """Acceptance probabilities; 0 where the ratio is NaN or +inf, as the kernel rejects those."""
    finite = np.where(log_alpha < np.inf, log_alpha, -np.inf)
    return np.exp(np.minimum(finite, 0.0))


def count_unstable(log_alpha: np.ndarray) -> int:
    """Transitions whose energy error is too large, but finite.

    Shorter steps cure those. What is not finite is rather a place where the density is 0.
    """
    return int(np.count_nonzero((log_alpha < -DIVERGENCE) & (log_alpha > -np.inf)))


@dataclass(frozen=True)
class TargetAccept:
    """The mean acceptance rate that step sizes are tuned to.

    Attributes
    ----------
    rate
        Between 0 and 1.
    adapts
        Whether warm-up raises it where transitions diverge.
    """

    rate: float
    adapts: bool = False

    def behind(self, n_unstable: int, n_draws: float) -> "TargetAccept":
        """The one to go on with, behind so many unstable transitions.

        Parameters
        ----------
        n_unstable
            Transitions whose energy error is too large.
        n_draws
            Draws that would have been recorded of all transitions seen.
        """
        share = n_unstable / n_draws
        if not self.adapts or share <= _RARE:
            return self
        rejected = (1.0 - self.rate) * (_RARE / share) ** _POWER
        return TargetAccept(max(self.rate, min(1.0 - rejected, _HIGHEST)), adapts=True)
