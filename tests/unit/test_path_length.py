"""How many steps a path of a length has."""

import numpy as np
import pytest

from pymc_deer.path_length import FIRST_LENGTH, MAX_STEPS, PathLength


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize("step_size", [1e-9, 0.3, 50.0])
def test_a_number_of_steps_stays_what_it_is(step_size: float, learning: bool) -> None:
    assert PathLength(7).lengths(step_size, learning=learning) == (7, 7)
    assert PathLength().lengths(step_size, learning=learning) == (1, 1)


@pytest.mark.parametrize("learning", [False, True])
@pytest.mark.parametrize(
    ("step_size", "steps"), [(0.3, 4), (0.28, 6), (0.26, 6), (1.4, 2), (9.0, 2), (1e-9, MAX_STEPS)]
)
def test_a_given_length_is_the_nearest_even_number_of_steps(
    step_size: float, steps: int, learning: bool
) -> None:
    path = PathLength(None, 1.5)
    assert path.lengths(step_size, learning=learning) == (steps, steps)


@pytest.mark.parametrize("length", [FIRST_LENGTH, 0.4, 6.0])
def test_learning_tries_all_even_numbers_up_to_twice_the_best_known(length: float) -> None:
    path = PathLength(None, length, adapts=True)
    best, twice = (2 * round(factor * length / 0.2) for factor in (1, 2))
    assert path.lengths(0.1, learning=True) == (2, twice)
    assert path.lengths(0.1, learning=False) == (best, best)
    assert path.lengths(1e-9, learning=True) == (2, MAX_STEPS)
    assert path.lengths(100.0, learning=True) == (2, 2)


def test_first_length_takes_a_normal_to_an_independent_point() -> None:
    assert np.cos(FIRST_LENGTH) == pytest.approx(0.0)
