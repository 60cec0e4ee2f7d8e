"""How warm-up begins."""

import numpy as np

from pymc_deer.acceptance import TargetAccept
from pymc_deer.backends.request import Tuning
from pymc_deer.metric import Metric, MetricKind, identity_metric
from pymc_deer.path_length import PathLength
from pymc_deer.warmup.adaptation import Warmup
from pymc_deer.warmup.dual_averaging import DualAveraging
from pymc_deer.warmup.schedule import warmup_schedule
from pymc_deer.warmup.thinning import steps_per_draw

_DEFAULT_STEP_SIZE = 0.5


def start_warmup(
    size: int,
    n_tune: int,
    *,
    kind: MetricKind,
    factor: np.ndarray | None,
    step_size: float | None,
    target: TargetAccept,
    curvature: float,
    fixed_steps: int | None,
    jitter: float,
    small_steps: float,
    path: PathLength,
    warmup_steps_per_draw: int,
    thinning: float,
    white: float,
    angles: np.ndarray,
) -> Warmup:
    """Adaptation at the start of a chain: whatever the user fixed stays fixed.

    Parameters
    ----------
    size, n_tune
        Dimension D and number of recorded warm-up draws.
    kind, factor
        Kind of metric, and its factor if the user gave one.
    step_size, fixed_steps
        Step size and transitions for each draw; None to adapt them.
    target
        The acceptance rate to tune the step size to.
    jitter, small_steps, path
        How step size and path vary from transition to transition.
    warmup_steps_per_draw
        Transitions for each recorded draw of warm-up if `fixed_steps` is None.
    thinning
        Transitions for each one after it, in autocorrelation times of the slowest coordinate.
    white, angles
        As in :class:`Warmup`.
    """
    metric = identity_metric(kind, size) if factor is None else Metric(np.zeros(size), factor)
    first = _DEFAULT_STEP_SIZE if step_size is None else step_size
    steps = fixed_steps or steps_per_draw(warmup_steps_per_draw, size)
    warmup = Warmup(
        tuning=Tuning(first, curvature, metric, jitter, small_steps=small_steps),
        steps_per_draw=steps,
        tuned_steps_per_draw=steps,
        schedule=warmup_schedule(n_tune, steps),
        dual_averaging=None if step_size is not None else DualAveraging.at(first, target.rate),
        adapts_metric=factor is None,
        adapts_steps=fixed_steps is None,
        thinning=thinning,
        white=white,
        path=path,
        target=target,
        angles=angles,
    )
    warmup.go_on_with(first)
    return warmup
