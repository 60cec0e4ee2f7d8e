"""Acceptance rates, and the one to aim at where transitions diverge."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_deer.acceptance import TargetAccept, acceptance_rates, count_unstable

NOT_FINITE = [-np.inf, np.inf, np.nan]


def test_acceptance_rates_count_non_finite_ratios_as_rejections() -> None:
    log_alpha = np.array([0.5, 0.0, -1.0, *NOT_FINITE])
    assert_allclose(acceptance_rates(log_alpha), [1.0, 1.0, np.exp(-1.0), 0.0, 0.0, 0.0])


def test_what_is_not_finite_is_no_matter_of_the_step_size() -> None:
    assert count_unstable(np.array([-1000.1, -1e300, -999.9, 0.0, 2000.0, *NOT_FINITE])) == 2


def test_rejections_are_halved_for_ten_times_the_divergences() -> None:
    target = TargetAccept(0.6, adapts=True)
    rates = [target.behind(n, 100_000).rate for n in (30, 300, 3000)]
    assert_allclose(rates, [0.6, 0.8, 0.9], atol=0.001)


@pytest.mark.parametrize("n_unstable", [0, 1, 30])
def test_few_divergences_are_left_alone(n_unstable: int) -> None:
    target = TargetAccept(0.8, adapts=True)
    assert target.behind(n_unstable, 100_000) is target


def test_there_is_a_highest_rate() -> None:
    raised = TargetAccept(0.8, adapts=True).behind(50_000, 100_000)
    assert raised == TargetAccept(0.95, adapts=True)
    assert raised.behind(50_000, 100_000) == raised
    # Nor does one above it fall.
    assert TargetAccept(0.99, adapts=True).behind(50_000, 100_000).rate == 0.99


def test_a_rate_that_the_user_fixed_stays() -> None:
    fixed = TargetAccept(0.8)
    assert fixed.behind(50_000, 100_000) is fixed
