"""Sweeps that a long window takes: ``uv run python -m tests.benchmarks.sweeps``.

Logistic regression, N = 1000, D = 25, correlated features, dense metric from warm-up, step size
for an acceptance rate of 0.75: 8192 transitions in one window. Target: at most 30 sweeps.
"""

from dataclasses import replace

import numpy as np

from pymc_deer.adaptation import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import WindowPlan
from pymc_deer.examples import correlated_logistic, eight_schools, radon
from pymc_deer.noise import draw_tape
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import warm_up, write

CASES = [
    # model, step size, transitions, rule, curvature
    (correlated_logistic, 0.8, 8192, "preconditioned", 1.0),
    (correlated_logistic, 0.8, 8192, "preconditioned", 1.5),
    (correlated_logistic, 0.8, 1024, "preconditioned", 1.0),
    (correlated_logistic, 0.8, 1024, "preconditioned", 1.5),
    (correlated_logistic, 0.8, 1024, "stochastic", 1.0),
    (eight_schools, 0.7, 1024, "preconditioned", 1.5),
    (eight_schools, 0.7, 1024, "stochastic", 1.5),
    (radon, 0.6, 1024, "preconditioned", 1.5),
    (radon, 0.6, 1024, "stochastic", 1.5),
]


def main() -> None:
    """Count sweeps for every case, with the difference from the sequential chain."""
    rows = []
    warmed = {build: warm_up(build()) for build in dict.fromkeys(case[0] for case in CASES)}
    for build, step_size, n, rule, curvature in CASES:
        case = warmed[build]
        normal, uniform = (np.random.default_rng([5, i]) for i in range(2))
        tape = draw_tape(normal, uniform, n, case.density.size)
        tuning = replace(case.tuning, step_size=step_size, curvature=curvature)
        spec = SweepSpec(tuning.metric.kind, rule)

        def run(window, tape=tape, tuning=tuning, spec=spec, case=case, n=n):
            plan = WindowPlan(window, max_sweeps=window, tol=1e-6, capacity=n)
            solver = make_solver("jax", case.density, spec, plan)
            return solver.solve(case.z, tape, tuning, case.params, np.random.default_rng(0))

        solved, exact = run(n), run(1)
        rows.append(
            {
                "model": build.__name__,
                "dimension": case.density.size,
                "transitions": n,
                "rule": rule,
                "curvature": curvature,
                "acceptance": round(float(acceptance_rates(exact.log_alpha).mean()), 3),
                "sweeps": solved.n_sweeps,
                "largest_difference": float(f"{np.abs(solved.z - exact.z).max():.1e}"),
            }
        )
    write("sweeps", rows)


if __name__ == "__main__":
    main()
