"""All that a stored run needs to go on: one small file, replaced as a whole."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pymc_deer.acceptance import TargetAccept
from pymc_deer.backends.request import Tuning
from pymc_deer.chains.calibration import Calibration
from pymc_deer.chains.chain import ChainRecord
from pymc_deer.chains.stretch import Streams
from pymc_deer.chains.trials import Trial
from pymc_deer.duplicate import duplicate
from pymc_deer.metric import Metric
from pymc_deer.noise import Rows
from pymc_deer.options import BackendName
from pymc_deer.path_length import PathLength
from pymc_deer.sampling.attributes import all_attrs
from pymc_deer.sampling.fingerprint import Fingerprint
from pymc_deer.sampling.plain import packed, unpacked
from pymc_deer.sampling.settings import Settings
from pymc_deer.status import OptionError
from pymc_deer.store import replace_file
from pymc_deer.warmup.adaptation import Warmup
from pymc_deer.warmup.angles import Angles
from pymc_deer.warmup.dual_averaging import DualAveraging
from pymc_deer.warmup.metric_estimate import Moments
from pymc_deer.warmup.metric_low_rank import Sample
from pymc_deer.warmup.mixing import BatchMeans
from pymc_deer.warmup.path_statistics import PathStatistics
from pymc_deer.warmup.schedule import Stretch
from pymc_deer.warmup.window import WarmupWindow

_FILE = "checkpoint.npz"

_FORMAT = 15
"""To be raised when what is stored changes its meaning or its fields."""


@dataclass(frozen=True)
class Checkpoint:
    """A run between two stretches.

    Attributes
    ----------
    settings
        What it was asked for.
    backend, calibration
        What its step has chosen.
    fingerprint
        Of its model.
    attrs
        What is said of it in the attributes of ``sample_stats``, from its beginning.
    records
        Where its chains stand.
    seconds
        Time that it has taken, by phase.
    """

    settings: Settings
    backend: BackendName
    calibration: Calibration
    fingerprint: Fingerprint
    attrs: dict[str, Any]
    records: list[ChainRecord]
    seconds: dict[str, float]

    @property
    def n_done(self) -> tuple[int, int]:
        """Draws of each chain that are made, of warm-up and after it."""
        record, settings = self.records[0], self.settings
        assert settings.tune is not None
        return settings.tune - record.n_tune_left, settings.draws - record.n_draws_left

    @property
    def all_attrs(self) -> dict[str, Any]:
        """Attributes of ``sample_stats``."""
        return all_attrs(self.attrs, self.records, self.seconds)

    def of_draws(self, draws: int) -> "Checkpoint":
        """The same on the way to so many draws.

        Raises
        ------
        OptionError
            If there were to be more.
        """
        more = draws - self.settings.draws
        if more < 0:
            raise OptionError(
                f"sample(draws={draws}, resume=...): the run is one of {self.settings.draws} "
                "draws, and may go on to more, not to fewer. Leave draws out."
            )
        records = [duplicate(r, n_draws_left=r.n_draws_left + more) for r in self.records]
        return replace(self, settings=replace(self.settings, draws=draws), records=records)

    def save(self, path: Path) -> None:
        """Replace the checkpoint of the run at `path`."""
        replace_file(path / _FILE, packed({"format": _FORMAT, "checkpoint": self}))

    @staticmethod
    def exists(path: Path) -> bool:
        """Whether there is a run at `path`."""
        return (path / _FILE).is_file()

    @classmethod
    def load(cls, path: Path) -> "Checkpoint":
        """The last one of the run at `path`.

        Raises
        ------
        OptionError
            If this version cannot read it.
        """
        try:
            found = unpacked((path / _FILE).read_bytes(), _CLASSES)
            if found["format"] != _FORMAT:
                raise ValueError(f"Its format is {found['format']}, and not {_FORMAT}.")
            return found["checkpoint"]
        except Exception as error:
            raise OptionError(
                f"sample(resume={str(path)!r}): its checkpoint is damaged, or was written by "
                "another version of pymc_deer. Its draws can still be read; to make more, begin "
                "another run, with store=."
            ) from error


_CLASSES = (
    *(Checkpoint, Settings, Calibration, Trial, Fingerprint),
    *(ChainRecord, Streams, Rows, BatchMeans, Warmup, Stretch, DualAveraging, Tuning, Metric),
    *(TargetAccept, PathLength, PathStatistics, WarmupWindow, Angles, Moments, Sample),
)
"""Classes that a checkpoint is made of."""
