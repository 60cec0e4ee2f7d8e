"""Arrays that one call has no more use for, and the next one has."""

from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress


class Spares[T]:
    """Arrays that calls leave for later ones whose arrays have the same sizes.

    Each is one call's at a time, since calls may come from several threads.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[int, ...], list[T]] = defaultdict(list)

    def take(self, sizes: tuple[int, ...], make: Callable[[], T]) -> T:
        """What was kept, or else what `make` makes."""
        # Not looked for first: another thread may take it meanwhile.
        with suppress(IndexError):
            return self._kept[sizes].pop()
        return make()

    def keep(self, sizes: tuple[int, ...], arrays: T) -> None:
        """Leave it to the calls that come."""
        self._kept[sizes].append(arrays)

    def clear(self) -> None:
        """Keep nothing of what there is."""
        self._kept.clear()
