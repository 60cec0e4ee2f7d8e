"""Path lengths chosen from paths whose autocorrelation is known: rotations of a Gaussian."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.warmup.path_statistics import _BOUNDS, PathStatistics, _smoothed
from tests.support import piece, trajectory

STEP_SIZE = 0.1


def rotations(
    frequencies: np.ndarray,
    longest: float,
    n: int = 4000,
    *,
    scales: np.ndarray | float = 1.0,
    acceptance: float = 1.0,
    seed: int = 0,
) -> Trajectory:
    """Paths of uniform numbers of steps up to `longest`, of coordinates with these frequencies.

    A path of length t takes z to cos(w t) z + sin(w t) xi: the exact flow of independent normals.
    """
    rng = np.random.default_rng(seed)
    size = len(frequencies)
    steps = rng.integers(1, round(longest / STEP_SIZE) + 1, n)
    sizes = STEP_SIZE * (1 + 0.2 * rng.uniform(-1, 1, n))
    angles = (steps * sizes)[:, None] * frequencies
    accepted = rng.random(n) < acceptance
    z, state = np.empty((n, size)), rng.normal(size=size)
    for t in range(n):
        if accepted[t]:
            state = np.cos(angles[t]) * state + np.sin(angles[t]) * rng.normal(size=size)
        z[t] = state
    z = z * scales
    return trajectory(z, -z, n_leapfrog=steps, step_size=sizes)


def seen(moves: Trajectory) -> PathStatistics:
    return PathStatistics.empty(1, moves.z.shape[1]).extended([moves])


def exact_time(length: float, frequencies: np.ndarray) -> float:
    """Transitions for an independent draw of the slowest function, of paths of about a length.

    z has the autocorrelation rho = cos(w t), and |z| that of the absolute values of two normals
    correlated by rho, which counts half.
    """
    lengths = length * np.linspace(0.8, 1.2, 21)
    cosines = np.cos(frequencies * lengths[:, None])
    products = cosines * np.arcsin(cosines) + np.sqrt(1 - cosines**2) - 1
    rho, absolute = cosines.mean(axis=0), products.mean(axis=0) / (np.pi / 2 - 1)
    return max(np.max((1 + rho) / (1 - rho)), np.max((1 + absolute) / (1 - absolute)) / 2)


def exact_rate(length: float, frequencies: np.ndarray) -> float:
    """Effective draws for each unit of path."""
    return 1 / (exact_time(length, frequencies) * length)


@pytest.mark.parametrize("longest", [2.4, np.pi, 2 * np.pi])
@pytest.mark.parametrize(
    "frequencies",
    [np.ones(4), np.array([1.0, 0.9, 0.8, 0.7]), np.array([1.0, 1.0, 1.0, 0.5])],
    ids=["equal", "similar", "one slow"],
)
def test_the_best_length_is_found(frequencies: np.ndarray, longest: float) -> None:
    most = max(exact_rate(t, frequencies) for t in np.linspace(0.2, longest, 400))
    rates, times = [], []
    for seed in range(8):
        best = seen(rotations(frequencies, longest, seed=seed)).best()
        assert best is not None
        rates.append(exact_rate(best[0], frequencies))
        times.append(best[1] / exact_time(best[0], frequencies))
    # Exact rotations have a sharper peak than posteriors, and smoothing costs some of it.
    assert np.mean(rates) > 0.55 * most
    assert np.mean(times) == pytest.approx(1.0, abs=0.2)


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_no_path_is_below_the_shortest(scale: float) -> None:
    """Others are the longest that was seen at most."""
    frequencies, longest = np.full(4, 1 / scale), np.pi * scale
    statistics = seen(rotations(frequencies, longest, scales=scale))
    shortest = (0.1 * scale, 2.4 * scale, 100.0 * scale)
    free, found, beyond = map(statistics.best, shortest)
    assert statistics.best() == free
    assert free is not None
    assert found is not None
    assert beyond is not None
    assert free[0] < 2.3 * scale
    assert 2.4 <= found[0] / scale < 2.8
    assert found[1] == pytest.approx(exact_time(found[0], frequencies), rel=0.3)
    assert 3.0 < beyond[0] / scale < 4.6


def test_a_few_slow_coordinates_among_many_decide() -> None:
    frequencies = np.append(np.ones(1000), np.full(8, 0.25))
    found = [seen(rotations(frequencies, 4 * np.pi, seed=seed)).best() for seed in range(3)]
    most = max(exact_rate(t, frequencies) for t in np.linspace(0.2, 4 * np.pi, 400))
    for best in found:
        assert best is not None
        assert exact_rate(best[0], frequencies) > 0.5 * most
        assert best[1] == pytest.approx(exact_time(best[0], frequencies), rel=0.2)


def test_a_gaussian_takes_somewhat_more_than_a_quarter_of_a_period() -> None:
    best = seen(rotations(np.ones(10), 2 * np.pi)).best()
    assert best is not None
    # At pi / 2 z is forgotten, and a little beyond each draw makes up for the error of the last.
    assert np.pi / 2 - 0.1 < best[0] < 2.2


def test_half_a_period_is_not_taken_for_the_best() -> None:
    """It turns every coordinate round, and leaves every absolute value as it was."""
    statistics = seen(rotations(np.ones(10), 2 * np.pi))
    best = statistics.best()
    assert best is not None
    assert abs(best[0] - np.pi) > 0.8
    # Without the absolute values it would be: here coordinates stand in their place.
    signed, absolute = np.split(np.arange(len(statistics.squares)), 2)
    for sums in (statistics.moves, statistics.sums, statistics.squares):
        sums[..., absolute] = sums[..., signed]
    fooled = statistics.best()
    assert fooled is not None
    assert fooled[0] == pytest.approx(np.pi, abs=0.5)


@pytest.mark.parametrize("scale", [0.2, 5.0])
def test_length_is_in_units_of_the_lengths_seen(scale: float) -> None:
    """Whatever the spread of the coordinates, and the frequency that goes with it."""
    frequencies = np.full(10, 1 / scale)
    moves = rotations(frequencies, 2 * np.pi * scale, scales=scale)
    best = seen(moves).best()
    assert best is not None
    assert np.pi / 2 - 0.1 < best[0] / scale < 2.2


def test_rejected_paths_take_longer() -> None:
    free, held = (seen(rotations(np.ones(10), np.pi, acceptance=a)).best() for a in (1.0, 0.5))
    assert free is not None
    assert held is not None
    # Half of them stay: (2 - f) / f of half the f.
    assert held[1] > 2 * free[1]


def test_the_longest_paths_count_once_in_an_average() -> None:
    """Few transitions have seen them, and what is beyond them nobody has."""
    rates = np.random.default_rng(0).uniform(0.5, 1.0, 9)
    found = _smoothed(rates)
    assert len(found) == len(rates)
    assert_allclose(found[-2:], [rates[-4:].mean(), rates[-3:].mean()])
    assert_allclose(found[4], rates[2:7].mean())
    assert_allclose(found[0], (3 * rates[0] + rates[1] + rates[2]) / 5)
    assert_allclose(_smoothed(rates[:2]), [(3 * rates[0] + rates[1]) / 4, _mean(rates, 2, 1)])


def _mean(rates: np.ndarray, first: int, second: int) -> float:
    return (first * rates[0] + second * rates[1]) / (first + second)


@pytest.mark.parametrize("n", [1, 2, 8, 15])
def test_too_few_transitions_say_nothing(n: int) -> None:
    assert seen(rotations(np.ones(3), STEP_SIZE, n)).best() is None


def test_enough_transitions_of_one_length_say_something() -> None:
    best = seen(rotations(np.full(3, 15.0), STEP_SIZE, 200)).best()
    assert best is not None
    assert best[0] == pytest.approx(STEP_SIZE, rel=0.3)


@pytest.mark.parametrize("pieces", [2, 7, 400])
def test_cutting_a_trajectory_changes_nothing(pieces: int) -> None:
    moves = rotations(np.array([1.0, 0.7, 0.4]), np.pi, 400)
    whole, cut = seen(moves), PathStatistics.empty(1, 3)
    for rows in np.array_split(np.arange(len(moves)), pieces):
        cut = cut.extended([piece(moves, slice(rows[0], rows[-1] + 1))])
    assert cut.n == whole.n == 400
    assert whole.counts.sum() == 399
    assert_allclose(cut.counts, whole.counts)
    for name in ("moves", "sums", "squares", "last"):
        assert_allclose(getattr(cut, name), getattr(whole, name), rtol=1e-10)
    assert cut.best() == pytest.approx(whole.best())


def test_chains_are_counted_together_and_followed_apart() -> None:
    """By hand: every move of each chain, between its own states, in its half and its length."""
    chains = [rotations(np.array([1.0, 0.5]), np.pi, 60, seed=seed) for seed in range(3)]
    statistics = PathStatistics.empty(3, 2)
    for rows in (slice(0, 1), slice(1, 24), slice(24, 60)):
        statistics = statistics.extended([piece(chain, rows) for chain in chains])
    counts, moves = np.zeros_like(statistics.counts), np.zeros_like(statistics.moves)
    for chain in chains:
        functions = np.column_stack([chain.z, np.abs(chain.z)])
        lengths = chain.n_leapfrog * chain.step_sizes
        for t in range(1, 60):
            cell = t % 2, np.searchsorted(_BOUNDS, lengths[t])
            counts[cell] += 1
            moves[cell] += (functions[t] - functions[t - 1]) ** 2
    assert_allclose(statistics.counts, counts)
    assert_allclose(statistics.moves, moves, rtol=1e-10)
    variance = np.mean([chain.z.var(axis=0) for chain in chains], axis=0)
    assert_allclose(statistics.variance[:2], variance, rtol=1e-10)
    states = np.concatenate([chain.z for chain in chains])
    functions = np.column_stack([states, np.abs(states)])
    as_one = statistics.as_one_chain()
    assert_allclose(as_one.variance, functions.var(axis=0), rtol=1e-10)


def test_paths_are_those_of_a_mode_not_of_the_distance_between_modes() -> None:
    chains = [rotations(np.ones(4), 2 * np.pi, 1000, seed=seed) for seed in range(4)]
    for i, chain in enumerate(chains):
        chain.z[:, 0] += 50.0 * i
    best = PathStatistics.empty(4, 4).extended(chains).best()
    assert best is not None
    length, time = best
    assert 1.0 < length < 2.5
    assert time < 3


def test_of_many_coordinates_some_are_looked_at() -> None:
    """Enough for the choice, and so many that warm-up keeps its memory and time."""
    size = 6000
    statistics = seen(rotations(np.ones(size), 2 * np.pi, 300))
    assert statistics.moves.shape[2] == statistics.sums.shape[1] == 2 * 4000
    best = statistics.best()
    assert best is not None
    assert np.pi / 2 - 0.1 < best[0] < 2.2


def test_coordinates_that_stand_still_are_survived() -> None:
    moves = rotations(np.ones(3), np.pi, 400)
    moves.z[:, 1] = 2.0
    best = seen(moves).best()
    assert best is not None
    assert np.isfinite(best).all()
