"""The README's picture: ``uv run python -m tests.benchmarks.sweeps_picture``.

One coordinate of the eight-schools chain, as the guesses of successive sweeps close in on it.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pytensor
import pytensor.tensor as pt

from pymc_deer import leapfrog
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import WindowPlan
from pymc_deer.examples import eight_schools
from pymc_deer.jacobian import preconditioned_jacobian
from pymc_deer.noise import draw_tape
from pymc_deer.reference import transition
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import Warmed, warm_up

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "sweeps.png"
N = 200
SHOWN = (1, 2, 4, 8, 16, 30)
COORDINATE = 0


def guesses(case: Warmed, xi: np.ndarray, log_u: np.ndarray, n_sweeps: int) -> list[np.ndarray]:
    """The window's states (N, D) after each of the first sweeps, by the NumPy oracle."""
    density, tuning = case.density, case.tuning
    compiled: Any = pytensor.function(
        [density.x, *density.params], [density.logp, density.dlogp], mode="FAST_COMPILE"
    )

    def whitened(z: np.ndarray) -> tuple[float, np.ndarray]:
        logp, dlogp = compiled(tuning.metric.to_x(z), *case.params)
        return float(logp), dlogp @ tuning.metric.factor

    path = leapfrog.Path(pt.constant(tuning.step_size))
    moved = float(preconditioned_jacobian(path, pt.constant(tuning.curvature)).eval())
    guess, found = np.tile(case.z, (N, 1)), []
    for _ in range(n_sweeps):
        previous = np.vstack([case.z, guess[:-1]])
        solved, state = np.empty_like(guess), case.z
        for t in range(N):
            step = transition(whitened, previous[t], xi[t], float(log_u[t]), tuning.step_size)
            factor = moved if step.accepted else 1.0
            state = factor * state + step.z - factor * previous[t]
            solved[t] = state
        guess = solved
        found.append(guess)
    return found


def main() -> None:
    """Draw the picture and write it."""
    case = warm_up(eight_schools())
    case = replace(case, tuning=replace(case.tuning, step_size=0.7))
    normal, uniform = (np.random.default_rng([8, i]) for i in range(2))
    tape = draw_tape(normal, uniform, N, case.density.size)
    plan = WindowPlan(1, 1, 1e-6, N)
    solver = make_solver("numba", case.density, SweepSpec(case.tuning.metric.kind), plan)
    exact = solver.solve(case.z, tape, case.tuning, case.params, np.random.default_rng(0)).z
    found = guesses(case, tape.xi, tape.log_u, max(SHOWN))

    figure, axes = plt.subplots(
        len(SHOWN),
        1,
        figsize=(8, 1.35 * len(SHOWN)),
        sharex=True,
        sharey=True,
        layout="constrained",
    )
    for axis, sweep in zip(axes, SHOWN, strict=True):
        axis.plot(exact[:, COORDINATE], color="0.75", linewidth=3, label="sequential MALA")
        axis.plot(found[sweep - 1][:, COORDINATE], color="C3", linewidth=1.1, label="DEER")
        error = np.abs(found[sweep - 1] - exact).max(axis=1)
        solved = N if (error < 1e-6).all() else int(np.argmax(error >= 1e-6))
        axis.axvspan(0, solved, color="C2", alpha=0.12, linewidth=0)
        plural = "s" if sweep > 1 else ""
        axis.set_title(
            f"after {sweep} sweep{plural}: {solved} of {N} states exact", fontsize=9, loc="left"
        )
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].legend(fontsize=8, ncols=2, loc="upper right", frameon=False)
    axes[-1].set_xlabel("transition")
    figure.supylabel("one whitened coordinate", fontsize=9)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(PICTURE, dpi=150)
    print(f"Written to {PICTURE}")


if __name__ == "__main__":
    main()
