"""What decisions cost, and a second look: ``uv run python -m tests.benchmarks.decisions``.

The settings that :mod:`tests.benchmarks.accelerations` found best, on tapes that it did not use,
beside the scalar rule; and the sweeps that the same settings take when every step is told whether
the exact chain accepts it. The difference is what wrong decisions cost.
"""

from collections.abc import Callable
from typing import Any

from tests.benchmarks.accelerations import GRID, MAX_SWEEPS, MODELS, TARGET, WINDOWS, N
from tests.benchmarks.measure import Warmed, warm_up, write
from tests.benchmarks.trial_rules import Anderson, CoordinateSecant, Cycle, RankOne, normal_chain
from tests.benchmarks.trial_sweeps import (
    Problem,
    Rule,
    run,
    sequential_solver,
    solve,
    step_size_for,
    tape_of,
)

TAPES = (21, 22)
GUESS = {"first_guess": normal_chain}
SETTINGS: list[tuple[str, Callable[[], Rule], dict[str, Any]]] = [
    *[(f"scalar c={c}", lambda c=c: Rule(c), {}) for c in GRID],
    ("alternating c=1, 2", lambda: Cycle(several=(1.0, 2.0)), {}),
    ("Anderson 3, c=1.25", lambda: Anderson(1.25, depth=3), {}),
    ("coordinate secants 0.7 to 2", CoordinateSecant, {}),
    ("coordinate secants 0.7 to 2, guess normal", CoordinateSecant, GUESS),
    ("rank one c=1, guess normal", RankOne, GUESS),
]


def measure(case: Warmed, name: str) -> list[dict[str, object]]:
    """Sweeps for every window and setting, with decisions found and given."""
    solver = sequential_solver(case, N + 2 * max(WINDOWS))
    step_size, rows = step_size_for(case, TARGET, solver), []
    for width in WINDOWS:
        problem, most = Problem(case, step_size, width), MAX_SWEEPS[width]
        tapes = [tape_of(case, seed, N + 2 * width) for seed in TAPES]
        exact = [run(solver, case, step_size, tape).log_alpha > tape.log_u for tape in tapes]
        for label, build, extra in SETTINGS:
            found, given = (
                [
                    solve(problem, tape, N, build(), decisions=known, max_sweeps=most, **extra)
                    for tape, known in zip(tapes, decisions, strict=True)
                ]
                for decisions in ([None] * len(tapes), exact)
            )
            row = {"model": name, "window": width, "setting": label}
            rows.append({**row, "sweeps": found, "sweeps_with_decisions_given": given})
            print(*rows[-1].values(), flush=True)
    return rows


def main() -> None:
    """Measure every model."""
    rows: list[dict[str, object]] = []
    for build in MODELS:
        rows += measure(warm_up(build(), backend="jax"), build.__name__)
    write("decisions", rows)


if __name__ == "__main__":
    main()
