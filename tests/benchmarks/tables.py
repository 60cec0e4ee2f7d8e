"""Results as Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from tests.benchmarks.figures import FIRST

Row = Mapping[str, Any]

USUAL_CHAINS = 4
"""Chains of a run, where nothing else is said."""

RATIOS: dict[str, tuple[str, str, str]] = {
    "DeerMALA / PyMC": ("deer_mala", "pymc", "ess_per_s"),
    "DeerMALA / nutpie": ("deer_mala", "nutpie", "ess_per_s"),
    "DeerHMC / nutpie": ("deer_hmc", "nutpie", "ess_per_s"),
    "DeerHMC on Numba / nutpie": ("deer_hmc_numba", "nutpie", "ess_per_s"),
    "nutpie / DeerMALA, to converge": ("nutpie", "deer_mala", "seconds_to_converge"),
    "nutpie / DeerHMC, to converge": ("nutpie", "deer_hmc", "seconds_to_converge"),
    "DeerMALA / NumPyro": ("deer_mala", "numpyro", "ess_per_s"),
    "DeerHMC / NumPyro": ("deer_hmc", "numpyro", "ess_per_s"),
    "DeerMALA / BlackJAX": ("deer_mala", "blackjax_nuts", "ess_per_s"),
    "DeerHMC / BlackJAX": ("deer_hmc", "blackjax_nuts", "ess_per_s"),
    "DeerMALA in windows / NumPyro": ("deer_mala_windows", "numpyro", "ess_per_s"),
    "DeerHMC in windows / NumPyro": ("deer_hmc_windows", "numpyro", "ess_per_s"),
    "DeerMALA in windows / BlackJAX": ("deer_mala_windows", "blackjax_nuts", "ess_per_s"),
    "DeerHMC in windows / BlackJAX": ("deer_hmc_windows", "blackjax_nuts", "ess_per_s"),
    "DeerHMC / ChEES-HMC, 256 chains": ("deer_hmc_256", "blackjax_chees", "ess_per_s"),
    "sequential / nutpie, time per gradient": (
        *("deer_sequential_numba", "nutpie", "us_per_gradient"),
    ),
}
"""Ratios shown: of whom to whom, and of which figure."""

_RIVALS = {
    "nutpie": "nutpie",
    "PyMC's NUTS": "pymc",
    "NumPyro's NUTS": "numpyro",
    "BlackJAX's NUTS": "blackjax_nuts",
}
HEADLINE: dict[str, tuple[str, str, str]] = {
    **{name: ("deer_hmc", sampler, "ess_per_s") for name, sampler in _RIVALS.items()},
    **{
        f"{name}, to converge": (sampler, "deer_hmc", "seconds_to_converge")
        for name, sampler in _RIVALS.items()
    },
}
"""What the README shows of `pymc_deer.sample()`: beside whom."""

_RACE = {
    "sampler": "sampler",
    "ESS/s, sampling": "ess_per_s",
    "ESS/s, all": "ess_per_s_all",
    "s to converge": "seconds_to_converge",
    "gradients per ESS": "gradients_per_ess",
    "µs per gradient": "us_per_gradient",
    "compile s": "compile_s",
    "warm-up s": "warmup_s",
    "sampling s": "sampling_s",
    "peak MiB": "peak_mib",
    "R-hat": "max_r_hat",
    "window": "window",
}
_SCALING = {
    "varied": "axis",
    "backend": "backend",
    "window": "window",
    "N": "n",
    "D": "dimension",
    "chains": "chains",
    "transitions/s": "transitions_per_s",
    "over sequential": "speed_up",
    "sweeps per 1000": "sweeps_per_1000",
    "µs per state": "us_per_state",
    "bound, transitions/s": "bound_transitions_per_s",
    "share of bound": "share_of_bound",
}
_COLD = {
    "model": "model",
    "sampler": "sampler",
    "seconds to the first draw": "seconds",
    "importing": "importing_s",
    "compiling": "compile_s",
    "warm-up": "warmup_s",
}
_WINDOWS = {
    "model": "model",
    "backend": "backend",
    "auto": "auto",
    "auto over best": "auto_over_best",
}


def race_tables(rows: Sequence[Row]) -> str:
    """A table for every model."""
    found = []
    for name in dict.fromkeys((row["model"], row["chains"]) for row in rows):
        own = [row for row in rows if (row["model"], row["chains"]) == name]
        dimension = next((row["dimension"] for row in own if "dimension" in row), None)
        repeats = max(row["repeats"] for row in own)
        found.append(
            f"### {_named(*name)}\n\nD = {_cell(dimension)}; {_sizes(own)}; {own[0]['precision']}; "
            f"medians of {repeats}.\n\n{table(own, _RACE)}"
        )
    return "\n".join(found)


def _sizes(rows: Sequence[Row]) -> str:
    """Chains, draws and warm-up of a model's runs, and of whom where they differ."""
    samplers: dict[str, list[str]] = {}
    for row in rows:
        chains, draws, tune = (row.get(f"own_{n}", row[n]) for n in ("chains", "draws", "tune"))
        warmup = "each sampler's own" if tune is None else f"{tune:.0f}"
        size = f"{chains:.0f} chain{'s' * (chains > 1)} of {draws:.0f} draws, warm-up {warmup}"
        samplers.setdefault(size, []).append(row["sampler"])
    if len(samplers) == 1:
        return next(iter(samplers))
    return "; ".join(f"{', '.join(names)}: {size}" for size, names in samplers.items())


def ratio_table(rows: Sequence[Row], ratios: Mapping[str, tuple[str, str, str]] = RATIOS) -> str:
    """Ratios of the models that have any, paired by repeat, and their geometric means.

    Means are of the runs with the usual chains: others are short ones, of which no sampler's have
    converged.
    """
    models = dict.fromkeys((row["model"], row["chains"]) for row in rows)
    found = {m: {t: paired(rows, m, *ratio) for t, ratio in ratios.items()} for m in models}
    lines = [{"model": _named(*model), **of_model} for model, of_model in found.items()]
    lines = [line for line in lines if any(line[title] is not None for title in ratios)]
    shown = {"model": "model"}
    shown |= {t: t for t in ratios if any(line[t] is not None for line in lines)}
    usual = [found[model] for model in models if model[1] == USUAL_CHAINS]
    columns = {t: [of[t] for of in usual if of[t] is not None] for t in ratios}
    means = {t: geometric_mean(values) for t, values in columns.items() if values}
    mean = {"model": f"geometric mean, {USUAL_CHAINS} chains"} | means
    return table([*lines, *([mean] if means else [])], shown)


def _named(model: str, chains: int) -> str:
    return model if chains == USUAL_CHAINS else f"{model}, {chains} chain{'s' * (chains > 1)}"


def paired(
    rows: Sequence[Row], model: tuple[str, int], one: str, other: str, figure: str
) -> float | None:
    """Median ratio of a figure over runs that followed on one another; None if there are none.

    Of two in the middle the geometric mean, which is the same whoever is above. Of figures with
    compilation, the ratio of the first runs.
    """
    by_sampler = {row["sampler"]: row for row in rows if (row["model"], row["chains"]) == model}
    pair = [by_sampler.get(one), by_sampler.get(other)]
    if any(row is None or "each" not in row for row in pair):
        return None
    above, below = pair
    assert above is not None
    assert below is not None
    if above["run"] != below["run"]:
        return None
    end = 1 if figure in FIRST else None
    both = zip(above["each"][figure], below["each"][figure], strict=False)
    ratios = [a / b for a, b in list(both)[:end] if a is not None and b is not None]
    return float(np.exp(np.median(np.log(ratios)))) if ratios else None


def geometric_mean(values: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(values))))


def scaling_table(rows: Sequence[Row]) -> str:
    """Transitions a second by size."""
    return table(rows, _SCALING)


def cold_table(rows: Sequence[Row]) -> str:
    """Cold starts."""
    return table(rows, _COLD)


def windows_table(rows: Sequence[Row]) -> str:
    """What the window that the sampler chose is worth."""
    return table(rows, _WINDOWS)


def table(rows: Sequence[Row], columns: Mapping[str, str]) -> str:
    """Rows in Markdown; where a row has no figures, why."""
    lines = [list(columns), ["---"] * len(columns)]
    for row in rows:
        cells = [_cell(row.get(name)) for name in columns.values()]
        if row.get("status", "ok") != "ok":
            # In the first empty cell.
            cells[cells.index("")] = row["status"]
        lines.append(cells)
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return _rounded(value)
    return str(value)


def _rounded(value: float) -> str:
    """Three digits, or four near 1, where R-hat is."""
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.4g}" if 1 <= abs(value) < 1.1 else f"{value:.3g}"
