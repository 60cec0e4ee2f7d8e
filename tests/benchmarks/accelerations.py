"""What reduces the number of sweeps: ``uv run python -m tests.benchmarks.accelerations``.

After warm-up, at the step size that accepts 0.8, the same tapes of 1024 transitions are solved in
one window and in windows of 64, to 1e-6, with every setting of :func:`settings`. The last row of a
model is the policy that needs nothing new: c from a short grid, by a trial solve on another tape.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from pymc_deer.backends.base import Solver
from pymc_deer.backends.forecast import on_standard_normal
from pymc_deer.examples import breast_cancer, correlated_logistic, eight_schools, radon
from tests.benchmarks.measure import Warmed, take_no_options, warm_up, write
from tests.benchmarks.trial_rules import (
    Anderson,
    CoordinateSecant,
    Cycle,
    DrawnSecant,
    PathCurvature,
    RankOne,
    Stochastic,
    normal_chain,
    normal_proposals,
)
from tests.benchmarks.trial_sweeps import (
    Problem,
    Rule,
    run,
    sequential_solver,
    solve,
    step_size_for,
    tape_of,
)

MODELS = (eight_schools, correlated_logistic, breast_cancer, radon)
TARGET = 0.8
N = 1024
WINDOWS = (1024, 64)
TAPES = (1, 2)
MAX_SWEEPS = {1024: 200, 64: 1024}
PILOT = 4000
GRID = (1.0, 1.25, 1.5, 2.0)
TWO_THEN_LESS = (*[2.0] * 10, 1.25)

Setting = tuple[str, Callable[[Problem], Rule], dict[str, Any]]


def mean_curvature(case: Warmed, step_size: float, solver: Solver) -> np.ndarray:
    """The mean of -H (D, D), whitened, by least squares from a pilot run's moves and gradients."""
    pilot = run(solver, case, step_size, tape_of(case, 99, PILOT))
    moves, bends = np.diff(pilot.z, axis=0), -np.diff(pilot.dlogp, axis=0)
    fitted = np.linalg.lstsq(moves, bends)[0]
    return (fitted + fitted.T) / 2


def settings(mean: np.ndarray, step_size: float) -> list[Setting]:
    """Name, rule and further arguments of all that is tried.

    Parameters
    ----------
    mean
        Mean whitened curvature (D, D).
    step_size
        Of all transitions.
    """
    own = np.maximum(1, np.diag(mean))
    values, basis = np.linalg.eigh(mean)
    values = np.maximum(1, values)
    tried: list[Setting] = [(f"scalar c={c}", lambda p, c=c: Rule(c), {}) for c in (0.8, *GRID, 3)]
    tried += [(f"stochastic c={c}", lambda p, c=c: Stochastic(c, problem=p), {}) for c in GRID] + [
        (f"per coordinate x{f}", lambda p, f=f: Rule(f * own), {}) for f in (1, 1.25, 1.5)
    ]
    tried += [
        (f"per direction x{f}", lambda p, f=f: Rule(f * values, basis), {}) for f in (1, 1.25)
    ]
    tried += [
        ("along the path", lambda p: PathCurvature(1.0), {}),
        ("coordinate secants 1 to 3", lambda p: CoordinateSecant(1.0, low=1, high=3), {}),
        ("coordinate secants 0.7 to 2", lambda p: CoordinateSecant(1.0), {}),
        ("rank one c=1", lambda p: RankOne(1.0), {}),
        ("rank one c=1.25", lambda p: RankOne(1.25), {}),
        ("alternating c=1, 2", lambda p: Cycle(several=(1.0, 2.0)), {}),
        ("alternating c=1, 1.5", lambda p: Cycle(several=(1.0, 1.5)), {}),
        ("c=2 ten times, then 1.25", lambda p: Cycle(several=TWO_THEN_LESS, repeats=False), {}),
        ("Anderson 1, c=1.25", lambda p: Anderson(1.25, depth=1), {}),
        ("Anderson 3, c=1.25", lambda p: Anderson(1.25, depth=3), {}),
        ("Anderson 5, c=1.25", lambda p: Anderson(1.25, depth=5), {}),
        ("Anderson 1 by coordinate", lambda p: Anderson(1.25, depth=1, split=True), {}),
    ]
    normal, accepted = ({"first_guess": guess} for guess in (normal_chain, normal_proposals))
    tried += [
        ("c=1, guess normal", lambda p: Rule(1.0), normal),
        ("c=1, guess accepted", lambda p: Rule(1.0), accepted),
        ("coordinate secants 0.7 to 2, guess normal", lambda p: CoordinateSecant(1.0), normal),
        ("rank one c=1, guess normal", lambda p: RankOne(1.0), normal),
        ("drawn secants, guess normal", lambda p: DrawnSecant(1.0), normal),
    ]
    decided = {"bend": float(on_standard_normal(np, np.float64(step_size), 1).bend)}
    tried += [
        ("c=1, guess and decisions normal", lambda p: Rule(1.0), normal | decided),
        ("rank one c=1, guess and decisions normal", lambda p: RankOne(1.0), normal | decided),
        ("drawn secants, guess and decisions normal", lambda p: DrawnSecant(1.0), normal | decided),
    ]
    return tried


def measure(case: Warmed, name: str) -> list[dict[str, object]]:
    """Sweeps for every window and setting."""
    solver = sequential_solver(case, PILOT)
    step_size = step_size_for(case, TARGET, solver)
    tried, rows = settings(mean_curvature(case, step_size, solver), step_size), []
    for width in WINDOWS:
        problem = Problem(case, step_size, width)
        tapes = [tape_of(case, seed, N + 2 * width) for seed in TAPES]
        found: dict[str, list[int]] = {}
        for label, build, extra in tried:
            most = MAX_SWEEPS[width]
            found[label] = [
                solve(problem, tape, N, build(problem), max_sweeps=most, **extra) for tape in tapes
            ]
        # Chosen on one tape, counted on the other.
        grid = np.array([found[f"scalar c={c}"] for c in GRID])
        found["c by trial"] = grid[grid.argmin(axis=0)[::-1], [0, 1]].tolist()
        for label, sweeps in found.items():
            rows.append({"model": name, "window": width, "setting": label, "sweeps": sweeps})
            print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    """Measure every model."""
    take_no_options(__doc__)
    rows: list[dict[str, object]] = []
    for build in MODELS:
        rows += measure(warm_up(build(), backend="jax"), build.__name__)
    write("accelerations", rows)


if __name__ == "__main__":
    main()
