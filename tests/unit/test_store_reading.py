"""What is read of a store: whole files, draws that are committed, and a few chunks at a time of
every n-th.
"""

import json
import os
import sys
from pathlib import Path
from types import EllipsisType
from typing import Any

import numpy as np
import pymc as pm
import pytest
from numpy.testing import assert_array_equal
from xarray import Variable
from xarray.core import indexing

import pymc_deer
from pymc_deer import stored_rows
from pymc_deer.sampling.store_recorder import RunPlace
from pymc_deer.status import OptionError
from pymc_deer.store import DrawStore, replace_file
from pymc_deer.stored_rows import StoredRows, StoredRun

CHUNK = 10
VALUES = np.arange(4 * 205 * 3).reshape(4, 205, 3)


class Stored:
    """An array that keeps count of the rows between the first and the last that are read."""

    shape, dtype, chunks = VALUES.shape, VALUES.dtype, (4, CHUNK, 3)

    def __init__(self) -> None:
        self.spans: list[int] = []

    def __getitem__(self, key: tuple[Any, ...]) -> np.ndarray:
        rows = np.atleast_1d(np.arange(self.shape[1])[key[1]])
        self.spans.append(int(np.ptp(rows)) + 1 if len(rows) else 0)
        return VALUES[key]


class Number:
    """An array of no dimension."""

    shape, dtype, chunks = (), np.dtype(float), ()

    def __getitem__(self, key: tuple[Any, ...]) -> np.ndarray:
        return np.array(3.0)[key]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of all chunks of either array."""
    folder = tmp_path_factory.mktemp("array")
    for name in ("0", *(f"0.{i}.0" for i in range(21))):
        (folder / name).touch()
    return folder


def lazily(array: Stored, place: Path) -> Variable:
    rows = indexing.LazilyIndexedArray(StoredRows(array, place, StoredRun.at(place)))
    return Variable(("chain", "draw", "i"), rows)


@pytest.mark.parametrize("step", [2, 7, 10, 49, 204, 1000])
@pytest.mark.parametrize("first", [0, 3, 204, 205])
@pytest.mark.parametrize("chain", [..., 1, [0, 2], slice(None, None, 2)])
def test_some_rows_are_read_by_a_few_chunks(
    step: int, first: int, chain: int | list[int] | slice | EllipsisType, place: Path
) -> None:
    array = Stored()
    lazy = lazily(array, place)
    chosen = {} if chain is ... else {"chain": chain}
    found = lazy.isel(draw=slice(first, None, step), **chosen).values
    assert_array_equal(found, VALUES[:, first::step][slice(None) if chain is ... else chain])
    if not isinstance(chain, slice):
        assert max(array.spans) <= max(stored_rows._CHUNKS * CHUNK, step + 1)


def test_a_number_is_read(place: Path) -> None:
    number = StoredRows(Number(), place, StoredRun.at(place))
    assert Variable((), indexing.LazilyIndexedArray(number)).values == 3.0


def test_all_rows_are_read_at_once(place: Path) -> None:
    array = Stored()
    assert_array_equal(lazily(array, place).values, VALUES)
    assert array.spans == [205]


@pytest.mark.parametrize(
    ("rows", "reads_it"),
    [
        (slice(None), True),
        (slice(0, 50), False),
        (slice(49, 51), True),
        (slice(3, None, 50), True),
        (slice(3, None, 60), False),
        (55, True),
        (60, False),
    ],
)
def test_only_what_is_read_has_to_be_there(
    rows: slice | int, reads_it: bool, place: Path, tmp_path: Path
) -> None:
    lost = place / "0.5.0"
    lost.rename(tmp_path / "lost")
    try:
        some = lazily(Stored(), place).isel(draw=rows)
        if reads_it:
            with pytest.raises(OptionError, match=r"0\.5\.0 is not there any more"):
                _ = some.values
        else:
            assert_array_equal(some.values, VALUES[:, rows])
    finally:
        (tmp_path / "lost").rename(lost)


def test_a_file_that_cannot_be_replaced_stays_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    file = tmp_path / "file"
    replace_file(file, b"before")
    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        replace_file(file, b"after")
    assert file.read_bytes() == b"before"


def test_an_arrays_own_metadata_tell_of_the_draws_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who ask for them see no draw before it is committed."""
    place, commit = tmp_path / "run", DrawStore.commit
    told: list[int] = []

    def own_length() -> int:
        return json.loads((place / "posterior" / "x" / ".zarray").read_text())["shape"][1]

    def looked_at(store: DrawStore, *arguments: Any) -> None:
        commit(store, *arguments)
        told.append(own_length())

    monkeypatch.setattr(DrawStore, "commit", looked_at)
    with pm.Model():
        pm.Normal("x")
        options: dict[str, Any] = {"backend": "jax", "window": 1, "random_seed": 1, "quiet": True}
        pymc_deer.sample(20, tune=10, chains=2, kernel="mala", store=place, **options)
    assert len(told) > 1
    assert set(told) == {0}
    assert own_length() == 20


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of files")
def test_one_process_at_a_time_goes_on_with_a_run(tmp_path: Path) -> None:
    first = RunPlace.new(tmp_path)
    (tmp_path / "checkpoint.npz").touch()
    with pytest.raises(OptionError, match="another run is at work"):
        RunPlace.of_run(tmp_path)
    first.lock.close()
    RunPlace.of_run(tmp_path).lock.close()
