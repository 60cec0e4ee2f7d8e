"""The README's picture: ``uv run python -m tests.benchmarks.sweeps_picture``.

One coordinate of the eight-schools chain, as the guesses of successive sweeps close in on it.
"""

from pathlib import Path

from pymc_deer import trace_sweeps
from pymc_deer.examples import eight_schools
from pymc_deer.plots import plot_guesses
from tests.benchmarks.measure import take_no_options

PICTURE = Path(__file__).parents[2] / "docs" / "images" / "sweeps.png"


def main() -> None:
    """Draw the picture and write it."""
    take_no_options(__doc__)
    trace = trace_sweeps(200, model=eight_schools(), step_size=0.7)
    PICTURE.parent.mkdir(parents=True, exist_ok=True)
    shown = (1, 4, 8, 16, trace.n_sweeps)
    plot_guesses(trace, sweeps=shown).savefig(PICTURE, dpi=150)
    print(f"{trace.n_sweeps} sweeps, written to {PICTURE}")


if __name__ == "__main__":
    main()
