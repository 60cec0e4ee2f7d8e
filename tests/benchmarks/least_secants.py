"""The least Jacobian of secants: ``uv run python -m tests.benchmarks.least_secants``.

DeerHMC after its own warm-up, with the step size and the paths that it chose: sweeps for 512
transitions in windows of 256, means over four tapes, by the least value that a secant may have.
"""

from collections.abc import Iterator
from dataclasses import replace
from unittest.mock import patch

import numpy as np

from pymc_deer import DeerHMC, jacobian
from pymc_deer.backends import make_solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.examples import breast_cancer, correlated_logistic, eight_schools, radon
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed, take_no_options, warm_up, write

MODELS = (correlated_logistic, eight_schools, breast_cancer, radon)
LEAST = (0.0, -0.2, -0.4, -0.6, -1.0)
N, WINDOW, TAPES = 512, 256, 4


def sweeps(case: Warmed, least: float) -> list[int]:
    """Of each tape."""
    tuning, size = replace(case.tuning, curvature=1.0), case.density.size
    plan = WindowPlan(WINDOW, WINDOW, tol=1e-6, capacity=N)
    spec = SweepSpec(tuning.metric.kind, "secant", kernel="hmc")
    with patch.object(jacobian, "_LEAST_SECANT", least):
        solver = make_solver("jax", case.density, spec, plan)
        streams = [Streams.spawn(np.random.default_rng([6, tape])) for tape in range(TAPES)]
        return [
            solver.solve(
                case.z, own.tape(N, size, tuning), tuning, case.params, own.probes
            ).n_sweeps
            for own in streams
        ]


def rows() -> Iterator[dict[str, object]]:
    """One for each model and least value."""
    for build in MODELS:
        case = warm_up(build(), DeerHMC, backend="jax")
        for least in LEAST:
            found = sweeps(case, least)
            yield {
                "model": build.__name__,
                "leapfrog_steps": case.tuning.lengths[1],
                "least": least,
                "sweeps": float(np.mean(found)),
                "sweeps_by_tape": found,
            }


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    write("least_secants", rows())


if __name__ == "__main__":
    main()
