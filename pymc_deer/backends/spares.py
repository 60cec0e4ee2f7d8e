"""Arrays that one call has no more use for, and the next one has."""

from collections import defaultdict
from collections.abc import Callable, Hashable
from contextlib import suppress
from typing import Any


class Spares:
    """Arrays that calls leave for later ones whose arrays are of the same kind and sizes.

    Each is one call's at a time, since calls may come from several threads.
    """

    def __init__(self) -> None:
        self._kept: dict[Hashable, list[Any]] = defaultdict(list)

    def take[T](self, kind: Hashable, make: Callable[[], T]) -> T:
        """What was kept, or else what `make` makes."""
        # Not looked for first: another thread may take it meanwhile.
        with suppress(IndexError):
            return self._kept[kind].pop()
        return make()

    def keep(self, kind: Hashable, arrays: Any) -> None:
        """Leave it to the calls that come."""
        self._kept[kind].append(arrays)

    def clear(self) -> None:
        """Keep nothing of what there is."""
        self._kept.clear()
