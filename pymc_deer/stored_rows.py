"""Arrays of a store, of which the parts are read that are used."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from xarray.backends import BackendArray
from xarray.core import indexing

from pymc_deer.status import OptionError

_CHUNKS = 4
"""Chunks that are read at a time where not all of their rows are wanted."""


METADATA = ".zmetadata"
"""Zarr's file with the metadata of all arrays, which xarray reads first: as it is replaced as a
whole, readers see all variables at one length."""

ATTRIBUTES = ".zattrs"
"""Zarr's file with the attributes of a group."""

RUN = "run"
"""Attribute of a store: what its run is known by, and no other."""


@dataclass(frozen=True)
class StoredRun:
    """The run that a directory belongs to: it may be deleted, and given to another one.

    Attributes
    ----------
    place
        The directory.
    name
        What the run is known by; None for a store that does not say.
    """

    place: Path
    name: str | None

    @classmethod
    def at(cls, place: Path) -> "StoredRun":
        """The run that the directory belongs to now."""
        file = place / ATTRIBUTES
        return cls(place, json.loads(file.read_text()).get(RUN) if file.exists() else None)

    def refuse_other(self) -> None:
        """Refuse to go on with what belongs to another run, or is not there any more.

        Raises
        ------
        OptionError
            Naming the directory.
        """
        if StoredRun.at(self.place) != self:
            is_there = self.place.exists()
            what = "belongs to another run now" if is_there else "is not there any more"
            raise OptionError(
                f"{self.place} {what}: the draws of this one are lost but for those in memory. "
                "Give each run a store of its own, and keep it while its draws are used."
            )


def lost(file: Path, of: str, how: str = "is not there any more") -> OptionError:
    """The error of a file of a store that cannot be read, and values with it."""
    return OptionError(
        f"{file} {how}, and with it values of {of}. Bring the file back, or sample again: the "
        "other values of the store are whole."
    )


def metadata_at(path: Path) -> dict[str, Any]:
    """What the file says that is replaced as a whole.

    Raises
    ------
    OptionError
        If it is not there any more, or damaged.
    """
    file = path / METADATA
    try:
        return json.loads(file.read_text())
    except FileNotFoundError as error:
        raise lost(file, path.name) from error
    except ValueError as error:
        raise lost(file, path.name, "is damaged") from error


class StoredRows(BackendArray):
    """A Zarr array for xarray.

    Parameters
    ----------
    array
        As Zarr opens it, each of its chunks a file that has been written.
    place
        The directory of these files.
    run
        Whose they are.
    """

    def __init__(self, array: Any, place: Path, run: StoredRun) -> None:
        self.array, self.place, self.run = array, place, run
        self.shape, self.dtype = array.shape, array.dtype

    def __getitem__(self, key: Any) -> Any:
        basic = indexing.IndexingSupport.BASIC
        return indexing.explicit_indexing_adapter(key, self.shape, basic, self._read)

    def refuse_lost(self, key: Sequence[int | slice] | None = None) -> None:
        """Refuse to read, of all that there is or of a part, what is there no longer.

        For Zarr a chunk without a file is one that nobody has written, whose numbers are any.

        Raises
        ------
        OptionError
            Naming the first file that is missing, or the store if it is another run's.
        """
        self.run.refuse_other()
        parts = key or [slice(None)] * len(self.shape)
        touched = [
            np.unique(np.atleast_1d(np.arange(size)[part]) // chunk).tolist()
            for part, size, chunk in zip(parts, self.shape, self.array.chunks, strict=True)
        ]
        for chunk in product(*touched):
            file = self.place / (".".join(map(str, chunk)) or "0")
            if not file.exists():
                raise lost(file, self.place.name)

    def _read(self, key: Any) -> np.ndarray:
        """Zarr takes all chunks of a selection into memory: of every n-th row a few at a time."""
        self.refuse_lost(key)
        steps = [part.step or 1 if isinstance(part, slice) else 0 for part in key]
        if max(steps, default=0) <= 1:
            return np.asarray(self.array[key])
        axis = int(np.argmax(steps))
        rows = range(*key[axis].indices(self.shape[axis]))
        most = max(1, _CHUNKS * self.array.chunks[axis] // rows.step)
        parts = []
        for i in range(0, max(1, len(rows)), most):
            some = rows[i : i + most]
            part = slice(some.start, some.stop, some.step)
            parts.append(self.array[(*key[:axis], part, *key[axis + 1 :])])
        # Where a part of the key is a number, there is no axis.
        return np.concatenate(parts, axis=np.count_nonzero(steps[:axis]))
