"""Which acceptance rate to aim at: ``uv run python -m tests.benchmarks.target_accept``.

One warm-up a model fixes the metric; for every target, bisection finds the step size. Long
sequential chains give effective sample sizes per transition, and windows on other tapes the sweeps
that the same transitions take, with the best c of a short grid. Draws
``docs/images/target_accept.png`` besides writing the table.
"""

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from arviz_stats.base import array_stats

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.examples import breast_cancer, correlated_logistic, eight_schools, radon
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed, take_no_options, warm_up, write
from tests.benchmarks.trial_sweeps import TOL, run, sequential_solver, step_size_for, tape_of

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "target_accept.png"
MODELS = (eight_schools, breast_cancer, correlated_logistic, radon)
TARGETS = (0.4, 0.5, 0.574, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9)
DEFAULT = 0.7
CHAINS, TRANSITIONS, DISCARDED = 4, 20_000, 500
SEEDS = (1, 2)
N = 1024
WINDOWS = (256, 1024)
GRID = (1.0, 1.25, 1.5, 2.0)
TAPES = (4, 5)


def least_ess(case: Warmed, solver: Solver, step_size: float, seed: int) -> tuple[float, float]:
    """Least bulk ESS per transition over coordinates and squared deviations, and acceptance."""
    chains, rates = [], []
    for chain in range(CHAINS):
        tape = tape_of(case, 100 * seed + chain, DISCARDED + TRANSITIONS)
        found = run(solver, case, step_size, tape)
        chains.append(case.tuning.metric.to_x(found.z[DISCARDED:]))
        rates.append(acceptance_rates(found.log_alpha).mean())
    x = np.array(chains)
    squared = (x - x.mean(axis=(0, 1))) ** 2
    both = np.concatenate([x, squared], axis=-1)
    ess = array_stats.ess(both, chain_axis=0, draw_axis=1, method="bulk")
    return float(np.min(ess)) / (CHAINS * TRANSITIONS), float(np.mean(rates))


def sweeps(case: Warmed, solver: Solver, step_size: float) -> tuple[float, float]:
    """Mean sweeps for N transitions, and the c of the grid that is best on the first tape."""
    tapes = [tape_of(case, seed, N) for seed in TAPES]
    first = {c: run(solver, case, step_size, tapes[0], curvature=c).n_sweeps for c in GRID}
    best = min(first, key=first.__getitem__)
    others = [run(solver, case, step_size, t, curvature=best).n_sweeps for t in tapes[1:]]
    return float(np.mean([first[best], *others])), best


def measure(case: Warmed, name: str) -> list[dict[str, Any]]:
    """One row for every target."""
    sequential = sequential_solver(case, DISCARDED + TRANSITIONS)
    spec = SweepSpec(case.tuning.metric.kind)
    windowed = {
        width: make_solver("jax", case.density, spec, WindowPlan(width, 200, TOL, N))
        for width in WINDOWS
    }
    rows = []
    for target in TARGETS:
        step_size = step_size_for(case, target, sequential)
        runs = np.array([least_ess(case, sequential, step_size, seed) for seed in SEEDS])
        ess = runs[:, 0].mean()
        row: dict[str, Any] = {
            "model": name,
            "target": target,
            "step_size": round(step_size, 3),
            "acceptance": round(float(runs[:, 1].mean()), 3),
            "ess_per_1000": round(1000 * ess, 1),
            "ess_per_1000_seeds": [round(1000 * float(e), 1) for e in runs[:, 0]],
        }
        for width, solver in windowed.items():
            count, c = sweeps(case, solver, step_size)
            row |= {
                f"c_{width}": c,
                f"sweeps_{width}": round(count, 1),
                f"ess_per_sweep_{width}": round(N * ess / count, 3),
                f"ess_per_1000_states_{width}": round(1000 * N * ess / (count * width), 2),
            }
        print(*row.values(), flush=True)
        rows.append(row)
    return rows


def draw(rows: list[dict[str, Any]]) -> None:
    """Each curve as a share of its highest value, one panel a model."""
    curves = {
        "ess_per_1000": "sequential: ESS per transition",
        "ess_per_sweep_256": "W = 256: ESS per sweep",
        "ess_per_sweep_1024": "W = 1024: ESS per sweep",
    }
    models = list(dict.fromkeys(row["model"] for row in rows))
    figure, axes = plt.subplots(
        2, 2, figsize=(8, 5), sharex=True, sharey=True, layout="constrained"
    )
    for axis, model in zip(axes.flat, models, strict=True):
        own = [row for row in rows if row["model"] == model]
        for i, (key, label) in enumerate(curves.items()):
            values = np.array([row[key] for row in own])
            rates = [row["acceptance"] for row in own]
            axis.plot(rates, values / values.max(), "o-", color=f"C{i}", markersize=3, label=label)
        axis.axvline(DEFAULT, color="0.7", linewidth=1, linestyle="--")
        axis.set_title(model.replace("_", " "), fontsize=9, loc="left")
        axis.spines[["top", "right"]].set_visible(False)
    axes[0, 0].legend(fontsize=7, frameon=False, loc="lower center")
    axes[0, 0].set_ylim(0, 1.05)
    figure.supxlabel("acceptance rate", fontsize=9)
    figure.supylabel("share of the highest value", fontsize=9)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=100)


def main() -> None:
    """Measure every model, write the table and draw the picture."""
    take_no_options(__doc__)
    rows: list[dict[str, Any]] = []
    for build in MODELS:
        rows += measure(warm_up(build(), backend="jax"), build.__name__)
    write("target_accept", rows)
    draw(rows)


if __name__ == "__main__":
    main()
