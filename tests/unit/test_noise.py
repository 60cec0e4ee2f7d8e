"""The noise tape: row t depends on the seed and on t alone."""

from dataclasses import fields, replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from pymc_deer.backends.base import Tuning
from pymc_deer.metric import identity_metric
from pymc_deer.noise import NoiseSource, Tape, draw_tape
from pymc_deer.stretch import Streams

SIZE = 3
STILL = Tuning(0.5, 1.0, identity_metric("diag", SIZE))
JITTERED = replace(STILL, jitter=0.3)


def generators() -> tuple[np.random.Generator, np.random.Generator]:
    return np.random.default_rng(1), np.random.default_rng(2)


@settings(deadline=None, derandomize=True)
@given(
    pieces=st.lists(st.integers(0, 40), min_size=1, max_size=8),
    source=st.sampled_from(get_args(NoiseSource)),
)
def test_rows_do_not_depend_on_how_the_tape_is_cut(pieces: list[int], source: NoiseSource) -> None:
    whole = draw_tape(*generators(), sum(pieces), SIZE, source)
    normal, uniform = generators()
    cut = [draw_tape(normal, uniform, n, SIZE, source) for n in pieces]
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
    names = [stream.name for stream in fields(Streams)]
    assert len({getattr(again, name).random() for name in names}) == len(names)


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


def test_numbers_of_steps_are_uniform_and_change_nothing_else() -> None:
    plain, varied, cut = (Streams.spawn(np.random.default_rng(5)) for _ in range(3))
    tuning = replace(JITTERED, lengths=(2, 5))
    tape, other = varied.tape(8000, SIZE, tuning), plain.tape(8000, SIZE, JITTERED)
    assert_array_equal(tape.xi, other.xi)
    assert_array_equal(tape.scale, other.scale)
    assert_array_equal(other.lengths, np.ones(8000))
    values, counts = np.unique(tape.lengths, return_counts=True)
    assert_array_equal(values, [2, 3, 4, 5])
    assert (np.abs(counts - 2000) < 5 * np.sqrt(1500)).all()
    assert_array_equal(tape[5:9].lengths, tape.lengths[5:9])
    pieces = [cut.tape(n, SIZE, tuning).lengths for n in (3, 0, 7997)]
    assert_array_equal(np.concatenate(pieces), tape.lengths)


def test_a_fixed_number_of_steps_is_taken_by_all() -> None:
    streams = Streams.spawn(np.random.default_rng(5))
    assert_array_equal(streams.tape(9, SIZE, replace(STILL, lengths=(7, 7))).lengths, np.full(9, 7))
