"""The time that the phases of a run take."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

PHASES = ("compile", "warmup", "sampling", "recording")


class Phases:
    """Seconds by phase: ``compile``, ``warmup``, ``sampling`` and ``recording``.

    Draws are recorded while the next are made, the last block behind them: ``recording`` is the
    time that was waited for it.

    Parameters
    ----------
    before
        What a run that goes on has taken already.
    """

    def __init__(self, before: Mapping[str, float] | None = None) -> None:
        self.seconds = dict.fromkeys(PHASES, 0.0) | dict(before or {})

    @contextmanager
    def of(self, phase: str) -> Iterator[None]:
        """The phase of what is done within."""
        begun = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] += time.perf_counter() - begun

    @property
    def total(self) -> float:
        """Seconds of all but compilation."""
        return sum(self.seconds.values()) - self.seconds["compile"]
