"""``uv run python -m tests.benchmarks.how_it_works_pictures``: those of ``docs/how_it_works.md``.

How sweeps close in on a chain in a metric that whitens its posterior, and in one that does not; and
how many sweeps a window takes by the curvature bound c, as in ``docs/benchmarks``.
"""

import json
from dataclasses import replace

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.figure import Figure

from pymc_deer.acceptance import accepts
from pymc_deer.examples import correlated_logistic
from pymc_deer.metric import Metric
from tests.benchmarks.measure import RESULTS, Warmed, take_no_options, warm_up
from tests.benchmarks.trial_sweeps import (
    TOL,
    Problem,
    run,
    sequential_solver,
    step_size_for,
    tape_of,
)

IMAGES = RESULTS.parent / "images"
N = 256
SWEEPS = 40
TARGET = 0.8


def without_correlations(case: Warmed) -> Warmed:
    """The same model in a diagonal metric with the same standard deviations."""
    metric = case.tuning.metric
    scales = np.sqrt((metric.factor**2).sum(axis=1))
    diagonal = Metric(metric.mu, scales)
    tuning = replace(case.tuning, metric=diagonal)
    return replace(case, tuning=tuning, z=diagonal.to_z(metric.to_x(case.z)))


def errors(case: Warmed) -> np.ndarray:
    """Largest error of each state after each sweep, (SWEEPS, N), with c = 1 and no state fixed."""
    solver = sequential_solver(case, 4000)
    step_size = step_size_for(case, TARGET, solver)
    tape = tape_of(case, 3, N)
    exact = run(solver, case, step_size, tape).z
    problem, moved = Problem(case, step_size, N), max(0.0, 1 - step_size**2 / 2)
    guess, found = np.tile(case.z, (N, 1)), np.empty((SWEEPS, N))
    for sweep in range(SWEEPS):
        previous = np.vstack([case.z, guess[:-1]])
        batch = problem.batch(previous, tape, sweep)
        accepted = accepts(batch.log_alpha, tape.log_u)[:, None]
        factors = np.where(accepted, moved, 1.0)
        state = case.z
        for t in range(N):
            state = batch.states[t] + factors[t] * (state - previous[t])
            guess[t] = state
        found[sweep] = np.abs(guess - exact).max(axis=1)
    return found


def whitening(case: Warmed) -> Figure:
    """Errors by transition and sweep, in two metrics."""
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), sharey=True, layout="constrained")
    titles = ("dense metric: whitened", "diagonal metric: correlations left")
    for axis, title, metric in zip(axes, titles, (case, without_correlations(case)), strict=True):
        found = errors(metric)
        axis.imshow(
            np.log10(np.clip(found, TOL, 10)),
            aspect="auto",
            cmap="magma",
            vmin=np.log10(TOL),
            vmax=1,
            extent=(0.5, N + 0.5, SWEEPS + 0.5, 0.5),
            interpolation="nearest",
        )
        solved = int((found[-1] < TOL).cumprod().sum())
        print(f"{title}: {solved} of {N} states within {TOL:g} after {SWEEPS} sweeps")
        axis.set_title(title, fontsize=10, loc="left")
        axis.set_xlabel("transition")
    axes[0].set_ylabel("sweep")
    figure.colorbar(axes[0].images[0], ax=axes, label="error, log10 of whitened units")
    return figure


def curvature() -> Figure:
    """Sweeps for 1024 transitions in one window by c, for the rule with one c for all."""
    rows = json.loads((RESULTS / "accelerations.json").read_text())["rows"]
    figure, axis = plt.subplots(figsize=(6, 3.4), layout="constrained")
    for model in dict.fromkeys(row["model"] for row in rows):
        chosen = [
            (float(row["setting"].removeprefix("scalar c=")), np.mean(row["sweeps"]))
            for row in rows
            if row["model"] == model
            and row["window"] == 1024
            and row["setting"].startswith("scalar c=")
            and max(row["sweeps"]) < 200
        ]
        axis.plot(*zip(*sorted(chosen), strict=True), marker="o", label=model.replace("_", " "))
    axis.set(xlabel="curvature bound c", ylabel="sweeps", ylim=(0, None))
    axis.spines[["top", "right"]].set_visible(False)
    axis.legend(fontsize=8, frameon=False)
    return figure


def main() -> None:
    """Draw the pictures and write them."""
    take_no_options(__doc__)
    case = warm_up(correlated_logistic(), backend="jax")
    pictures = {"whitening": whitening(case), "curvature": curvature()}
    for name, figure in pictures.items():
        figure.savefig(IMAGES / f"{name}.png", dpi=150)
        print(f"Written to {IMAGES / name}.png")


if __name__ == "__main__":
    main()
