"""Random models sample, and windows give the states of single steps; ``tests.random_models`` says
how to run many more.
"""

from typing import Any

import pytest

from pymc_deer.density import Density
from pymc_deer.graphs.gradient_first import GradientFirst
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


def test_a_batch_of_another_density_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not taken for rounding, however alike its windows are to each other."""
    batch: Any = Density.batch

    def tempered(density: Density) -> GradientFirst:
        found = batch.fget(density)

        def gradient(x: Any) -> list[Any]:
            dlogp, *parts = found.gradient(x)
            return [1.001 * dlogp, *parts]

        return GradientFirst.of_parts(gradient, found.logp)

    monkeypatch.setattr(Density, "batch", property(tempered))
    with quick_xla(), pytest.raises(AssertionError, match=r"^DeerHMC, effect_0=crossed"):
        check(FEW[1], "jax")
