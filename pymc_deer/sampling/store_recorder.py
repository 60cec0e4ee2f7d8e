"""Draws that go to a Zarr store as they are made, with all that the run needs to go on."""

import errno
import logging
import os
import shutil
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from xarray import DataTree

from pymc_deer.chains.chain import ChainRecord
from pymc_deer.chains.stretch import SolvedStretch
from pymc_deer.sampling.checkpoint import Checkpoint
from pymc_deer.sampling.inference_data import check_convergence, some_draws
from pymc_deer.sampling.memory_recorder import template
from pymc_deer.sampling.phases import Phases
from pymc_deer.sampling.recorder import Ending, Piece, Recorder, Values
from pymc_deer.status import ModelError, OptionError
from pymc_deer.store import DrawStore, open_store
from pymc_deer.uninterrupted import uninterrupted

_log = logging.getLogger("pymc.deer")

COMMIT_SECONDS = 2.0
"""Time between commits: what a killed process loses at most, beside the stretch it is solving."""

_LOCK = "lock"
_NO_LOCKS = (errno.ENOSYS, errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP)
"""What a file system says that has no locks, as some that are shared by a network have none."""


@dataclass(frozen=True)
class RunPlace:
    """A directory for one run, which one process at a time may work on."""

    path: Path
    lock: BinaryIO

    @staticmethod
    def refuse_used(path: Path) -> None:
        """Refuse a place for a run that begins, if there is something already.

        Raises
        ------
        OptionError
            Telling what.
        """
        where = f"sample(store={str(path)!r})"
        with _refused_where_none_can_be(where, "store cannot be made there"):
            nearest = _nearest(path)
            if Checkpoint.exists(path):
                raise OptionError(
                    f"{where}: there is a run already. Go on with it, resume={str(path)!r}, or "
                    "choose another place."
                )
            if nearest == path and not (path.is_dir() and _names_in(path) <= {_LOCK}):
                raise OptionError(
                    f"{where}: store must be a directory that is empty, or does not exist yet."
                )
            if not nearest.is_dir():
                raise NotADirectoryError(f"{nearest} is no directory")
            if not os.access(nearest, os.W_OK | os.X_OK):
                raise PermissionError(f"{nearest} cannot be written to")

    @classmethod
    def new(cls, path: Path) -> "RunPlace":
        """For a run that begins."""
        cls.refuse_used(path)
        where = f"sample(store={str(path)!r})"
        with _refused_where_none_can_be(where, "store cannot be made there"):
            path.mkdir(parents=True, exist_ok=True)
            place = cls(path, _locked(path, where))
        with place.given_back_if_refused():
            # Another process may have begun a run meanwhile, and ended it.
            cls.refuse_used(path)
        return place

    @classmethod
    def of_run(cls, path: Path) -> "RunPlace":
        """For a run that goes on.

        Raises
        ------
        OptionError
            If there is none, or another run is at work on it.
        """
        where = f"sample(resume={str(path)!r})"
        if not Checkpoint.exists(path):
            raise OptionError(
                f"{where}: there is no run of pymc_deer.sample. Begin one, with store=."
            )
        with _refused_where_none_can_be(where, "it cannot be written to"):
            return cls(path, _locked(path, where))

    @contextmanager
    def given_back_if_refused(self) -> Iterator[None]:
        """Leave the place to others if what is done within fails."""
        try:
            yield
        except BaseException:
            self.lock.close()
            raise

    @contextmanager
    def left_as_it_was_if_refused(self) -> Iterator[None]:
        """Leave the place to others, and empty, if what is done within fails."""
        with self.given_back_if_refused():
            try:
                yield
            except BaseException:
                for name in _names_in(self.path) - {_LOCK}:
                    made = self.path / name
                    shutil.rmtree(made) if made.is_dir() else made.unlink()
                raise


class StoreRecorder(Recorder):
    """Draws in a store, committed together with the checkpoint that belongs to them.

    Parameters
    ----------
    values
        What is recorded.
    place
        Where the run is.
    store
        The store there.
    checkpoint
        Where the run stands.
    phases
        The time that it takes.
    """

    def __init__(
        self,
        values: Values,
        place: RunPlace,
        store: DrawStore,
        checkpoint: Checkpoint,
        phases: Phases,
    ) -> None:
        keeps_warmup = "warmup_posterior" in store.sizes
        super().__init__(values, sum(checkpoint.n_done), keeps_warmup=keeps_warmup)
        self._place, self._store, self._checkpoint = place, store, checkpoint
        self._phases = phases
        self._committed = time.monotonic()

    @classmethod
    def begun(
        cls,
        values: Values,
        place: RunPlace,
        checkpoint: Checkpoint,
        idata_kwargs: dict[str, Any],
        phases: Phases,
    ) -> "StoreRecorder":
        """A store for a run that has not made a draw."""
        layout = template(values, checkpoint.settings, idata_kwargs)
        _refuse_lengths(layout, values)
        sizes = _by_group(layout.children, _sizes(checkpoint))
        rows = values.rows_per_block
        store = uninterrupted(partial(DrawStore.create, place.path, layout, sizes, rows))
        recorder = cls(values, place, store, checkpoint, phases)
        # Not in the thread beside: where this is interrupted the place is cleared at once.
        recorder._commitment()(())
        return recorder

    @classmethod
    def resumed(
        cls, values: Values, place: RunPlace, checkpoint: Checkpoint, phases: Phases
    ) -> "StoreRecorder":
        """The store of a run that goes on behind its checkpoint."""
        store = DrawStore(place.path, _by_group(DrawStore.groups(place.path), _sizes(checkpoint)))
        return cls(values, place, store, checkpoint, phases)

    def record(
        self, stretches: Sequence[SolvedStretch], records: Sequence[ChainRecord], *, tuning: bool
    ) -> None:
        super().record(stretches, records, tuning=tuning)
        self._checkpoint = replace(self._checkpoint, records=list(records))
        if time.monotonic() - self._committed >= COMMIT_SECONDS:
            self.commit()

    def commit(self) -> None:
        """Have the run go on from here, once that is done, if it ends."""
        self._hand_over(self._commitment())
        self._committed = time.monotonic()

    def _commitment(self) -> Callable[[Sequence[Piece]], None]:
        """What writes rows, and has the run go on from where it is now."""
        checkpoint = replace(self._checkpoint, seconds=dict(self._phases.seconds))
        return partial(self._write_and_commit, checkpoint, self._phases.total)

    def _write_and_commit(
        self, checkpoint: Checkpoint, seconds: float, pieces: Sequence[Piece]
    ) -> None:
        """The rows first, then what counts them."""
        # In a warm-up that is not kept there are no rows, whose place would be looked at.
        self._store.refuse_other()
        self._write_all(pieces)
        checkpoint.save(self._place.path)
        about = {"sampling_time": seconds, "tuning_steps": checkpoint.settings.tune}
        attrs = {
            group: {**about, **(checkpoint.all_attrs if group.endswith("sample_stats") else {})}
            for group in self._store.sizes
        }
        self._store.commit(_by_group(self._store.sizes, checkpoint.n_done), attrs)

    def finished(self, ending: Ending) -> DataTree:
        self.commit()
        self.flush()
        self._store.settle()
        if not ending.quiet:
            self._tell(ending.seconds)
        idata = open_store(self._place.path)
        if ending.compute_convergence_checks:
            check_convergence(some_draws(idata), self.values.model)
        return idata

    def _tell(self, seconds: float) -> None:
        """As PyMC tells it of draws in memory."""
        chains, (n_tune, n_draws) = self.values.n_chains, self._checkpoint.n_done
        _log.info(
            f"Sampling {chains} chain{'s' if chains > 1 else ''} for {n_tune:_d} tune and "
            f"{n_draws:_d} draw iterations ({n_tune * chains:_d} + {n_draws * chains:_d} draws "
            f"total) took {seconds:.0f} seconds."
        )

    def close(self) -> None:
        super().close()
        self._place.lock.close()

    def _write(self, piece: Piece, values: Mapping[str, np.ndarray]) -> None:
        prefix = "warmup_" if piece.tuning else ""
        settings = self._checkpoint.settings
        assert settings.tune is not None
        first = piece.first if piece.tuning else piece.first - settings.tune
        stats = {"lp" if name == "model_logp" else name: v for name, v in piece.stats.items()}
        for group, columns in (("posterior", values), ("sample_stats", stats)):
            # Where there is no thread beside, this is the main one.
            uninterrupted(partial(self._store.write, f"{prefix}{group}", first, columns))


def _sizes(checkpoint: Checkpoint) -> tuple[int, int]:
    settings = checkpoint.settings
    return settings.tune or 0, settings.draws


def _by_group(groups: Any, of_phases: tuple[int, int]) -> dict[str, int]:
    """A number of draws for each of the groups that have some, by their phase."""
    warmup, kept = of_phases
    named = {"warmup_posterior": warmup, "warmup_sample_stats": warmup}
    named |= {"posterior": kept, "sample_stats": kept}
    return {name: n for name, n in named.items() if name in groups}


def _names_in(path: Path) -> set[str]:
    return {file.name for file in path.iterdir()}


def _nearest(path: Path) -> Path:
    """The path, or what there is above it; of a link that leads nowhere, the link."""
    for place in (path, *path.parents):
        with suppress(FileNotFoundError, NotADirectoryError):
            place.lstat()
            return place
    return path


def _refuse_lengths(layout: DataTree, values: Values) -> None:
    """Refuse what has a dimension in common with others, and is not as long.

    In memory, where all draws are put together at once, the shorter ones are filled up with NaN.

    Raises
    ------
    ModelError
        Naming the first.
    """
    for name, variable in layout["posterior"].data_vars.items():
        own = tuple(values.shapes[str(name)])
        if own != variable.shape[2:]:
            lengths = dict(zip(variable.dims[2:], variable.shape[2:], strict=True))
            raise ModelError(
                f"sample(store=...): {name} is of shape {own}, and its dimensions are of other "
                f"lengths, {lengths}. Give it other dims."
            )


@contextmanager
def _refused_where_none_can_be(where: str, what: str) -> Iterator[None]:
    """As the argument's fault, with the system's reason."""
    try:
        yield
    except OptionError:
        raise
    except (OSError, ValueError) as error:
        raise OptionError(f"{where}: {what}: {error}.") from error


def _locked(path: Path, where: str) -> BinaryIO:
    """A file that no other process has, until it is closed or this one ends."""
    file = (path / _LOCK).open("ab")
    # Where the system has no such locks, on Windows, or the file system none, none are taken.
    with suppress(ImportError):
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            file.close()
            raise OptionError(
                f"{where}: another run is at work on it, here or in another process. Wait until it "
                "has ended."
            ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                raise
    return file
