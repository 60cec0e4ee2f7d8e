"""Sweeps that a long window takes: ``uv run python -m tests.benchmarks.sweeps``.

Models after warm-up with a dense metric, at a step size that accepts about 0.8 of the proposals
(the 8192 transitions: 0.75), all transitions in one window; means over eight tapes. Targets: 8192
transitions of the logistic regression (N = 1000, D = 25, correlated features) in at most 30 sweeps;
1024 in at most 25, eight schools 50, radon 80.
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
    (correlated_logistic, 0.8, 8192, "secant", 1.5),
    (correlated_logistic, 0.74, 1024, "preconditioned", 1.0),
    (correlated_logistic, 0.74, 1024, "secant", 1.5),
    (correlated_logistic, 0.74, 1024, "stochastic", 1.0),
    (eight_schools, 0.75, 1024, "preconditioned", 1.5),
    (eight_schools, 0.75, 1024, "secant", 1.5),
    (eight_schools, 0.75, 1024, "stochastic", 1.5),
    (radon, 0.58, 1024, "preconditioned", 1.5),
    (radon, 0.58, 1024, "secant", 1.5),
    (radon, 0.58, 1024, "stochastic", 1.5),
]
TAPES = 8


def main() -> None:
    """Count sweeps for every case, with the largest difference from the sequential chain."""
    rows = []
    warmed = {build: warm_up(build()) for build in dict.fromkeys(case[0] for case in CASES)}
    for build, step_size, n, rule, curvature in CASES:
        case = warmed[build]
        tuning = replace(case.tuning, step_size=step_size, curvature=curvature)
        spec = SweepSpec(tuning.metric.kind, rule)
        solvers = [
            make_solver("jax", case.density, spec, WindowPlan(w, w, tol=1e-6, capacity=n))
            for w in (n, 1)
        ]
        found = []
        for seed in range(TAPES):
            normal, uniform = (np.random.default_rng([5, seed, i]) for i in range(2))
            tape = draw_tape(normal, uniform, n, case.density.size)
            solved, exact = (
                solver.solve(case.z, tape, tuning, case.params, np.random.default_rng(0))
                for solver in solvers
            )
            acceptance = acceptance_rates(exact.log_alpha).mean()
            found.append((solved.n_sweeps, acceptance, np.abs(solved.z - exact.z).max()))
        sweeps, acceptance, difference = zip(*found, strict=True)
        rows.append(
            {
                "model": build.__name__,
                "dimension": case.density.size,
                "transitions": n,
                "rule": rule,
                "curvature": curvature,
                "acceptance": round(float(np.mean(acceptance)), 3),
                "sweeps": float(np.mean(sweeps)),
                "sweeps_by_tape": list(sweeps),
                "largest_difference": float(f"{max(difference):.1e}"),
            }
        )
    write("sweeps", rows)


if __name__ == "__main__":
    main()
