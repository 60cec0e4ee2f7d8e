"""Paths that pay: ``uv run python -m tests.benchmarks.path_length [NAME ...]``.

After DeerHMC's own warm-up, chains of fixed metric with several average numbers of leapfrog steps
and three ways to vary them: all the same, uniform on the even numbers up to 2 L - 2, or the same
with step sizes that vary by 20 per cent either way; the step size is set for acceptance 0.8 each
time. Columns are effective draws per 1000 gradients: bulk, tail, and bulk of the squares, the least
of all coordinates. Beside them, what two criteria pick from as many transitions as the last window
of warm-up has: ours, and the ChEES criterion per gradient (Hoffman, Radul and Sountsov 2021).
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pymc as pm
from arviz_stats.base import array_stats

from pymc_deer import DeerHMC
from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.examples import correlated_logistic
from pymc_deer.noise import Tape
from pymc_deer.sweep import SweepSpec
from pymc_deer.warmup.path_statistics import PathStatistics
from tests.benchmarks.measure import Warmed, warm_up, write
from tests.zoo import MODELS

CASES: dict[str, Callable[[], pm.Model]] = {
    "eight_schools": MODELS["eight_schools"],
    "correlated_logistic": correlated_logistic,
    "breast_cancer": MODELS["breast_cancer"],
    "radon": MODELS["radon"],
    "stochastic_volatility": MODELS["stochastic_volatility"],
}
VARIED = ("fixed", "uniform", "step size")
STEPS = (2, 4, 6, 8, 12)
CHAINS = 4
GRADIENTS = 12_000
"""Of each chain."""

LEARNING = 840
"""Transitions from which warm-up of 1000 draws chooses the paths of the draws kept."""

TARGET = 0.8
JITTER = 0.2
SEEDS = 4


@dataclass(frozen=True)
class Runner:
    """Chains of one model from where its warm-up ended."""

    case: Warmed
    solver: Solver

    @classmethod
    def of(cls, build: Callable[[], pm.Model]) -> "Runner":
        case = warm_up(build(), DeerHMC, backend="jax")
        spec = SweepSpec(case.tuning.metric.kind, kernel="hmc")
        plan = WindowPlan(1, None, 1e-6, GRADIENTS)
        return cls(case, make_solver("jax", case.density, spec, plan))

    def run(self, tape: Tape, step_size: float) -> Trajectory:
        tuning = replace(self.case.tuning, step_size=step_size)
        rng = np.random.default_rng(0)
        return self.solver.solve(self.case.z, tape, tuning, self.case.params, rng)

    def tape(self, seed: int, n: int, steps: int, varied: str = "uniform") -> Tape:
        """n transitions of `steps` leapfrog steps on average."""
        lengths = (2, 2 * steps - 2) if varied == "uniform" else (steps, steps)
        jitter = JITTER if varied == "step size" else 0.0
        tuning = Tuning(1.0, 1.0, self.case.tuning.metric, jitter, lengths)
        return Streams.spawn(np.random.default_rng(seed)).tape(n, self.case.density.size, tuning)

    def step_size(self, steps: int, varied: str) -> float:
        """The step size of acceptance 0.8, by bisection."""
        tape = self.tape(90, max(200, 1600 // steps), steps, varied)
        low, high = 0.05, 2.0
        while high > 1.02 * low:
            middle = float(np.sqrt(low * high))
            rate = acceptance_rates(self.run(tape, middle).log_alpha).mean()
            low, high = (middle, high) if rate > TARGET else (low, middle)
        return low


def effective(runner: Runner, steps: int, varied: str) -> dict[str, float]:
    """Least effective draws per 1000 gradients."""
    step_size = runner.step_size(steps, varied)
    tapes = [runner.tape(c, GRADIENTS // steps, steps, varied) for c in range(CHAINS)]
    runs = [runner.run(tape, step_size) for tape in tapes]
    x = np.array([runner.case.tuning.metric.to_x(run.z) for run in runs])
    squares = (x - x.mean(axis=(0, 1))) ** 2
    gradients = sum(int(tape.lengths.sum()) for tape in tapes)
    found = {}
    for name, values, method in [
        ("bulk", x, "bulk"),
        ("tail", x, "tail"),
        ("squares", squares, "bulk"),
    ]:
        prob = (0.05, 0.95) if method == "tail" else None
        ess = array_stats.ess(values, chain_axis=0, draw_axis=1, method=method, prob=prob)
        found[name] = round(1000 * float(np.min(ess)) / gradients, 1)
    return found


def picks(runner: Runner, seed: int) -> tuple[float, int]:
    """Steps that our criterion and ChEES choose from one learning window."""
    most = max(STEPS)
    tuning = Tuning(1.0, 1.0, runner.case.tuning.metric, JITTER, (2, most))
    streams = Streams.spawn(np.random.default_rng(50 + seed))
    tape = streams.tape(LEARNING, runner.case.density.size, tuning)
    step_size = runner.step_size(most // 2, "step size")
    run = runner.run(tape, step_size)
    statistics = PathStatistics.empty(1, runner.case.density.size).extended([run])
    ours = statistics.best(2 * step_size)
    assert ours is not None
    norms = ((run.z - run.z.mean(axis=0)) ** 2).sum(axis=1)
    moved, lengths = np.diff(norms) ** 2, run.n_leapfrog[1:]
    per_gradient = {m: moved[lengths == m].mean() / m for m in range(2, most + 1, 2)}
    return round(ours[0] / step_size, 1), max(per_gradient, key=per_gradient.__getitem__)


def measure(name: str) -> list[dict[str, Any]]:
    """One row for every number of steps, and one for the criteria."""
    runner = Runner.of(CASES[name])
    rows: list[dict[str, Any]] = []
    for steps in STEPS:
        row: dict[str, Any] = {"model": name, "steps": steps}
        for varied in VARIED[::2] if steps == 2 else VARIED:
            row |= {f"{varied} {k}": v for k, v in effective(runner, steps, varied).items()}
        print(*row.values(), flush=True)
        rows.append(row)
    chosen = [picks(runner, seed) for seed in range(SEEDS)]
    ours, chees = zip(*chosen, strict=True)
    rows.append({"model": name, "picked": list(ours), "picked by ChEES": list(chees)})
    print(rows[-1], flush=True)
    return rows


def main() -> None:
    """Measure the models named, or all."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args().names or CASES
    write("path_length", [row for name in names for row in measure(name)])


if __name__ == "__main__":
    main()
