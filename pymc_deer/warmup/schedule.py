"""When what is adapted: windows of warm-up, cut into stretches."""

from dataclasses import dataclass

_FIRST_WINDOW = 12
"""Transitions. Few show the metric where the posterior is near to a Gaussian, and no harm is done
where it is not."""

_FINAL_SHARE = 0.1
_EARLY_SHARE = 0.5
_STRETCHES_PER_WINDOW = 12
"""With twice as many step sizes end as near to the target, and warm-up of a small model, whose
time is that of calls, takes up to twice as long."""


@dataclass(frozen=True)
class Stretch:
    """A piece of warm-up in which nothing is adapted.

    Attributes
    ----------
    n_draws
        Recorded draws.
    learns_metric, ends_window
        Whether its draws are looked at, and whether something is learnt at its end.
    explores
        Whether paths of different lengths are tried.
    is_early
        Whether its window ends in the first half of warm-up.
    """

    n_draws: int
    learns_metric: bool
    ends_window: bool
    explores: bool
    is_early: bool


def warmup_schedule(n_draws: int, steps_per_draw: int) -> list[Stretch]:
    """Stretches of warm-up: windows of doubling length, each cut into pieces.

    The step size is adapted after every stretch, the metric after every window from that window's
    draws alone: the early ones are still on their way to the typical set. The last tenth adapts
    the step size to the final metric.

    Parameters
    ----------
    n_draws
        Recorded draws of warm-up.
    steps_per_draw
        Transitions for each; window lengths are counted in transitions.
    """
    n_final = max(1, round(_FINAL_SHARE * n_draws)) if n_draws > 1 else n_draws
    n_learning = n_draws - n_final
    windows = []
    length = max(1, round(_FIRST_WINDOW / steps_per_draw))
    while n_learning > 0:
        # A window too short to double is joined to the one before it.
        size = n_learning if n_learning < 3 * length else length
        windows.append((size, True))
        n_learning -= size
        length *= 2
    if n_final:
        windows.append((n_final, False))

    stretches, n_behind = [], 0
    for size, learns in windows:
        n_behind += size
        is_early = n_behind <= _EARLY_SHARE * n_draws
        piece = -(-size // _STRETCHES_PER_WINDOW)
        sizes = [piece] * (size // piece)
        sizes[-1] += size % piece
        for i, n in enumerate(sizes):
            # The first fifth of a window forgets the metric and step size before it.
            learning = learns and (i + 1 > len(sizes) // 5)
            ends = learns and i == len(sizes) - 1
            stretches.append(Stretch(n, learning, ends, learns, is_early))
    return stretches
