"""A warm-up window: autocorrelation by batch means, and the same moments however it is cut."""

import pickle
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose

import pymc_deer.warmup.window
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.metric import KINDS, Metric, MetricKind, identity_metric, scaled_metric
from pymc_deer.warmup.metric_estimate import Moments, merged
from pymc_deer.warmup.mixing import autocorrelation_time
from pymc_deer.warmup.window import WarmupWindow
from tests.support import autoregressive, piece, trajectory

SIZE = 3


def filled(
    z: np.ndarray,
    stretches: int,
    pieces: int = 1,
    kind: MetricKind = "diag",
    begun: WarmupWindow | None = None,
) -> WarmupWindow:
    """A window that has seen a standard normal's draws z in so many stretches."""
    window, moves = begun or WarmupWindow(), []
    for stretch in np.split(z, stretches):
        for rows in np.array_split(stretch, pieces):
            metric = identity_metric(kind, z.shape[1])
            moves = [trajectory(rows, -rows)]
            window = window.extended(moves, metric, len(stretch))
        window = window.at_stretch_end(moves)
    return window


@pytest.mark.parametrize("phi", [0.6, 0.9, 0.95])
@pytest.mark.parametrize("kind", KINDS)
def test_autocorrelation_time_of_the_slowest_coordinate(phi: float, kind: MetricKind) -> None:
    n = 20_000
    slow, fast = autoregressive(phi, n), np.random.default_rng(1).normal(size=n)
    time = filled(np.column_stack([fast, slow]), 50, kind=kind).autocorrelation_time()
    truth = (1 + phi) / (1 - phi)
    assert time is not None
    assert truth / 2 <= time <= truth * 2


def test_one_stretch_says_nothing_about_correlation() -> None:
    assert WarmupWindow().autocorrelation_time() is None
    assert filled(np.zeros((10, SIZE)), 1).autocorrelation_time() is None
    assert filled(np.zeros((10, SIZE)), 2).autocorrelation_time() == 0.0


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_a_stretch_changes_nothing(kind: MetricKind) -> None:
    z = np.random.default_rng(2).normal(size=(400, SIZE)) * [0.1, 1.0, 10.0]
    start = identity_metric(kind, SIZE)
    whole, cut = filled(z, 4, kind=kind), filled(z, 4, pieces=7, kind=kind)
    for ours, theirs in zip(
        whole.estimate(start, 1.5).arrays, cut.estimate(start, 1.5).arrays, strict=True
    ):
        assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-8, atol=1e-10)
    assert whole.autocorrelation_time() == pytest.approx(cut.autocorrelation_time())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("pieces", [1, 3])
def test_stretches_belong_to_two_halves_by_turns(kind: MetricKind, pieces: int) -> None:
    """Where halves are needed; a low-rank metric has them of the draws that it keeps."""
    z = np.random.default_rng(2).normal(size=(50, SIZE)) + np.arange(50)[:, None]
    stretches = np.split(z, 5)
    expected = [np.vstack(stretches[::2]), np.vstack(stretches[1::2])] if kind == "dense" else [z]
    # Stretches that nothing is learnt from are none of either.
    window = filled(z, 5, pieces, kind, begun=WarmupWindow().at_stretch_end([]))
    assert window.n_seen == len(z)
    for half, rows in zip(window.halves, expected, strict=True):
        known = Moments.of(rows[None], -rows[None], kind)
        for name, value in vars(known).items():
            assert_allclose(getattr(half, name), value, rtol=1e-10)


@pytest.mark.parametrize("kind", KINDS)
def test_cutting_a_stretch_of_several_chains_changes_no_metric(kind: MetricKind) -> None:
    """More draws than a ``low_rank`` metric keeps: those it keeps are the same."""
    mix = np.array([[0.1, 0.0, 0.0], [0.0, 1.0, 3.0], [0.0, 0.0, 1.0]])
    normals = np.random.default_rng(2).normal(size=(3, 1000, SIZE))
    z, dlogp = normals @ mix, -normals @ np.linalg.inv(mix).T
    start, found = identity_metric(kind, SIZE), []
    for cuts in ([], [250, 490], [1, 2, 777]):
        window, moves = WarmupWindow(), []
        for rows in zip(np.split(z, cuts, axis=1), np.split(dlogp, cuts, axis=1), strict=True):
            moves = list(map(trajectory, *rows))
            window = window.extended(moves, start, 1000)
        found.append(window.at_stretch_end(moves).estimate(start, 1.5))
    for other in found[1:]:
        for ours, theirs in zip(found[0].arrays, other.arrays, strict=True):
            assert_allclose(np.abs(ours), np.abs(theirs), rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_moments_do_not_depend_on_how_many_coordinates_are_taken_at_a_time(
    kind: MetricKind, dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(4)
    z, dlogp = rng.normal(3.0, 2.0, (2, 4, 30, SIZE)).astype(dtype)
    metric, found = scaled_metric(kind, np.array([1.0, -2.0, 0.5]), np.array([0.1, 3.0, 1.0])), []
    for columns in (SIZE, 2):
        monkeypatch.setattr(pymc_deer.warmup.window, "_COLUMNS", columns)
        window = WarmupWindow()
        for rows in zip(np.split(z, 3, axis=1), np.split(dlogp, 3, axis=1), strict=True):
            window = window.extended(list(map(trajectory, *rows)), metric, 10)
        found.append(window.halves)
    for whole, parts in zip(*found, strict=True):
        assert parts.count == whole.count == 120
        for name in ("z_means", "z_scatter", "g_means", "g_scatter"):
            assert_allclose(getattr(parts, name), getattr(whole, name), rtol=1e-14, strict=True)


@pytest.mark.parametrize("columns", [1, SIZE])
def test_low_rank_metrics_are_learnt_in_x_from_those_with_and_without_directions(
    columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the latter, in many dimensions, are applied to each coordinate as it is looked at."""
    monkeypatch.setattr(pymc_deer.warmup.window, "_COLUMNS", columns)
    rng = np.random.default_rng(5)
    z, dlogp = rng.normal(size=(2, 3, 40, SIZE))
    mu, scales = np.array([1.0, -2.0, 0.5]), np.array([0.1, 3.0, 1.0])
    without = scaled_metric("low_rank", mu, scales)
    # Directions that change nothing.
    with_some = Metric(mu, scales, np.eye(SIZE)[:, :2], np.zeros(2))
    assert without.is_elementwise
    assert not with_some.is_elementwise
    windows = [
        WarmupWindow().extended(list(map(trajectory, z, dlogp)), metric, 10)
        for metric in (without, with_some)
    ]
    one, other = (window.halves[0] for window in windows)
    assert_allclose(one.z_mean, (z * scales + mu).mean(axis=(0, 1)), rtol=1e-12)
    assert_allclose(one.g_variance, (dlogp / scales).var(axis=1).mean(axis=0), rtol=1e-12)
    for name, value in vars(one).items():
        assert_allclose(getattr(other, name), value, rtol=1e-12)
    samples = [window.sample.together for window in windows if window.sample]
    for found, expected in zip(*samples, strict=True):
        assert_allclose(found, expected, rtol=1e-12)
    assert_allclose(samples[0][0][:40], z[0] * scales + mu, rtol=1e-12)
    assert_allclose(windows[0].means, windows[1].means, rtol=1e-12)


def test_transitions_that_diverge_are_counted_in_all_stretches_of_all_chains() -> None:
    z, window = np.zeros((4, SIZE)), WarmupWindow()
    for n_unstable in (1, 0, 2):
        log_alpha = np.array([0.0, -np.inf, *[-2000.0] * n_unstable, *[-1.0] * (2 - n_unstable)])
        moves = [trajectory(z, -z, log_alpha), trajectory(z, -z, -3000.0)]
        window = window.extended(moves, identity_metric("diag", SIZE), 4)
    assert window.n_unstable == 1 + 0 + 2 + 3 * 4
    assert window.n_seen == 3 * 2 * 4


def rotated(n: int, seed: int = 3) -> Trajectory:
    """Paths of one to three steps, each chosen at random, that turn a normal and its momentum."""
    rng = np.random.default_rng(seed)
    steps, z = rng.integers(1, 4, n), np.empty((n, SIZE))
    state = rng.normal(size=SIZE)
    for t in range(n):
        angle = 0.5 * steps[t]
        state = np.cos(angle) * state + np.sin(angle) * rng.normal(size=SIZE)
        z[t] = state
    return trajectory(z, -z, n_leapfrog=steps, step_size=0.5)


@pytest.mark.parametrize("size", [1, 2, 7])
def test_cutting_a_stretch_changes_nothing_of_its_paths(size: int) -> None:
    """Nor does a piece whose paths happen to have one step each."""
    moves, cut = rotated(300), WarmupWindow()
    whole = WarmupWindow().with_paths([moves])
    for first in range(0, len(moves), size):
        cut = cut.with_paths([piece(moves, slice(first, first + size))])
    assert whole.paths is not None
    assert cut.paths is not None
    assert whole.paths.counts.sum() == len(moves) - 1
    assert_allclose(cut.paths.counts, whole.paths.counts)
    assert_allclose(cut.paths.moves, whole.paths.moves, rtol=1e-10)
    assert cut.paths.best() == pytest.approx(whole.paths.best())


def test_paths_are_looked_at_only_if_asked_for() -> None:
    window = WarmupWindow().extended([rotated(20)], identity_metric("diag", SIZE), 20)
    assert window.paths is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [7, 40, 1000])
def test_a_chain_that_stood_still_teaches_no_metric(kind: MetricKind, n: int) -> None:
    """The mean of equal numbers is off by roundings, which are no variance."""
    still = np.tile(np.random.default_rng(n).normal(size=20), (n, 1))
    start = identity_metric(kind, 20)
    window = WarmupWindow().extended([trajectory(still, -22.3 * still)], start, n)
    found = window.estimate(start, 1.5)
    assert_allclose(found.to_x(np.eye(20)) - found.to_x(np.zeros(20)), np.eye(20), atol=1e-9)
    assert_allclose(found.mu, still[0])


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_been_seen_stays_as_it_was(kind: MetricKind) -> None:
    """Interrupted behind what it has learnt, a chain learns the same once more."""
    metric = identity_metric(kind, SIZE)

    def behind(window: WarmupWindow, seed: int) -> WarmupWindow:
        moves = [rotated(50, seed), rotated(50, seed + 10)]
        return window.extended(moves, metric, 30).with_paths(moves).at_stretch_end(moves)

    first = behind(WarmupWindow(), 0)
    for window in (first, behind(first, 1)):
        before = pickle.dumps(window)
        window.estimate(metric, 1.5)
        once = behind(window, 2)
        assert pickle.dumps(window) == before
        assert pickle.dumps(behind(window, 2)) == pickle.dumps(once) != before


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("together", [True, False])
def test_chains_learn_from_the_draws_of_all(
    kind: MetricKind, together: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As from one chain that made them all, in pieces of all chains or of one by one."""
    if not together:
        monkeypatch.setattr(pymc_deer.warmup.window, "_TOGETHER", 0)
    z = np.random.default_rng(4).normal(size=(3, 40, SIZE)) * [0.1, 1.0, 10.0]
    metric = identity_metric(kind, SIZE)
    window = WarmupWindow()
    for rows in np.split(np.arange(40), 4):
        chains = [trajectory(chain[rows], -chain[rows]) for chain in z]
        window = window.extended(chains, metric, 5)
    rows = z.reshape(-1, SIZE)
    whole = WarmupWindow().extended([trajectory(rows, -rows)], metric, 120)
    pooled = window.as_one_chain()
    assert_allclose(
        pooled.estimate(metric, 1.5).arrays[1],
        whole.estimate(metric, 1.5).arrays[1],
        rtol=1e-8,
        atol=1e-10,
    )
    # A batch of five states of each chain.
    means = z.reshape(3, 8, 5, SIZE).mean(axis=2).swapaxes(0, 1)
    assert_allclose(np.array(window.means), means)
    time = autocorrelation_time(means.reshape(-1, 1, SIZE), 5, rows.var(axis=0))
    assert pooled.autocorrelation_time() == pytest.approx(time)


@pytest.mark.parametrize("kind", KINDS)
def test_chains_in_different_modes_learn_what_each_would(kind: MetricKind) -> None:
    """Neither longer paths nor more transitions would take them to each other."""
    chains = [rotated(600, seed) for seed in range(3)]
    found = []
    for distance in (0.0, 1e4):
        moves = [replace(chain, z=chain.z + distance * i) for i, chain in enumerate(chains)]
        metric = identity_metric(kind, SIZE)
        window = WarmupWindow().extended(moves, metric, 30).with_paths(moves)
        assert window.has_chains_apart == (distance > 0)
        found.append((window, window.estimate(metric, 1.5)))
    (together, metric), (apart, metric_apart) = found
    assert apart.best_path() == pytest.approx(together.best_path(), rel=0.3)
    assert_allclose(metric_apart.factor, metric.factor, rtol=0.1, atol=0.1)
    # What one chain shows does not depend on where the others are.
    assert_allclose(
        merged(apart.halves).z_variance, np.mean([c.z.var(axis=0) for c in chains], axis=0)
    )


@pytest.mark.parametrize(("rise", "size", "rises"), [(0, 9, False), (9, 9, False), (15, 9, True)])
def test_a_chain_that_rises_by_more_than_chance_is_on_its_way(
    rise: float, size: int, rises: bool
) -> None:
    """Whatever the others do, and however far it has come before the window."""
    window = WarmupWindow()
    assert window.has_chains_rising(size)
    for share in (0.0, 0.3, 1.0):
        z = np.zeros((4, size))
        still, mine = trajectory(z, z), replace(trajectory(z, z), logp=np.full(4, rise * share))
        window = window.at_stretch_end([still, replace(mine, logp=mine.logp - 1e6)])
    assert window.has_chains_rising(size) == rises


@pytest.mark.parametrize("n_chains", [4, 1024])
@pytest.mark.parametrize("size", [1, 2, 10, 1000])
def test_of_many_chains_none_rises_by_chance(size: int, n_chains: int) -> None:
    """Independent draws of a normal; at four standard deviations one of a thousand would."""
    rng, rising = np.random.default_rng(0), []
    for _ in range(300):
        logp = -rng.chisquare(size, (2, n_chains)) / 2
        rising.append(WarmupWindow(heights=tuple(logp)).has_chains_rising(size))
    assert np.mean(rising) < 0.05


@pytest.mark.parametrize("n_chains", [1, 3])
def test_cutting_a_stretch_changes_no_direction_of_angles(n_chains: int) -> None:
    """Some are far from where most are: on which side of those depends on the centre."""
    columns, metric = np.array([0, 2]), identity_metric("diag", SIZE)
    z, found = np.random.default_rng(2).vonmises(3.0, 0.5, (n_chains, 400, SIZE)), []
    for n_pieces in (1, 7):
        before = window = WarmupWindow()
        for _ in range(2):
            for pieces in zip(*(np.array_split(chain, n_pieces) for chain in z), strict=True):
                moves = [trajectory(piece, -piece) for piece in pieces]
                window = window.with_angles(columns, metric, moves)
                window = window.extended(window.turned_back(metric, moves), metric, 400)
            before, window = window, window.following()
        found.append((before, window))
    (whole, after), (cut, after_cut) = found
    assert after.angles is not None
    assert after_cut.angles is not None
    assert_allclose(after.angles.centre, after_cut.angles.centre, rtol=1e-12)
    assert_allclose(after.angles.centre, 3.0, atol=0.3)
    for ours, theirs in zip(whole.halves, cut.halves, strict=True):
        assert_allclose(ours.z_scatter, theirs.z_scatter, rtol=1e-10)
