"""The noise tape: row t depends on the seed and on t alone."""

import copy
import pickle
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import numpy as np
import pytensor
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from pymc_deer import noise_numba
from pymc_deer.backends.request import Tuning
from pymc_deer.chains.stretch import Streams
from pymc_deer.metric import identity_metric
from pymc_deer.noise import Draw, Rows, Tape, draw_keys, draw_normals, draw_tape
from pymc_deer.ops import numba_source

SIZE = 3
STILL = Tuning(0.5, 1.0, identity_metric("diag", SIZE))
JITTERED = replace(STILL, jitter=0.3)
SMALL = replace(JITTERED, small_steps=0.25)


def generators() -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng(1), np.random.default_rng(2)


@settings(deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    draw=st.sampled_from([draw_normals, draw_keys, noise_numba.draw_normals]),
)
def test_rows_do_not_depend_on_how_the_tape_is_cut(pieces: list[int], draw: Draw) -> None:
    whole = draw_tape(*generators(), sum(pieces), SIZE, draw)
    normal, uniform = generators()
    cut = [draw_tape(normal, uniform, n, SIZE, draw) for n in pieces]
    assert_array_equal(np.concatenate([t.xi for t in cut]), whole.xi)
    assert_array_equal(np.concatenate([t.log_u for t in cut]), whole.log_u)


def test_distribution() -> None:
    tape = draw_tape(*generators(), 20_000, SIZE)
    assert len(tape) == 20_000
    assert tape.xi.shape == (20_000, SIZE)
    assert tape.xi.dtype == tape.log_u.dtype == "float64"
    assert tape.xi.mean() == pytest.approx(0.0, abs=0.02)
    assert tape.xi.std() == pytest.approx(1.0, abs=0.02)
    # exp(log u) is uniform: its deciles are those of U(0, 1).
    deciles = np.quantile(np.exp(tape.log_u), np.arange(1, 10) / 10)
    np.testing.assert_allclose(deciles, np.arange(1, 10) / 10, atol=0.015)


def test_slices_take_both_parts() -> None:
    tape = draw_tape(*generators(), 10, SIZE)
    part = tape[3:7]
    assert isinstance(part, Tape)
    assert_array_equal(part.xi, tape.xi[3:7])
    assert_array_equal(part.log_u, tape.log_u[3:7])


def test_streams_are_independent_and_follow_the_seed() -> None:
    first, again = (Streams.spawn(np.random.default_rng(5)) for _ in range(2))
    other = Streams.spawn(np.random.default_rng(6))
    assert_array_equal(first.tape(5, SIZE, STILL).xi, again.tape(5, SIZE, STILL).xi)
    assert not np.array_equal(first.tape(5, SIZE, STILL).xi, other.tape(5, SIZE, STILL).xi)
    streams = [getattr(again, stream.name) for stream in fields(Streams)]
    rngs = [stream.rng if isinstance(stream, Rows) else stream for stream in streams]
    assert len({rng.random() for rng in rngs}) == len(rngs)


@pytest.mark.parametrize("sweeps", [True, False])
def test_a_branch_leaves_the_streams_where_they_are(sweeps: bool) -> None:
    """Of probes too, where there are sweeps that draw them."""
    streams, again = (Streams.spawn(np.random.default_rng(5)) for _ in range(2))
    branch = streams.branch(sweeps=sweeps)
    branch.tape(7, SIZE, SMALL)
    if sweeps:
        assert branch.probes.random() == again.probes.random()
        again = Streams.spawn(np.random.default_rng(5))
    assert streams.probes.random() == again.probes.random()
    for found, expected in zip(
        vars(streams.tape(5, SIZE, SMALL)).values(),
        vars(again.tape(5, SIZE, SMALL)).values(),
        strict=True,
    ):
        assert_array_equal(found, expected)


def test_jitter_varies_step_sizes_and_nothing_else() -> None:
    still, varied, cut = (Streams.spawn(np.random.default_rng(5)) for _ in range(3))
    plain, jittered = still.tape(2000, SIZE, STILL), varied.tape(2000, SIZE, JITTERED)
    assert_array_equal(plain.xi, jittered.xi)
    assert_array_equal(plain.step_sizes(0.5), np.full(2000, 0.5))
    sizes = jittered.step_sizes(0.5)
    assert 0.35 <= sizes.min() < 0.36
    assert 0.64 < sizes.max() <= 0.65
    assert sizes.mean() == pytest.approx(0.5, abs=0.01)
    assert_array_equal(jittered[5:9].step_sizes(0.5), sizes[5:9])
    pieces = [cut.tape(n, SIZE, JITTERED).step_sizes(0.5) for n in (3, 0, 1997)]
    assert_array_equal(np.concatenate(pieces), sizes)


def test_some_step_sizes_are_smaller_and_the_others_as_they_would_be() -> None:
    varied, cut, alone = (Streams.spawn(np.random.default_rng(5)) for _ in range(3))
    scales = varied.tape(8000, SIZE, SMALL).step_sizes(1.0)
    usual = scales >= 0.7
    # Of the small ones, uniform on a log scale, log 0.7 / log 0.1 are in the range of the others.
    share = 0.75 + 0.25 * np.log(0.7) / np.log(0.1)
    assert usual.mean() == pytest.approx(share, abs=5 * np.sqrt(share * (1 - share) / 8000))
    assert 1.29 < scales.max() <= 1.3
    assert 0.1 <= scales.min() < 0.101
    assert np.median(scales[~usual]) == pytest.approx(np.sqrt(0.1 * 0.7), rel=0.1)
    pieces = [cut.tape(n, SIZE, SMALL).step_sizes(1.0) for n in (3, 0, 7997)]
    assert_array_equal(np.concatenate(pieces), scales)
    without_jitter = alone.tape(8000, SIZE, replace(SMALL, jitter=0.0)).step_sizes(1.0)
    assert (without_jitter <= 1.0).all()
    assert (without_jitter == 1.0).mean() == pytest.approx(0.75, abs=0.03)


def test_every_second_number_of_steps_is_as_often_and_changes_nothing_else() -> None:
    plain, varied, cut = (Streams.spawn(np.random.default_rng(5)) for _ in range(3))
    tuning = replace(JITTERED, lengths=(2, 8))
    tape, other = varied.tape(8000, SIZE, tuning), plain.tape(8000, SIZE, JITTERED)
    assert_array_equal(tape.xi, other.xi)
    assert_array_equal(tape.scale, other.scale)
    assert_array_equal(other.lengths, np.ones(8000))
    values, counts = np.unique(tape.lengths, return_counts=True)
    assert_array_equal(values, [2, 4, 6, 8])
    assert (np.abs(counts - 2000) < 5 * np.sqrt(1500)).all()
    assert_array_equal(tape[5:9].lengths, tape.lengths[5:9])
    pieces = [cut.tape(n, SIZE, tuning).lengths for n in (3, 0, 7997)]
    assert_array_equal(np.concatenate(pieces), tape.lengths)


def test_a_fixed_number_of_steps_is_taken_by_all() -> None:
    streams = Streams.spawn(np.random.default_rng(5))
    assert_array_equal(streams.tape(9, SIZE, replace(STILL, lengths=(7, 7))).lengths, np.full(9, 7))


def assert_same(mine: Tape, its: Tape) -> None:
    assert_array_equal(mine.xi, its.xi)
    assert_array_equal(mine.log_u, its.log_u)
    assert_array_equal(mine.lengths, its.lengths)
    assert_array_equal(mine.step_sizes(1.0), its.step_sizes(1.0))


@pytest.mark.parametrize("lengths", [(1, 1), (2, 5)])
@pytest.mark.parametrize("tuning", [STILL, JITTERED, SMALL])
@pytest.mark.parametrize("size", [1, 3, 5000])
def test_rows_ahead_are_those_that_come(
    size: int, tuning: Tuning, lengths: tuple[int, int]
) -> None:
    """Within a block and beyond it, also from a stored copy; what they are ahead of stays."""
    streams = Streams.spawn(np.random.default_rng(5))
    tuning = replace(tuning, lengths=lengths)
    sizes = (4, 1, 7, 2) if size > 100 else (4, 1, 3000, 7000, 1200, 2)
    rngs = np.random.default_rng(5).spawn(6)
    whole = draw_tape(rngs[0], rngs[1], sum(sizes), size)
    first = 0
    for n in sizes:
        behind = streams.branch(sweeps=False)
        tape = behind.tape(n, size, tuning)
        stored = pickle.loads(pickle.dumps(streams))
        assert_same(tape, copy.deepcopy(streams).tape(n, size, tuning))
        assert_same(tape, stored.tape(n, size, tuning))
        assert_array_equal(tape.xi, whole.xi[first : first + n])
        assert_array_equal(tape.log_u, whole.log_u[first : first + n])
        first, streams = first + n, behind


def test_probes_ahead_leave_the_others_alone() -> None:
    streams = Streams.spawn(np.random.default_rng(5))
    before = streams.probes.bit_generator.state
    behind = streams.branch(sweeps=True)
    behind.probes.random(3)
    assert streams.probes.bit_generator.state == before != behind.probes.bit_generator.state


def test_a_stored_block_is_no_part_of_the_state() -> None:
    """It is drawn again: states stay small."""
    streams = Streams.spawn(np.random.default_rng(5))
    streams.tape(4, SIZE, STILL)
    assert len(pickle.dumps(streams)) < 10_000


@pytest.mark.parametrize("kind", [np.random.PCG64, np.random.MT19937, np.random.Philox])
def test_numba_draws_the_normals_of_numpy(kind: type[np.random.BitGenerator]) -> None:
    """Far tails and what the generator gives next included."""
    mine, its = (np.random.Generator(kind(7)) for _ in range(2))
    rows = noise_numba.draw_normals(mine, 300_000, SIZE)
    assert np.abs(rows).max() > 4.5
    assert_array_equal(rows, draw_normals(its, 300_000, SIZE))
    assert mine.random() == its.random()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many rows Numba is asked for, in a process in which it has drawn none before."""
    rows: list[int] = []

    @cache
    def fill() -> Callable[[np.random.Generator, np.ndarray], None]:
        def counted(rng: np.random.Generator, numbers: np.ndarray) -> None:
            rows.append(len(numbers) // SIZE)
            numbers[:] = draw_normals(rng, len(numbers), 1)[:, 0]

        return counted

    monkeypatch.setattr(noise_numba, "_compiled_fill", fill)
    monkeypatch.setattr(noise_numba, "_is_fill_on_disk", lambda: True)
    monkeypatch.setattr(noise_numba.FasterOnceMany, "_n_drawn", 0)
    return rows


def check_normals(draw: Draw, pieces: Sequence[int]) -> None:
    rng = np.random.default_rng(3)
    rows = np.concatenate([draw(rng, n, SIZE) for n in pieces])
    assert_array_equal(rows, draw_normals(np.random.default_rng(3), sum(pieces), SIZE))


def test_numba_takes_over_once_it_pays(asked: list[int]) -> None:
    check_normals(noise_numba.FasterOnceMany(10_000 * SIZE), [4000, 5000, 3000, 2000])
    assert asked == [3000, 2000]


def test_numba_takes_over_later_where_the_loop_is_to_be_compiled(
    asked: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise_numba, "_is_fill_on_disk", lambda: False)
    monkeypatch.setattr(noise_numba, "_WORTH_COMPILING", 10_000 * SIZE)
    check_normals(noise_numba.FasterOnceMany(1000 * SIZE), [4000, 5000, 3000, 2000])
    assert asked == [3000, 2000]


def test_what_numba_has_compiled_is_on_disk(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for module in (pytensor.link.numba.cache, numba_source):
        monkeypatch.setattr(module, "NUMBA_CACHE_PATH", tmp_path)
    source = "def plus(x):\n    return x + {}\n"
    assert not numba_source.is_on_disk(source.format(1))
    assert numba_source.compiled_source(source.format(1), "plus")(1) == 2
    assert numba_source.is_on_disk(source.format(1))
    assert not numba_source.is_on_disk(source.format(2))


def test_numbers_of_a_process_are_counted_together(asked: list[int]) -> None:
    """A second run goes on where the first one was about to pay."""
    for _ in range(2):
        check_normals(noise_numba.FasterOnceMany(8000 * SIZE), [4500, 3000])
    assert asked == [4500, 3000]


def test_numba_draws_from_the_first_where_it_has_drawn_before(asked: list[int]) -> None:
    noise_numba.draw_normals(np.random.default_rng(0), 1, SIZE)
    check_normals(noise_numba.FasterOnceMany(10**9), [2000, 3])
    assert asked == [1, 2000]


def test_few_numbers_are_numpys(asked: list[int]) -> None:
    check_normals(noise_numba.FasterOnceMany(0), [1000, 2000, 0])
    assert asked == [2000]
