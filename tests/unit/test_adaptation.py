"""Warm-up: schedule, dual averaging, steps per draw, and what stays fixed."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.adaptation import (
    DualAveraging,
    Warmup,
    acceptance_rates,
    start_warmup,
    steps_per_draw,
    warmup_schedule,
)
from tests.support import trajectory

SIZE = 3


@settings(max_examples=300, deadline=None, derandomize=True)
@given(n_draws=st.integers(0, 5000), steps=st.integers(1, 64))
def test_schedule_covers_all_draws(n_draws: int, steps: int) -> None:
    schedule = warmup_schedule(n_draws, steps)
    assert sum(s.n_draws for s in schedule) == n_draws
    assert all(s.n_draws > 0 for s in schedule)
    # A window can only end where something was learnt from it.
    assert all(s.learns_metric for s in schedule if s.ends_window)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(n_draws=st.integers(20, 5000), steps=st.integers(1, 64))
def test_last_tenth_leaves_the_metric_alone(n_draws: int, steps: int) -> None:
    schedule = warmup_schedule(n_draws, steps)
    last_end = max(i for i, s in enumerate(schedule) if s.ends_window)
    tail = sum(s.n_draws for s in schedule[last_end + 1 :])
    assert tail == pytest.approx(n_draws / 10, abs=1)
    assert not any(s.learns_metric for s in schedule[last_end + 1 :])


def test_windows_grow_and_are_adapted_often() -> None:
    schedule = warmup_schedule(1000, 10)
    ends = np.cumsum([s.n_draws for s in schedule])[[s.ends_window for s in schedule]]
    lengths = np.diff([0, *ends])
    assert len(lengths) >= 5
    assert (np.diff(lengths) > 0).all()
    assert len(schedule) > 100


@pytest.mark.parametrize("target", [0.574, 0.7, 0.9])
@pytest.mark.parametrize("start", [0.1, 0.5, 2.0])
@pytest.mark.parametrize(
    "curve", [lambda e: np.exp(-e), lambda e: 1 / (1 + e**3)], ids=["exp", "power"]
)
def test_dual_averaging_finds_the_target(target: float, start: float, curve) -> None:
    rng = np.random.default_rng(0)
    adaptation = DualAveraging.at(start, target)
    assert adaptation.current == adaptation.average == pytest.approx(start)
    for _ in range(500):
        noise = rng.normal(0.0, 0.05)
        adaptation.update(float(np.clip(curve(adaptation.current) + noise, 0.0, 1.0)))
    assert curve(adaptation.average) == pytest.approx(target, abs=0.02)


def test_dual_averaging_comes_back_from_far() -> None:
    adaptation = DualAveraging.at(1e-4, 0.7)
    for _ in range(200):
        adaptation.update(float(np.exp(-adaptation.current)))
    assert np.exp(-adaptation.average) == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize(("wanted", "steps"), [(0.1, 1), (3.5, 4), (15.0, 15), (1e6, 64)])
def test_steps_per_draw_are_whole_and_within_bounds(wanted: float, steps: int) -> None:
    assert steps_per_draw(wanted) == steps


def test_acceptance_rates_count_non_finite_ratios_as_rejections() -> None:
    log_alpha = np.array([0.5, 0.0, -1.0, -np.inf, np.inf, np.nan])
    assert_allclose(acceptance_rates(log_alpha), [1.0, 1.0, np.exp(-1.0), 0.0, 0.0, 0.0])


def new_warmup(n_tune: int = 100, **changes) -> Warmup:
    options = {
        "kind": "diag",
        "factor": None,
        "step_size": None,
        "target_accept": 0.7,
        "curvature": 1.5,
        "steps_per_draw": None,
    }
    return start_warmup(SIZE, n_tune, **(options | changes))


def drive(warmup: Warmup, seed: int = 0) -> list[float]:
    """Feed a warm-up with draws of N(0, 3^2) at acceptance exp(-step size); step sizes used."""
    rng = np.random.default_rng(seed)
    used = []
    while warmup.draws_to_boundary:
        n = warmup.draws_to_boundary
        rows = n * warmup.steps_per_draw
        scales = warmup.tuning.metric.factor
        x = rng.normal(0.0, 3.0, (rows, SIZE))
        log_alpha = np.full(rows, -warmup.tuning.step_size)
        used.append(warmup.tuning.step_size)
        z = (x - warmup.tuning.metric.mu) / scales
        warmup.observe(trajectory(z, -x / 9 * scales, log_alpha), n)
    return used


def test_warmup_adapts_step_size_metric_and_steps() -> None:
    warmup = new_warmup(400)
    used = drive(warmup)
    assert len(set(used)) > 50
    assert_allclose(warmup.tuning.metric.factor, 3.0, rtol=0.1)
    assert warmup.steps_per_draw == 10
    warmup.finish()
    assert np.exp(-warmup.tuning.step_size) == pytest.approx(0.7, abs=0.02)
    # Independent draws: one step is enough.
    assert warmup.steps_per_draw == 1


def test_finish_keeps_the_average_and_ends_warmup() -> None:
    warmup = new_warmup()
    drive(warmup)
    assert warmup.dual_averaging is not None
    average = warmup.dual_averaging.average
    assert warmup.tuning.step_size != average
    warmup.finish()
    assert warmup.tuning.step_size == average
    assert warmup.draws_to_boundary == 0
    # Later draws, and a second finish, teach nothing.
    before = warmup.tuning
    rows = np.ones((10, SIZE))
    warmup.observe(trajectory(rows, rows, -rows[:, 0]), 1)
    warmup.finish()
    assert warmup.tuning.step_size == before.step_size
    assert_array_equal(warmup.tuning.metric.factor, before.metric.factor)


def test_finish_in_the_middle_of_warmup() -> None:
    warmup = new_warmup()
    rows = np.ones((10, SIZE))
    warmup.observe(trajectory(rows, rows, -rows[:, 0]), 1)
    warmup.finish()
    assert warmup.draws_to_boundary == 0
    assert not warmup.wants_step_size


@pytest.mark.parametrize("factor", [np.array([1.0, 2.0, 3.0]), np.diag([1.0, 2.0, 3.0])])
def test_what_the_user_fixed_stays(factor: np.ndarray) -> None:
    kind = "diag" if factor.ndim == 1 else "dense"
    warmup = new_warmup(factor=factor, kind=kind, step_size=0.3, steps_per_draw=4)
    assert not warmup.wants_step_size
    rng = np.random.default_rng(0)
    while warmup.draws_to_boundary:
        n = warmup.draws_to_boundary
        z = rng.normal(size=(4 * n, SIZE))
        warmup.observe(trajectory(z, -z, -1.0), n)
    warmup.finish()
    assert warmup.tuning.step_size == 0.3
    assert warmup.steps_per_draw == 4
    assert warmup.tuning.metric.factor is factor


def test_begin_at_starts_averaging_there() -> None:
    warmup = new_warmup()
    assert warmup.wants_step_size
    warmup.begin_at(0.01)
    assert warmup.tuning.step_size == 0.01
    assert warmup.dual_averaging is not None
    assert warmup.dual_averaging.current == pytest.approx(0.01)
    fixed = new_warmup(step_size=0.3)
    fixed.begin_at(0.01)
    assert fixed.tuning.step_size == 0.3
