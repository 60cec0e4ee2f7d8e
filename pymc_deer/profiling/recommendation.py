"""What a profile's costs mean for the one who has to choose: words, and where they come from."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from math import isfinite, nan

from pymc_deer.chains.calibration import WORTH_LEAVING
from pymc_deer.options import BACKENDS, BackendName
from pymc_deer.profiling.cost_shares import Work

CPU = "cpu"
"""How the device is called that is no GPU."""

PYTHON_US = 20.0
"""Microseconds that PyMC and a step spend in Python for each recorded draw (docs/hmc.md)."""

_WORTH = (0.03, 0.16)
"""Effective draws that a transition of MALA is worth (docs/warmup.md)."""

_MATRIX_BOUND = 0.5
"""Share of matrix products from which a GPU's precision decides how long they take."""


@dataclass(frozen=True)
class WindowCost:
    """What one width costs on one backend. NaN where it was not measured.

    Attributes
    ----------
    backend, device
        ``numba`` or ``jax``; ``cpu`` or the name of a GPU.
    window
        W, transitions solved at once; 1 is the chain step by step.
    gradient_us
        Microseconds for one of the gradients that are evaluated together: of a single transition
        if W = 1, otherwise a sweep's time over its 2 W. Kernel, metric and scan included.
    sweeps_per_1000
        Sweeps that 1000 transitions of the pilot chain took; 0 if W = 1.
    pays_below
        Sweeps for 1000 transitions below which the window is faster than W = 1 on this backend.
    transitions_per_second
        Predicted for a chain, from the pilot's.
    memory_bytes
        What the window's states take, about.
    compile_seconds
        What was spent before the first result; less where the compiled code was on disk, or is
        shared with a width before.
    note
        Why something was not measured; empty otherwise.
    """

    backend: BackendName
    device: str
    window: int
    gradient_us: float = nan
    sweeps_per_1000: float = nan
    pays_below: float = nan
    transitions_per_second: float = nan
    memory_bytes: float = nan
    compile_seconds: float = nan
    note: str = ""

    @property
    def is_measured(self) -> bool:
        """Whether the number of transitions a second is known."""
        return isfinite(self.transitions_per_second)

    @property
    def call(self) -> str:
        """The step that runs so, as one writes it."""
        return f"DeerMALA(backend={self.backend!r}, window={self.window})"


def recommend(
    costs: Sequence[WindowCost], work: Work, dtype: str, discrete: Sequence[str] = ()
) -> str:
    """Backend, device, window, precision, and whether plain NUTS is the better choice.

    Parameters
    ----------
    costs
        Of all backends and widths.
    work
        What a gradient consists of.
    dtype
        ``float64`` or ``float32``.
    discrete
        Names of the variables that other steps move, between whose moves there are no windows.
    """
    single = max((c for c in costs if c.window == 1 and c.is_measured), key=_speed, default=None)
    if single is None:
        return _none_runs({cost.backend for cost in costs})
    wide = max((c for c in costs if c.window > 1 and c.is_measured), key=_speed, default=None)
    if discrete:
        return " ".join([_beside_other_steps(single, discrete), _precision(single, work, dtype)])
    if wide is None or _speed(wide) < WORTH_LEAVING * _speed(single):
        parts = [_step_by_step(single), *_beside(single, wide), *_on_a_gpu(single, costs)]
        return " ".join([*parts, _precision(single, work, dtype)])
    widest = max(c.window for c in costs if c.backend == wide.backend and c.is_measured)
    parts = [_in_windows(single, wide), _precision(wide, work, dtype)]
    if wide.window == widest:
        parts.append(f"It was the widest that was measured: try windows=({widest}, {4 * widest}).")
    return " ".join(parts)


def rounded(number: float) -> str:
    """Two digits that matter, or all of those before the point."""
    return f"{number:,.0f}" if abs(number) >= 10 else f"{number:.2g}"


def _none_runs(measured: Collection[str]) -> str:
    for name in BACKENDS:
        if name not in ("auto", *measured):
            return (
                "No backend that was measured runs this model, for the reasons above. "
                f"{name} was left out: try profile(backends=[{name!r}])."
            )
    return (
        "No backend runs this model, for the reasons above. Try pm.sample() with PyMC's own steps."
    )


def _in_windows(single: WindowCost, wide: WindowCost) -> str:
    if wide.device == CPU:
        # There windows are none unless they are asked for.
        choice = f"Take {wide.call} on {wide.device}: it makes"
    else:
        choice = (
            f"Take pymc_deer.sample(backend={wide.backend!r}) on {wide.device}, which measures "
            f"windows of DeerHMC for the run at hand. Of DeerMALA, {wide.call} makes"
        )
    return (
        f"{choice} {rounded(_speed(wide))} transitions a second, "
        f"{rounded(_speed(wide) / _speed(single))} times those of the fastest chain step by step "
        f"({single.backend} on {single.device}). With {_WORTH[0]} to {_WORTH[1]} effective draws a "
        f"transition that is {rounded(_WORTH[0] * _speed(wide))} to "
        f"{rounded(_WORTH[1] * _speed(wide))} of them a second, to be held against those of NUTS."
    )


def _step_by_step(single: WindowCost) -> str:
    """The chain step by step, and when NUTS, of which docs/hmc.md has the measurements."""
    choice = (
        f"Take pymc_deer.sample(backend={single.backend!r}, window=1) on "
        f"{single.device}: no window is faster than the chain step by step. Where R-hat stays "
        "above 1.01 in another parametrisation too, try plain NUTS, pm.sample(): it finds the "
        "length of each path anew. docs/hmc.md compares the two."
    )
    if single.device == CPU and single.gradient_us < PYTHON_US:
        choice += (
            f" pm.sample(step=DeerHMC()) adds the {PYTHON_US:.0f} microseconds or so that a step "
            f"spends in Python for each draw, where a gradient takes {rounded(single.gradient_us)}."
        )
    return choice


def _beside(single: WindowCost, wide: WindowCost | None) -> list[str]:
    if wide is None:
        return []
    return [
        f"The best window, {wide.window} on {wide.backend} ({wide.device}), makes "
        f"{rounded(_speed(wide))} transitions a second against {rounded(_speed(single))}. It takes "
        f"{rounded(wide.sweeps_per_1000)} sweeps for 1000 transitions, and would pay there below "
        f"{rounded(wide.pays_below)}."
    ]


def _on_a_gpu(single: WindowCost, costs: Sequence[WindowCost]) -> list[str]:
    """What a GPU would have to do, where there is none: sweeps are as many on every device."""
    swept = [c for c in costs if c.window > 1 and c.is_measured]
    if not swept or any(c.device != CPU for c in costs if c.device):
        return []
    widest = max(swept, key=lambda c: c.window)
    microseconds = 1e9 / (widest.sweeps_per_1000 * _speed(single))
    return [
        f"No GPU was measured. On one, windows of {widest.window} would be faster if a sweep of "
        f"them, {2 * widest.window} gradients in one batch, takes less than "
        f"{rounded(microseconds)} microseconds."
    ]


def _beside_other_steps(single: WindowCost, discrete: Sequence[str]) -> str:
    names = ", ".join(discrete)
    return (
        f"Take {single.call} on {single.device} beside PyMC's steps for {names}: these move "
        "between the draws, so that there are no stretches to solve in windows."
    )


def _precision(chosen: WindowCost, work: Work, dtype: str) -> str:
    if dtype == "float32":
        return "Precision: float32, as the model has it; float64 was not measured."
    if chosen.device != CPU and work.shares["matrix"] >= _MATRIX_BOUND:
        return (
            "Precision: float64 was measured. Most of the work is matrix products on a GPU, which "
            "may be faster in float32: build the model under pytensor.config.floatX = 'float32' "
            "and profile that."
        )
    return "Precision: keep float64, the one that was measured."


def _speed(cost: WindowCost) -> float:
    return cost.transitions_per_second
