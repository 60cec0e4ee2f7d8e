"""The table of sample statistics, from which PyMC's declaration and the documentation come."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from pymc.stats.convergence import SamplerWarning


@dataclass(frozen=True)
class Stat:
    """One statistic of a recorded draw."""

    name: str
    dtype: Any
    unit: str
    meaning: str


STATS: tuple[Stat, ...] = (
    Stat(
        "model_logp",
        np.float64,
        "nats",
        "Log-density of the draw (`lp` in InferenceData, where PyMC has 0 throughout if another "
        "step method follows this one).",
    ),
    Stat(
        "acceptance_rate",
        np.float64,
        "probability",
        "Mean Metropolis acceptance probability of the draw's transitions.",
    ),
    Stat(
        "step_size",
        np.float64,
        "whitened",
        "Tuned leapfrog step size; `step_size_jitter` and `small_steps` vary it by transition.",
    ),
    Stat(
        "diverging",
        bool,
        "",
        "Whether a transition's energy error exceeded 1000 or was not finite.",
    ),
    Stat(
        "divergences",
        int,
        "draws",
        "Draws so far, of those that are kept, in which a transition diverged.",
    ),
    Stat(
        "energy",
        np.float64,
        "nats",
        "Hamiltonian at the start of the draw's last transition, minus log-density plus kinetic.",
    ),
    Stat(
        "n_steps",
        np.int64,
        "leapfrog steps",
        "Leapfrog steps, hence gradients of the sequential chain, since the draw before.",
    ),
    Stat("n_transitions", np.int64, "transitions", "Transitions since the draw before."),
    Stat(
        "sweeps",
        np.float64,
        "sweeps",
        "Newton sweeps spent on the draw: those of its stretch, divided evenly; 0 if sequential.",
    ),
    Stat(
        "committed_per_sweep",
        np.float64,
        "transitions",
        "Transitions that a sweep of the draw's stretch committed on average; 0 if sequential.",
    ),
    Stat("window", np.int64, "transitions", "Transitions solved at once; 1 is sequential."),
    Stat("curvature", np.float64, "", "Curvature bound c of the Jacobian rule."),
    Stat(
        "rejected_nonfinite",
        np.int64,
        "transitions",
        "Proposals rejected because their logp or gradient was NaN or infinite.",
    ),
    Stat(
        "fallback",
        np.float64,
        "transitions",
        "Transitions run step by step because the sweeps ran out: those of its stretch, divided "
        "evenly.",
    ),
    Stat("tune", bool, "", "Whether the draw belongs to warm-up."),
)

STATS_DTYPES_SHAPES: dict[str, Any] = {
    **{stat.name: (stat.dtype, []) for stat in STATS},
    "warning": (SamplerWarning, None),
}
"""The table in the form that PyMC's step methods declare, and what PyMC logs and then drops."""


def statistics_table() -> str:
    """The table in Markdown, as in ``docs/statistics.md``."""
    rows = [
        f"| `{stat.name}` | {np.dtype(stat.dtype).name} | {stat.unit} | {stat.meaning} |"
        for stat in STATS
    ]
    return "\n".join(["| name | dtype | unit | meaning |", "| --- | --- | --- | --- |", *rows])
