"""Sweeps that a long window takes: ``uv run python -m tests.benchmarks.sweeps [mala] [hmc]``.

Models after warm-up with a dense metric, at a step size that accepts about 0.8 of the proposals
(the 8192 transitions: 0.75), all transitions in one window; means over eight tapes. Targets: 8192
transitions of the logistic regression (N = 1000, D = 25, correlated features) in at most 30 sweeps;
1024 in at most 25, eight schools 50, radon 80. With DeerHMC's metric and paths and its
jitter of 0.2, at acceptance 0.8 or more: 1024 transitions of the logistic in at most 25, of eight
schools in 70.
"""

import argparse
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import chain

import numpy as np

from pymc_deer import DeerHMC
from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.examples import correlated_logistic, eight_schools, radon
from pymc_deer.noise import Tape, draw_tape
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import RESULTS, Warmed, warm_up, write

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
HMC_CASES = [
    # model, step size, leapfrog steps, rule, curvature
    (correlated_logistic, 0.85, 2, "preconditioned", 1.0),
    (correlated_logistic, 0.85, 2, "secant", 1.5),
    (correlated_logistic, 0.85, 2, "stochastic", 1.0),
    (eight_schools, 0.7, 2, "preconditioned", 1.5),
    (eight_schools, 0.7, 2, "secant", 1.5),
    (eight_schools, 0.7, 2, "stochastic", 1.5),
    (eight_schools, 0.41, 4, "secant", 1.5),
    (radon, 0.53, 4, "preconditioned", 1.5),
    (radon, 0.53, 4, "secant", 1.5),
]
"""Not ``stochastic`` on radon, which commits hardly more than a transition a sweep: eight tapes
take more than half an hour."""
N = 1024
JITTER = 0.2
TAPES = 8


def count(
    case: Warmed, spec: SweepSpec, tuning: Tuning, n: int, tapes: Sequence[Tape]
) -> dict[str, object]:
    """Sweeps for n transitions in one window, with the largest difference from single steps."""
    solvers = [
        make_solver("jax", case.density, spec, WindowPlan(w, w, tol=1e-6, capacity=n))
        for w in (n, 1)
    ]
    found = []
    for tape in tapes:
        solved, exact = (
            solver.solve(case.z, tape, tuning, case.params, np.random.default_rng(0))
            for solver in solvers
        )
        acceptance = acceptance_rates(exact.log_alpha).mean()
        found.append((solved.n_sweeps, acceptance, np.abs(solved.z - exact.z).max()))
    sweeps, acceptance, difference = zip(*found, strict=True)
    return {
        "dimension": case.density.size,
        "kernel": spec.kernel,
        "leapfrog_steps": tuning.lengths[1],
        "transitions": n,
        "rule": spec.rule,
        "curvature": tuning.curvature,
        "acceptance": round(float(np.mean(acceptance)), 3),
        "sweeps": float(np.mean(sweeps)),
        "sweeps_by_tape": list(sweeps),
        "largest_difference": float(f"{max(difference):.1e}"),
    }


def mala_rows() -> Iterator[dict[str, object]]:
    """DeerMALA's counts."""
    warmed = {build: warm_up(build()) for build in dict.fromkeys(case[0] for case in CASES)}
    for build, step_size, n, rule, curvature in CASES:
        case = warmed[build]
        tuning = replace(case.tuning, step_size=step_size, curvature=curvature)
        rngs = ([np.random.default_rng([5, seed, i]) for i in range(2)] for seed in range(TAPES))
        tapes = [draw_tape(*pair, n, case.density.size) for pair in rngs]
        spec = SweepSpec(tuning.metric.kind, rule)
        yield count(case, spec, tuning, n, tapes) | {"model": build.__name__}


def hmc_rows() -> Iterator[dict[str, object]]:
    """DeerHMC's counts."""
    builds = dict.fromkeys(case[0] for case in HMC_CASES)
    warmed = {build: warm_up(build(), DeerHMC, backend="jax") for build in builds}
    for build, step_size, steps, rule, curvature in HMC_CASES:
        case = warmed[build]
        metric = case.tuning.metric
        tuning = Tuning(step_size, curvature, metric, JITTER, (steps, steps), standardized=True)
        streams = [Streams.spawn(np.random.default_rng([5, seed])) for seed in range(TAPES)]
        tapes = [stream.tape(N, case.density.size, tuning) for stream in streams]
        spec = SweepSpec(metric.kind, rule, kernel="hmc")
        yield count(case, spec, tuning, N, tapes) | {"model": build.__name__}


ROWS = {"mala": mala_rows, "hmc": hmc_rows}


def kernels_asked_for(arguments: Sequence[str] | None = None) -> list[str]:
    """Those named on the command line, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    # Without a default, which argparse would hold against the choices as one of them.
    parser.add_argument("kernels", nargs="*", choices=tuple(ROWS))
    return parser.parse_args(arguments).kernels or list(ROWS)


def main() -> None:
    """Count sweeps for every case of the kernels named, or of all; other rows are kept."""
    asked = kernels_asked_for()
    file = RESULTS / "sweeps.json"
    old = json.loads(file.read_text())["rows"] if file.exists() else []
    kept = [row for row in old if row["kernel"] not in asked]
    made = chain.from_iterable(ROWS[kernel]() for kernel in asked)
    write("sweeps", chain(kept, made), kept)


if __name__ == "__main__":
    main()
