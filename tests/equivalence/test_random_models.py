"""Random models sample, and windows give the states of single steps; ``tests.random_models`` says
how to run many more.
"""

import pytest

from tests.random_models.check import check
from tests.random_models.models import EFFECTS, LIKELIHOODS, random_model
from tests.support import quick_xla

# PyMC says that it imputes.
pytestmark = pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")

FEW, MORE = (0, 3), (1, 2, *range(4, 8))


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)]
)
def test_windows_solve_a_random_model(seed: int) -> None:
    found = check(seed, "jax")
    assert found.passed, str(found)


def test_every_part_is_drawn() -> None:
    descriptions = "; ".join(random_model(seed)[1] for seed in range(120))
    parts = [*EFFECTS, *LIKELIHOODS]
    assert [part for part in parts if f"={part}" not in descriptions] == []


def test_a_window_that_trusts_its_guess_is_caught() -> None:
    with quick_xla():
        assert not check(FEW[0], "jax", window_tol=0.1).passed
