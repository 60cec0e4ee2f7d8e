"""Random models sample, and windows give the states of single steps; ``tests.random_models`` says
how to run many more.
"""

import warnings
from functools import cache

import pytest
from pymc.exceptions import ImputationWarning

from tests.random_models.check import TOL, Outcome, check
from tests.random_models.models import EFFECTS, LIKELIHOODS, random_model

FEW, MORE = range(4), range(4, 12)


def outcome(seed: int, window_tol: float = TOL) -> Outcome:
    with warnings.catch_warnings():
        # PyMC says that it imputes.
        warnings.simplefilter("ignore", ImputationWarning)
        return check(seed, "jax", window_tol)


@pytest.mark.parametrize(
    "seed", [*FEW, *(pytest.param(seed, marks=pytest.mark.slow) for seed in MORE)]
)
def test_windows_solve_a_random_model(seed: int) -> None:
    found = outcome(seed)
    assert found.passed, str(found)


@cache
def descriptions() -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ImputationWarning)
        return "; ".join(random_model(seed)[1] for seed in range(120))


@pytest.mark.parametrize("part", [*EFFECTS, *LIKELIHOODS])
def test_every_part_is_drawn(part: str) -> None:
    assert f"={part}" in descriptions()


def test_a_window_that_trusts_its_guess_is_caught() -> None:
    assert not outcome(FEW[0], window_tol=0.1).passed
