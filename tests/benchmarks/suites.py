"""What each suite consists of."""

from dataclasses import dataclass, replace

from tests.benchmarks import cases, cold, samplers, scaling
from tests.benchmarks.race import Setting


@dataclass(frozen=True)
class Race:
    """A model with a number of chains, and who takes part."""

    model: str
    case: cases.Case
    samplers: tuple[str, ...]


@dataclass(frozen=True)
class Suite:
    """All parts, each in order of importance.

    Attributes
    ----------
    minutes
        After so many nothing new is begun.
    scaling_share
        Share of the minutes that the scaling part may take.
    windows
        Models of which all widths of windows are tried, each on these backends.
    """

    name: str
    setting: Setting
    races: tuple[Race, ...]
    points: tuple[scaling.Point, ...]
    effort: scaling.Effort
    cold_models: tuple[str, ...] = ()
    cold_samplers: tuple[str, ...] = ()
    cold_tune: int | None = None
    cold_repeats: int = cold.REPEATS
    windows: tuple[tuple[str, str], ...] = ()
    minutes: float = 45.0
    scaling_share: float = 1.0


def cpu(cores: int, precision: str | None, *, quick: bool) -> Suite:
    """Against all others, on so many cores."""
    setting = Setting(cores, precision or "float64", on_gpu=False)
    if quick:
        return Suite(
            "cpu_quick",
            setting,
            tuple(Race(name, cases.CASES[name].quick(), samplers.CPU) for name in cases.CPU_QUICK),
            scaling.CPU_QUICK,
            scaling.QUICK_EFFORT,
            cold.QUICK_MODELS,
            cold.QUICK_SAMPLERS,
            cold_tune=100,
            cold_repeats=1,
            minutes=6.0,
        )
    return Suite(
        "cpu",
        setting,
        tuple(
            Race(
                name,
                cases.CASES[name],
                samplers.CPU_LARGE if name in cases.LARGE else samplers.CPU,
            )
            for name in cases.CPU
        ),
        scaling.CPU,
        scaling.CPU_EFFORT,
        cold.MODELS,
        cold.SAMPLERS,
        windows=tuple(
            (name, backend)
            for name in ("eight_schools", "german_credit", "radon", "horseshoe")
            for backend in ("numba", "jax")
        ),
    )


def gpu(cores: int, precision: str | None, *, quick: bool) -> Suite:
    """Against the samplers that run on a GPU, with 4 chains and with 1.

    Ours make more draws than others, whose time is short: windows are as wide as a GPU pays for.
    """
    setting = Setting(cores, precision or "float32", on_gpu=True)
    if quick:
        case = replace(cases.CASES["german_credit"].quick(), draws=50, tune=50)
        takes_part = samplers.GPU_OURS + samplers.GPU
        races = tuple(Race(name, case, takes_part) for name in cases.GPU_QUICK)
        points, effort, minutes = scaling.GPU_QUICK, scaling.QUICK_EFFORT, 6.0
        return Suite("gpu_quick", setting, races, points, effort, minutes=minutes)
    races = tuple(
        Race(name, replace(case, chains=chains, repeats=1, limit=60.0), of_case)
        for chains in (4, 1)
        for name in cases.GPU
        for case, of_case in (
            (cases.CASES[name].many_draws(), samplers.GPU_OURS),
            (
                cases.CASES[name].few_draws(),
                samplers.GPU if chains > 1 and name in cases.SMALL else samplers.GPU_FEW,
            ),
        )
    )
    return Suite(
        "gpu", setting, races, scaling.GPU, scaling.GPU_EFFORT, minutes=9.0, scaling_share=0.3
    )


SUITES = {"cpu": cpu, "gpu": gpu}
