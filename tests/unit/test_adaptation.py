"""Warm-up: schedule, dual averaging, steps per draw, and what stays fixed."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.acceptance import TargetAccept
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.metric import Metric, MetricKind, identity_metric
from pymc_deer.path_length import FIRST_LENGTH, PathLength
from pymc_deer.warmup.adaptation import Learned, Warmup, observe
from pymc_deer.warmup.dual_averaging import DualAveraging
from pymc_deer.warmup.schedule import warmup_schedule
from pymc_deer.warmup.start import start_warmup
from pymc_deer.warmup.thinning import steps_per_draw
from pymc_deer.warmup.window import WarmupWindow
from tests.support import autoregressive, trajectory

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
    assert len(schedule) > 70


def test_the_first_fifth_of_a_window_forgets_what_was_before_it() -> None:
    schedule, first, n_forgotten = warmup_schedule(3000, 10), 0, 0
    ends = [i for i, stretch in enumerate(schedule) if stretch.ends_window]
    for end in ends:
        looked_at = [stretch.learns_metric for stretch in schedule[first : end + 1]]
        n_forgotten = len(looked_at) // 5
        assert looked_at == [False] * n_forgotten + [True] * (len(looked_at) - n_forgotten)
        first = end + 1
    assert n_forgotten >= 2


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
        rate = float(np.clip(curve(adaptation.current) + noise, 0.0, 1.0))
        adaptation.update(rate)
    assert curve(adaptation.average) == pytest.approx(target, abs=0.02)


def test_dual_averaging_comes_back_from_far() -> None:
    adaptation = DualAveraging.at(1e-4, 0.7)
    for _ in range(200):
        adaptation.seek(float(np.exp(-adaptation.current)), 10, adaptation.current)
    assert np.exp(-adaptation.average) == pytest.approx(0.7, abs=0.1)


@pytest.mark.parametrize("target", [0.8, 0.95, 0.98])
def test_rates_of_few_transitions_leave_high_targets_where_they_are(target: float) -> None:
    """Unlike while the step size is sought, where what is not rejected counts for more."""
    rng, found = np.random.default_rng(0), {}
    for name in ("update", "seek"):
        adaptation = DualAveraging.at(0.1, target)
        for _ in range(4000):
            rate = rng.binomial(18, np.exp(-adaptation.current)) / 18
            # Of shorter steps: nothing doubles.
            further = () if name == "update" else (18, 0.5 * adaptation.current)
            getattr(adaptation, name)(rate, *further)
        found[name] = (1 - np.exp(-adaptation.average)) / (1 - target)
    assert found["update"] == pytest.approx(1.0, abs=0.2)
    assert (found["seek"] > 1.5) == (target > 0.8)


@pytest.mark.parametrize(("wanted", "steps"), [(0.1, 1), (3.5, 4), (15.0, 15), (1e6, 64)])
def test_steps_per_draw_are_whole_and_within_bounds(wanted: float, steps: int) -> None:
    assert steps_per_draw(wanted, 10) == steps


def test_all_steps_of_a_draw_fit_in_memory() -> None:
    assert steps_per_draw(1e6, 2_000_000) == 8


def new_warmup(n_tune: int = 100, **changes) -> Warmup:
    options = {
        "kind": "diag",
        "factor": None,
        "step_size": None,
        "target": TargetAccept(0.7),
        "curvature": 1.5,
        "fixed_steps": None,
        "jitter": 0.0,
        "small_steps": 0.0,
        "path": PathLength(),
        "warmup_steps_per_draw": 10,
        "thinning": 0.5,
        "white": 1.5,
        "angles": np.array([], int),
    }
    return start_warmup(SIZE, n_tune, **(options | changes))


def drive(warmup: Warmup, seed: int = 0, divergences: float = 0.0) -> list[float]:
    """Feed a warm-up with draws of N(0, 3^2) at acceptance exp(-step size); step sizes used.

    The share that diverges is that many times the fourth power of the step size.
    """
    rng = np.random.default_rng(seed)
    used = []
    while warmup.draws_to_boundary:
        n = warmup.draws_to_boundary
        rows = n * warmup.steps_per_draw
        scales = warmup.tuning.metric.factor
        x = rng.normal(0.0, 3.0, (rows, SIZE))
        log_alpha = np.full(rows, -warmup.tuning.step_size)
        log_alpha[: int(rows * divergences * warmup.tuning.step_size**4)] = -2000.0
        used.append(warmup.tuning.step_size)
        z = (x - warmup.tuning.metric.mu) / scales
        observe([warmup], [trajectory(z, -x / 9 * scales, log_alpha)], n)
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


@pytest.mark.parametrize(("distance", "steps"), [(0.0, 18), (1000.0, 10)])
def test_chains_apart_are_not_thinned_more_than_in_warmup(distance: float, steps: int) -> None:
    """However slow each is: it would not take them to each other."""
    warmups = [new_warmup(400) for _ in range(3)]
    chains = [autoregressive(0.95, 4000, seed) + distance * seed for seed in range(3)]
    while n := warmups[0].draws_to_boundary:
        mu, scales = warmups[0].tuning.metric.arrays[:2]
        rows = n * warmups[0].steps_per_draw
        x = [np.tile(chain[:rows, None], SIZE) for chain in chains]
        chains = [chain[rows:] for chain in chains]
        moves = [trajectory((states - mu) / scales, -states * scales) for states in x]
        observe(warmups, moves, n)
    for warmup in warmups:
        warmup.finish()
        assert warmup.steps_per_draw == pytest.approx(steps, abs=5 * (distance == 0))


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
    observe([warmup], [trajectory(rows, rows, -rows[:, 0])], 1)
    warmup.finish()
    assert warmup.tuning.step_size == before.step_size
    assert_array_equal(warmup.tuning.metric.factor, before.metric.factor)


def test_finish_in_the_middle_of_warmup() -> None:
    warmup = new_warmup()
    rows = np.ones((10, SIZE))
    observe([warmup], [trajectory(rows, rows, -rows[:, 0])], 1)
    warmup.finish()
    assert warmup.draws_to_boundary == 0
    assert not warmup.wants_step_size


def test_finish_keeps_nothing_of_the_window() -> None:
    """Copies of the record, and checkpoints, would hold its draws."""
    warmup, moves = new_warmup(kind="low_rank", path=ADAPTIVE), [independent(50)]
    metric = warmup.tuning.metric
    warmup.window = WarmupWindow().extended(moves, metric, 10).with_paths(moves)
    warmup.finish()
    window = warmup.window
    assert (window.halves, window.means, window.sample, window.paths) == ((), (), None, None)


@pytest.mark.parametrize("factor", [np.array([1.0, 2.0, 3.0]), np.diag([1.0, 2.0, 3.0])])
def test_what_the_user_fixed_stays(factor: np.ndarray) -> None:
    kind = "diag" if factor.ndim == 1 else "dense"
    warmup = new_warmup(factor=factor, kind=kind, step_size=0.3, fixed_steps=4)
    assert not warmup.wants_step_size
    rng = np.random.default_rng(0)
    while warmup.draws_to_boundary:
        n = warmup.draws_to_boundary
        z = rng.normal(size=(4 * n, SIZE))
        observe([warmup], [trajectory(z, -z, -1.0)], n)
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


def test_only_a_metric_that_was_learnt_standardizes_draws() -> None:
    rng = np.random.default_rng(0)
    for factor, expected in ((None, True), (np.full(SIZE, 2.0), False)):
        warmups = [new_warmup(factor=factor) for _ in range(3)]
        for warmup in warmups:
            warmup.whiten(Metric(np.ones(SIZE), np.ones(SIZE)))
        metrics = [warmup.tuning.metric for warmup in warmups]
        seen = [[warmup.tuning.standardized for warmup in warmups]]
        while warmups[0].draws_to_boundary:
            n, steps = warmups[0].draws_to_boundary, warmups[0].steps_per_draw
            zs = rng.standard_normal((len(warmups), n * steps, SIZE))
            observe(warmups, [trajectory(z, -z, -0.2) for z in zs], n)
            seen.append([warmup.tuning.standardized for warmup in warmups])
        assert not any(seen[0])
        assert seen[-1] == [expected] * len(warmups)
        assert seen == sorted(seen)
        for warmup, metric in zip(warmups, metrics, strict=True):
            assert (warmup.tuning.metric.factor is metric.factor) is not expected


@pytest.mark.parametrize("kind", ["diag", "dense"])
def test_of_a_metric_of_the_users_the_centre_is_learnt(kind: MetricKind) -> None:
    """Draws on one side of 0 have absolute values that tell nothing about their spread."""
    rng, mean = np.random.default_rng(0), np.array([30.0, -4.0, 0.0])
    factor = np.full(SIZE, 2.0) if kind == "diag" else np.tril(np.ones((SIZE, SIZE))) + np.eye(SIZE)
    warmup = new_warmup(factor=factor, kind=kind)
    while warmup.draws_to_boundary:
        n, metric = warmup.draws_to_boundary, warmup.tuning.metric
        z = metric.to_z(mean) + rng.standard_normal((n * warmup.steps_per_draw, SIZE))
        observe([warmup], [trajectory(z, -z, -0.2)], n)
    metric = warmup.tuning.metric
    assert metric.factor is factor
    assert np.abs(metric.to_z(mean)).max() < 0.1


def test_warmup_begins_with_the_metric_found_at_the_start() -> None:
    metric = Metric(np.ones(SIZE), np.array([0.1, 1.0, 10.0]))
    warmup = new_warmup()
    warmup.whiten(metric)
    assert warmup.tuning.metric is metric
    observe([warmup], [trajectory(np.ones((10, SIZE)), np.ones((10, SIZE)), -1.0)], 1)
    begun = warmup.tuning.metric
    warmup.whiten(identity_metric("diag", SIZE))
    assert warmup.tuning.metric is begun
    for fixed in (new_warmup(0), new_warmup(factor=np.full(SIZE, 2.0))):
        before = fixed.tuning.metric
        fixed.whiten(metric)
        assert fixed.tuning.metric is before


ADAPTIVE = PathLength(None, FIRST_LENGTH, adapts=True)
SPREAD = 3.0


def drive_paths(
    warmup: Warmup, seed: int = 0, periods: tuple[float, ...] = (1.0,)
) -> list[tuple[int, int]]:
    """Feed a warm-up with the exact flow of N(0, 3^2), accepted throughout; lengths it asked for.

    Of several periods, each coordinate is a sum of parts that have them, and vary as much. The
    acceptance rates reported are exp(-step size): a step size of 0.22 has the target rate.
    """
    rng, asked = np.random.default_rng(seed), []
    shape, state = (len(periods), SIZE), rng.normal(size=(len(periods), SIZE))
    while n := warmup.draws_to_boundary:
        tuning, rows = warmup.tuning, n * warmup.steps_per_draw
        asked.append(tuning.lengths)
        steps = rng.integers(tuning.lengths[0], tuning.lengths[1] + 1, rows)
        sizes = tuning.step_size * (1 + tuning.jitter * rng.uniform(-1, 1, rows))
        # In whitened units the coordinates have these deviations, and periods to go with them.
        deviations = SPREAD / tuning.metric.factor
        x = np.empty((rows, SIZE))
        for t in range(rows):
            angle = steps[t] * sizes[t] / np.multiply.outer(periods, deviations)
            state = np.cos(angle) * state + np.sin(angle) * rng.normal(size=shape)
            x[t] = SPREAD * state.sum(axis=0) / np.sqrt(len(periods))
        z = (x - tuning.metric.mu) / tuning.metric.factor
        dlogp = -x / SPREAD**2 * tuning.metric.factor
        log_alpha = np.full(rows, -tuning.step_size)
        observe([warmup], [trajectory(z, dlogp, log_alpha, steps, sizes)], n)
    return asked


@pytest.mark.parametrize("first", [FIRST_LENGTH, 0.4, 6.0])
def test_warmup_finds_the_path_length(first: float) -> None:
    path, factor = PathLength(None, first, adapts=True), np.full(SIZE, SPREAD)
    warmup = new_warmup(1500, path=path, jitter=0.2, target=TargetAccept(0.8), factor=factor)
    asked = drive_paths(warmup)
    warmup.finish()
    assert warmup.path.adapts
    assert 1.3 < warmup.path.length < 2.3
    # Learning tries shorter and longer ones; what follows takes the best known.
    begun = next(i for i, lengths in enumerate(asked) if lengths != (1, 1))
    pairs = list(zip(warmup.schedule, asked, strict=True))
    assert 0 < begun < len(pairs) / 4, "logp does not rise here"
    for stretch, (fewest, most) in pairs[begun:]:
        assert fewest == (2 if stretch.explores else most)
    assert {stretch.explores for stretch, _ in pairs[begun:]} == {False, True}
    steps = 2 * round(warmup.path.length / warmup.tuning.step_size / 2)
    assert warmup.tuning.lengths == (steps, steps)
    assert steps > 3


def test_while_logp_rises_transitions_are_of_one_step() -> None:
    """For as long as it rises by more than chance from one end of a window to the other."""
    warmup = new_warmup(1500, path=ADAPTIVE, target=TargetAccept(0.8))
    rng = np.random.default_rng(0)
    ends = np.cumsum([s.n_draws for s in warmup.schedule])
    windows = ends[[s.ends_window for s in warmup.schedule]]
    n_rising, seen = windows[3], []
    while n := warmup.draws_to_boundary:
        rows, tuning = n * warmup.steps_per_draw, warmup.tuning
        at = ends[warmup.done]
        seen.append((at, tuning.lengths == (1, 1)))
        z = rng.normal(size=(rows, SIZE))
        steps, sizes = np.full(rows, tuning.lengths[1]), np.full(rows, tuning.step_size)
        moves = trajectory(z, -z, np.full(rows, -tuning.step_size), steps, sizes)
        logp = np.full(rows, 1000.0 * min(at, n_rising))
        observe([warmup], [replace(moves, logp=logp)], n)
        assert tuning.lengths != (1, 1) or warmup.window.paths is None
    # The window in which it has stopped is the last one of single steps.
    assert [single for _, single in seen] == [at <= windows[4] for at, _ in seen]


def test_a_chain_that_has_risen_goes_on_with_paths_if_it_rises_again() -> None:
    """It has found the typical set; what it shows then are paths, and not to be lost."""
    warmup, rng, seen, n_windows = new_warmup(1500, path=ADAPTIVE), np.random.default_rng(0), [], 0
    while n := warmup.draws_to_boundary:
        rows, ends = n * warmup.steps_per_draw, warmup.stretch.ends_window
        seen.append((n_windows, warmup.tuning.lengths == (1, 1)))
        z = rng.normal(size=(rows, SIZE))
        moves = trajectory(z, -z, np.full(rows, -0.3), np.full(rows, 1), 0.5)
        rising = n_windows != 2
        logp = 1e6 * len(seen) * rising * np.ones(rows)
        observe([warmup], [replace(moves, logp=logp)], n)
        n_windows += ends
    assert n_windows > 4
    assert {single for window, single in seen if window < 3} == {True}
    assert {single for window, single in seen if window >= 3} == {False}


def test_a_chain_that_rises_for_ever_takes_paths_in_the_second_half() -> None:
    warmup, rng, n_done, seen = new_warmup(400, path=ADAPTIVE), np.random.default_rng(0), 0, []
    while n := warmup.draws_to_boundary:
        rows, n_done = n * warmup.steps_per_draw, n_done + n
        seen.append((n_done, warmup.tuning.lengths == (1, 1)))
        z = rng.normal(size=(rows, SIZE))
        moves = trajectory(z, -z, np.full(rows, -0.3), np.full(rows, 1), 0.5)
        observe([warmup], [replace(moves, logp=1e6 * np.full(rows, n_done))], n)
    assert {single for at, single in seen if at > 200} == {False}
    assert {single for at, single in seen if at < 100} == {True}


def lengths_of_windows(warmup: Warmup) -> np.ndarray:
    """Path lengths known after each window of moves that look long, whatever they are.

    As do those of a chain that hardly moves, beside a spread to match.
    """
    rng, lengths = np.random.default_rng(0), []
    while n := warmup.draws_to_boundary:
        ends, tuning, rows = warmup.stretch.ends_window, warmup.tuning, n * warmup.steps_per_draw
        steps = rng.integers(1, tuning.lengths[1] + 1, rows)
        z, sizes = rng.normal(size=(rows, SIZE)), np.full(rows, tuning.step_size)
        observe([warmup], [trajectory(z, -z, np.full(rows, -tuning.step_size), steps, sizes)], n)
        lengths += [warmup.path.length] if ends else []
    return np.array(lengths)


def test_windows_that_have_seen_little_do_not_shorten_paths() -> None:
    warmup = new_warmup(1500, path=ADAPTIVE, target=TargetAccept(0.8))
    seen = np.cumsum([s.n_draws * s.learns_metric for s in warmup.schedule])
    of_windows = np.diff(seen[[s.ends_window for s in warmup.schedule]], prepend=0)
    early = of_windows * warmup.steps_per_draw < 1000
    assert 0 < early.sum() < len(early) - 1
    lengths = lengths_of_windows(warmup)
    assert (lengths[early] >= FIRST_LENGTH).all()
    assert (lengths[~early] < 0.7 * FIRST_LENGTH).all()


def test_the_last_window_may_shorten_paths_whatever_it_has_seen() -> None:
    lengths = lengths_of_windows(new_warmup(60, path=ADAPTIVE, step_size=0.25))
    assert len(lengths) > 1
    assert (lengths[:-1] >= FIRST_LENGTH).all()
    assert lengths[-1] < 0.7 * FIRST_LENGTH


def test_path_length_is_in_units_of_the_new_metric() -> None:
    warmup = new_warmup(1500, path=ADAPTIVE, jitter=0.2, target=TargetAccept(0.8))
    drive_paths(warmup)
    warmup.finish()
    assert_allclose(warmup.tuning.metric.factor, SPREAD, rtol=0.15)
    assert 1.3 < warmup.path.length < 2.3


@pytest.mark.parametrize("scale", [0.3, 10.0])
def test_with_a_metric_that_stays_it_is_in_units_of_that(scale: float) -> None:
    factor = np.full(SIZE, SPREAD / scale)
    warmup = new_warmup(1500, path=ADAPTIVE, factor=factor, target=TargetAccept(0.8))
    drive_paths(warmup)
    warmup.finish()
    assert_array_equal(warmup.tuning.metric.factor, factor)
    assert 1.3 < warmup.path.length / scale < 2.4


def test_slow_parts_of_coordinates_are_not_hidden_by_fast_ones() -> None:
    """Short paths forget the fast ones, which a single transition takes for much of the way."""
    periods = (1.0, *(30.0,) * 9)
    warmup = new_warmup(1500, path=ADAPTIVE, jitter=0.2, target=TargetAccept(0.8))
    drive_paths(warmup, seed=4, periods=periods)
    warmup.finish()
    assert warmup.path.length > 3 * FIRST_LENGTH


def test_too_short_a_warmup_keeps_the_first_length() -> None:
    warmup = new_warmup(2, path=ADAPTIVE, jitter=0.2, fixed_steps=2)
    drive_paths(warmup)
    warmup.finish()
    assert warmup.path == ADAPTIVE
    steps = 2 * round(FIRST_LENGTH / warmup.tuning.step_size / 2)
    assert warmup.tuning.lengths == (steps, steps)


@pytest.mark.parametrize("path", [PathLength(4), PathLength(None, 4.0)], ids=["steps", "length"])
def test_paths_that_the_user_fixed_stay(path: PathLength) -> None:
    warmup = new_warmup(200, path=path)
    asked = drive_paths(warmup)
    warmup.finish()
    assert warmup.path is path
    assert all(fewest == most for fewest, most in asked)
    steps = path.steps or 2 * round(path.length / warmup.tuning.step_size / 2)
    assert warmup.tuning.lengths == (steps, steps)
    # The step size is tuned, and with it the number of steps of a length.
    assert (len(set(asked)) > 1) == (path.steps is None)


def test_no_step_size_is_cut_short_while_paths_are_tried() -> None:
    warmup = new_warmup(200, path=ADAPTIVE, target=TargetAccept(0.3))
    used = drive(warmup)
    explores = [stretch.explores for stretch in warmup.schedule]
    assert max(size for size, tries in zip(used, explores, strict=True) if tries) > FIRST_LENGTH / 2
    assert max(size for size, tries in zip(used, explores, strict=True) if not tries) < 0.8


def test_a_length_that_is_given_is_that_of_warmup_too() -> None:
    """By longer paths chains would seem to mix better than the draws then do."""
    used = drive(new_warmup(200, path=PathLength(None, 0.3)))
    assert max(used) == 0.15


def test_two_steps_go_no_further_than_the_length() -> None:
    """On a Gaussian, twice the step size of the target is more than half a period."""
    warmup = new_warmup(200, path=PathLength(None, 0.3))
    drive_paths(warmup)
    assert warmup.dual_averaging is not None
    assert warmup.dual_averaging.average > 0.15
    warmup.finish()
    assert (warmup.tuning.step_size, warmup.tuning.lengths) == (0.15, (2, 2))


def test_transitions_a_draw_follow_from_the_path_found() -> None:
    """Paths of the best length leave little correlation: a transition is enough for a draw."""
    warmup = new_warmup(1500, path=ADAPTIVE, jitter=0.2, target=TargetAccept(0.8))
    drive_paths(warmup)
    warmup.finish()
    assert warmup.steps_per_draw == 1


ADAPTIVE_TARGET = TargetAccept(0.8, adapts=True)


@pytest.mark.parametrize(
    ("learning", "last", "bounds"),
    [(0.97, 0.97, (10, 25)), (0.97, 0.0, (1, 2)), (0.97, 0.9, (4, 9)), (0.0, 0.97, (1, 1))],
    ids=["as slow", "fast", "faster", "slower"],
)
@pytest.mark.parametrize("n_chains", [1, 3])
def test_a_better_last_metric_thins_less(
    learning: float, last: float, bounds: tuple[int, int], n_chains: int
) -> None:
    """Never more: batches are too short behind it.

    Absolute values are what is slow, which single transitions show and batch means do not.
    """
    warmups = [new_warmup(2000, path=ADAPTIVE, thinning=1.0) for _ in range(n_chains)]
    rng, state = np.random.default_rng(1), np.zeros((n_chains, SIZE))
    while n := warmups[0].draws_to_boundary:
        moves, rho = [], learning if warmups[0].stretch.explores else last
        for i, warmup in enumerate(warmups):
            tuning, rows = warmup.tuning, n * warmup.steps_per_draw
            x = np.sqrt(1 - rho**2) * rng.normal(size=(rows, SIZE))
            for t in range(rows):
                x[t] += rho * state[i]
                state[i] = x[t]
            x *= SPREAD * rng.choice([-1.0, 1.0], (rows, SIZE))
            scales = tuning.metric.factor
            steps = np.full(rows, tuning.lengths[1])
            sizes, log_alpha = np.full(rows, tuning.step_size), np.full(rows, -tuning.step_size)
            z = (x - tuning.metric.mu) / scales
            moves.append(trajectory(z, -x / SPREAD**2 * scales, log_alpha, steps, sizes))
        observe(warmups, moves, n)
    for warmup in warmups:
        warmup.finish()
        assert bounds[0] <= warmup.steps_per_draw <= bounds[1]


def independent(n: int) -> Trajectory:
    """Moves of some length from one independent state to the next."""
    z = np.random.default_rng(0).normal(size=(n, SIZE))
    return trajectory(z, -z, np.full(n, -0.2), np.full(n, 8), np.full(n, 0.2))


@pytest.mark.parametrize(("batch_time", "steps"), [(0.0, 2), (12.4, 12), (30.0, 20), (None, 20)])
def test_what_batches_have_shown_is_not_shortened_by_the_last_metric(
    batch_time: float | None, steps: int
) -> None:
    warmup = new_warmup(path=ADAPTIVE, thinning=1.0)
    warmup.tuned_steps_per_draw, warmup.batch_time = 20, batch_time
    warmup.done = len(warmup.schedule) - 1
    warmup.window = WarmupWindow().with_paths([independent(400)])
    learned = warmup.learn()
    assert learned is not None
    assert learned.steps_per_draw == steps


@pytest.mark.parametrize(("n_leapfrog", "steps"), [(1, 64), (64, 64), (100, 40), (256, 16)])
def test_a_draw_takes_no_more_gradients_than_anybody_waits_for(n_leapfrog: int, steps: int) -> None:
    warmup = new_warmup(400, path=PathLength(n_leapfrog), thinning=1.0)
    warmup.done = max(i for i, s in enumerate(warmup.schedule) if s.ends_window)
    walk = np.cumsum(np.random.default_rng(0).normal(size=(2000, SIZE)), axis=0)
    moves = trajectory(walk, -walk, np.full(2000, -0.2))
    warmup.window = WarmupWindow().extended([moves], warmup.tuning.metric, 100)
    learned = warmup.learn()
    assert learned is not None
    assert learned.steps_per_draw == steps


@pytest.mark.parametrize("spread", [0.25, 4.0])
def test_lengths_are_converted_where_the_metric_changes(spread: float) -> None:
    moves = independent(400)
    wider = trajectory(
        spread * moves.z, moves.dlogp / spread, moves.log_alpha, moves.n_leapfrog, moves.step_sizes
    )
    warmup = new_warmup(path=ADAPTIVE)
    warmup.done = max(i for i, s in enumerate(warmup.schedule) if s.ends_window)
    window = WarmupWindow().extended([wider], warmup.tuning.metric, 20).with_paths([wider])
    warmup.window = window
    learned, found = warmup.learn(), window.best_path()
    assert learned is not None
    assert found is not None
    assert_allclose(learned.metric.factor, spread, rtol=0.2)
    assert learned.path.length * np.median(learned.metric.factor) == pytest.approx(found[0])


def behind_window(moves: Trajectory, path: PathLength, *, last: bool = False) -> Learned:
    """What a window of these moves teaches, the first of warm-up or the last."""
    warmup = new_warmup(path=path, thinning=1.0)
    ends = [i for i, stretch in enumerate(warmup.schedule) if stretch.ends_window]
    warmup.done = ends[-1] if last else ends[0]
    window = WarmupWindow().extended([moves], warmup.tuning.metric, len(moves) // 20)
    warmup.window = window.with_paths([moves])
    learned = warmup.learn()
    assert learned is not None
    return learned


@pytest.mark.parametrize("spread", [0.25, 4.0])
def test_lengths_beyond_those_that_were_tried_are_converted_too(spread: float) -> None:
    """Twice the one before, where it leaves too many transitions to a draw."""
    walk = spread * np.transpose([autoregressive(0.98, 4000, seed) for seed in range(SIZE)])
    moves = trajectory(walk, -walk / spread**2, np.full(4000, -0.2), np.full(4000, 8), 0.2)
    learned = behind_window(moves, ADAPTIVE)
    scale = float(np.median(learned.metric.factor))
    assert scale == pytest.approx(spread, rel=0.3)
    assert learned.path.length == pytest.approx(2 * FIRST_LENGTH / scale)


def test_the_shortest_path_is_as_short_as_the_next_metric_has_it() -> None:
    """Here coordinates are a tenth as wide as they were taken to be."""
    rng, n = np.random.default_rng(0), 4000
    z, steps = 0.1 * rng.normal(size=(n, SIZE)), rng.integers(1, 9, n)
    moves = trajectory(z, -100 * z, np.full(n, -0.2), steps, np.full(n, 0.1))
    learned = behind_window(moves, ADAPTIVE, last=True)
    assert learned.path.length == pytest.approx(FIRST_LENGTH, rel=0.3)


def test_the_gradients_of_a_draw_are_counted_by_the_next_metric() -> None:
    """With one that is a quarter as wide, steps are four times as large, and fewer."""
    walk = 0.25 * np.cumsum(np.random.default_rng(0).normal(size=(2000, SIZE)), axis=0)
    moves = trajectory(walk, -16 * walk, np.full(2000, -0.2))
    # 100 leapfrog steps of the first step size.
    assert behind_window(moves, PathLength(None, 50.0), last=True).steps_per_draw == 64


def test_no_draw_takes_more_gradients_than_that_whatever_happens_behind_the_metric() -> None:
    warmup = new_warmup(path=PathLength(None, 50.0))
    warmup.tuned_steps_per_draw = 64
    warmup.begin_at(0.2)
    warmup.finish()
    assert warmup.tuning.lengths == (250, 250)
    assert warmup.steps_per_draw == 4096 // 250
    fixed = new_warmup(path=PathLength(250), fixed_steps=64)
    fixed.finish()
    assert fixed.steps_per_draw == 64


def test_the_average_step_size_is_where_the_next_one_begins() -> None:
    warmup = new_warmup()
    assert warmup.dual_averaging is not None
    for _ in range(3):
        warmup.dual_averaging.update(1.0)
    current, average = warmup.dual_averaging.current, warmup.dual_averaging.average
    assert average < 0.8 * current
    warmup.done = next(i for i, stretch in enumerate(warmup.schedule) if stretch.ends_window)
    warmup.window = WarmupWindow().extended([independent(400)], warmup.tuning.metric, 20)
    warmup.go_on(warmup.learn())
    assert warmup.tuning.step_size == pytest.approx(average)


def test_a_stretch_has_two_batches_at_most() -> None:
    warmup = new_warmup(100, fixed_steps=3)
    assert warmup.stretch.n_draws == 1
    moves = [independent(3)]
    warmup.done = next(i for i, stretch in enumerate(warmup.schedule) if stretch.learns_metric)
    window = warmup.extended_window(moves).at_stretch_end(moves)
    assert len(window.means) == 2
    single = new_warmup(100, fixed_steps=1)
    single.done = next(i for i, stretch in enumerate(single.schedule) if stretch.learns_metric)
    moves = [independent(single.stretch.n_draws)]
    assert len(single.extended_window(moves).at_stretch_end(moves).means) <= 2


def test_a_step_size_that_is_far_too_small_grows_as_fast_whatever_the_target() -> None:
    """Where little is to be rejected the error is small at most."""
    found = []
    for target in (0.8, 0.95, 0.99):
        adaptation = DualAveraging.at(1e-3, target)
        for _ in range(12):
            adaptation.seek(1.0, 0, adaptation.current)
        found.append(adaptation.current)
    assert_allclose(found, found[0])
    assert found[0] > 5e-3


@pytest.mark.parametrize(("target", "n"), [(0.7, 9), (0.8, 13), (0.95, 50)])
def test_a_step_size_at_which_all_is_accepted_doubles(target: float, n: int) -> None:
    """Behind as many transitions as say so: of shorter steps, or with a rejection, none do."""
    found = {}
    for name, stretches in {
        "all": [(1.0, 1.0)] * n,
        "shorter": [(1.0, 0.5)] * n,
        "all but one": [(1.0, 1.0)] * (n // 2) + [(0.9, 1.0)] + [(1.0, 1.0)] * (n // 2),
        "most": [(target + 0.9 * (1 - target), 1.0)] * n,
    }.items():
        found[name] = adaptation = DualAveraging.at(1.0, target)
        # So that nothing but doubling changes it.
        adaptation.gamma = np.inf
        for rate, share in stretches:
            adaptation.seek(rate, 1, share * adaptation.current)
    sizes = {name: (adaptation.current, adaptation.average) for name, adaptation in found.items()}
    assert sizes.pop("all") == pytest.approx((2.0, 2.0))
    doubled = found["all"]
    assert (doubled.count, doubled.error, doubled.missing) == (0, 0.0, 0.0), "all begins anew"
    for size in sizes.values():
        assert size == pytest.approx((1.0, 1.0))


def test_batches_of_longer_paths_say_less_of_shorter_ones() -> None:
    moves, times = independent(400), []
    for length in (1.6, 3.2):
        warmup = new_warmup(path=PathLength(None, length, adapts=True))
        warmup.done = [s.ends_window for s in warmup.schedule].index(True)
        window = WarmupWindow().extended([moves], warmup.tuning.metric, 20)
        warmup.window = window.with_paths([moves])
        learned = warmup.learn()
        assert learned is not None
        assert learned.batch_time is not None
        times.append(learned.batch_time)
    assert times[1] == pytest.approx(2 * times[0], rel=0.2)


def test_the_last_window_leaves_the_average_step_size_alone() -> None:
    """It has the metric and the acceptance rate that were there before."""
    warmup = new_warmup(400, path=ADAPTIVE, jitter=0.2)
    drive_paths(warmup)
    assert warmup.dual_averaging is not None
    assert warmup.dual_averaging.count == sum(not s.explores for s in warmup.schedule) > 1


def test_divergences_raise_the_acceptance_rate() -> None:
    warmup = new_warmup(1500, target=ADAPTIVE_TARGET)
    drive(warmup, divergences=3.0)
    warmup.finish()
    assert 0.85 < warmup.target.rate < 0.95
    assert np.exp(-warmup.tuning.step_size) == pytest.approx(warmup.target.rate, abs=0.02)


def test_chains_that_learn_together_aim_at_one_rate() -> None:
    """Whichever of them has diverged."""
    warmups, rng = (
        [new_warmup(1500, target=ADAPTIVE_TARGET) for _ in range(3)],
        np.random.default_rng(0),
    )
    while n := warmups[0].draws_to_boundary:
        rows = n * warmups[0].steps_per_draw
        trajectories = []
        for chain, warmup in enumerate(warmups):
            z = rng.normal(size=(rows, SIZE))
            log_alpha = np.full(rows, -warmup.tuning.step_size)
            log_alpha[:2] = -2000.0 if chain == 1 else log_alpha[0]
            trajectories.append(trajectory(z, -z, log_alpha))
        observe(warmups, trajectories, n)
    assert len({warmup.target for warmup in warmups}) == 1
    assert warmups[0].target.rate > 0.85


def test_early_windows_do_not_raise_the_acceptance_rate() -> None:
    """Their metric is that of the few transitions before them."""
    warmup, rng, rates = new_warmup(1500, target=ADAPTIVE_TARGET), np.random.default_rng(0), []
    while warmup.draws_to_boundary and warmup.window.n_seen < 500:
        n = warmup.draws_to_boundary
        z = rng.normal(size=(n * warmup.steps_per_draw, SIZE))
        ends = warmup.stretch.ends_window and warmup.window.n_seen + len(z) < 500
        observe([warmup], [trajectory(z, -z, -2000.0)], n)
        rates += [warmup.target.rate] if ends else []
    assert len(rates) >= 3
    assert set(rates) == {0.8}


@pytest.mark.parametrize(
    "options",
    [{"target": TargetAccept(0.8)}, {"target": ADAPTIVE_TARGET, "step_size": 0.3}],
    ids=["rate", "step size"],
)
def test_where_the_user_fixed_it_divergences_change_nothing(options: dict) -> None:
    warmup = new_warmup(1500, **options)
    drive(warmup, divergences=10.0)
    warmup.finish()
    assert warmup.target == options["target"]
    assert "step_size" not in options or warmup.tuning.step_size == 0.3


def test_a_raised_rate_begins_the_average_anew_with_a_metric_that_stays() -> None:
    factor = np.full(SIZE, 3.0)
    warmup = new_warmup(1500, target=ADAPTIVE_TARGET, factor=factor)
    drive(warmup, divergences=3.0)
    warmup.finish()
    assert warmup.tuning.metric.factor is factor
    assert warmup.target.rate > 0.85
    assert np.exp(-warmup.tuning.step_size) == pytest.approx(warmup.target.rate, abs=0.03)


def test_divergences_count_by_the_draws_they_would_be_seen_in() -> None:
    z = np.random.default_rng(0).normal(size=(1000, SIZE))
    log_alpha = np.where(np.arange(1000) < 1, -2000.0, -0.2)
    rejected = []
    for steps in (1, 20):
        warmup = new_warmup(1500, target=ADAPTIVE_TARGET, fixed_steps=steps)
        metric = warmup.tuning.metric
        warmup.window = WarmupWindow().extended([trajectory(z, -z, log_alpha)], metric, 1000)
        warmup.rising = False
        warmup.done = next(i for i, s in enumerate(warmup.schedule) if s.ends_window)
        learned = warmup.learn()
        assert learned is not None
        rejected.append(1.0 - learned.target.rate)
    assert rejected[1] == pytest.approx(rejected[0] * 20**-0.3)
    assert rejected[0] < 0.15


def test_divergences_on_the_way_to_the_typical_set_do_not_count() -> None:
    found = {}
    for name, rise in (("there", 0.0), ("rising", 1e4)):
        warmup = new_warmup(1500, target=ADAPTIVE_TARGET, path=ADAPTIVE)
        z, log_alpha = np.random.default_rng(0).normal(size=(600, SIZE)), np.full(600, -0.2)
        log_alpha[:30] = -2000.0
        moves, window = trajectory(z, -z, log_alpha), WarmupWindow()
        window = window.extended([moves], warmup.tuning.metric, 1000)
        warmup.window = replace(window, heights=(np.zeros(1), np.full(1, rise)))
        warmup.done = next(i for i, s in enumerate(warmup.schedule) if s.ends_window)
        learned = warmup.learn()
        assert learned is not None
        found[name] = learned.target.rate
    assert found["there"] > found["rising"] == 0.8


def test_what_all_learn_follows_from_no_single_chain() -> None:
    """One is where steps are a thousandth: first or last, paths are those of the others."""
    found = []
    for narrow in (0, 3):
        warmups = [new_warmup(400, path=ADAPTIVE) for _ in range(4)]
        moves = [independent(400)] * 4
        seen = WarmupWindow().extended(moves, warmups[0].tuning.metric, 20).with_paths(moves)
        for i, warmup in enumerate(warmups):
            warmup.begin_at(1e-3 if i == narrow else 0.5)
            warmup.window, warmup.rising = seen, False
            warmup.done = next(j for j, s in enumerate(warmup.schedule) if s.ends_window)
        observe(warmups, moves, warmups[0].draws_to_boundary)
        found += [(warmup.path, warmup.tuned_steps_per_draw) for warmup in warmups]
    assert len(set(found)) == 1
    assert found[0][0].length > 1.0


def test_what_is_forgotten_is_not_looked_at() -> None:
    """The first fifth of a window is run with what the one before has learnt."""
    warmup = new_warmup(400, path=ADAPTIVE)
    warmup.rising = False
    for i, stretch in enumerate(warmup.schedule):
        warmup.done = i
        window = warmup.extended_window([independent(20)])
        assert bool(window.halves) == stretch.learns_metric
        assert (window.paths is not None) == (stretch.learns_metric or not stretch.explores)


def test_with_a_metric_that_stays_the_step_size_is_averaged_over_all_of_warmup() -> None:
    warmup = new_warmup(400, factor=np.full(SIZE, 3.0))
    warmup.begin_at(0.4)
    drive(warmup)
    assert warmup.dual_averaging is not None
    assert warmup.dual_averaging.count == len(warmup.schedule)


def test_a_high_rate_is_met_with_a_metric_that_stays() -> None:
    """Of the averages before the last stretches, which are beside it, none is left."""
    warmup = new_warmup(400, factor=np.full(SIZE, 3.0), target=TargetAccept(0.95))
    warmup.begin_at(0.05)
    drive(warmup)
    assert warmup.dual_averaging is not None
    assert warmup.dual_averaging.count == sum(not s.explores for s in warmup.schedule) > 1


def test_a_copy_learns_without_the_others_knowing() -> None:
    warmup = new_warmup(400)
    drive(warmup.copy())
    assert vars(warmup) == vars(new_warmup(400)) | {
        "tuning": warmup.tuning,
        "angles": warmup.angles,
    }
    assert warmup.tuning.step_size == 0.5
