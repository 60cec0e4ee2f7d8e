"""Results as pictures."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
import matplotlib.pyplot as plt
import numpy as np

Row = Mapping[str, Any]

matplotlib.use("Agg")


def ess_by_model(rows: Sequence[Row], file: Path) -> None:
    """Least bulk effective draws a second of sampling, by model and sampler."""
    shown = [row for row in rows if row.get("ess_per_s") is not None]
    models = list(dict.fromkeys((row["model"], row["chains"]) for row in shown))
    samplers = list(dict.fromkeys(row["sampler"] for row in shown))
    figure, axis = plt.subplots(figsize=(8, 0.9 + 0.45 * len(models)), layout="constrained")
    for i, sampler in enumerate(samplers):
        own = [row for row in shown if row["sampler"] == sampler]
        heights = [models.index((row["model"], row["chains"])) for row in own]
        values = [row["ess_per_s"] for row in own]
        marker = "o" if sampler.startswith("deer") else "s"
        axis.plot(values, heights, marker, color=f"C{i}", label=sampler, alpha=0.85)
    axis.set_yticks(range(len(models)), [f"{model}, {n} chains" for model, n in models])
    axis.invert_yaxis()
    axis.set_xscale("log")
    axis.set_xlabel("least bulk effective draws a second of sampling")
    axis.grid(axis="x", color="0.9")
    if samplers:
        axis.legend(fontsize=8, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
    _save(figure, file)


def speed_up_by_window(rows: Sequence[Row], file: Path) -> None:
    """Transitions a second over those of the sequential chain."""
    figure, axis = _by_window(rows, "speed_up", "over the sequential chain")
    axis.axhline(1.0, color="0.5", linewidth=0.8)
    _save(figure, file)


def sweeps_by_window(rows: Sequence[Row], file: Path) -> None:
    """Sweeps that a window takes."""

    def of_window(row: Row) -> float:
        return row["sweeps_per_1000"] * row["window"] / 1000

    figure, _ = _by_window([r for r in rows if r["window"] > 1], of_window, "sweeps for a window")
    _save(figure, file)


def cost_by_width(rows: Sequence[Row], file: Path) -> None:
    """Time of a gradient and all that goes with it, by the states of a batch."""
    figure, axis = _by_window(
        rows, "us_per_state", "microseconds a state", x=lambda row: row["chains"] * row["window"]
    )
    axis.set_xlabel("window times chains")
    _save(figure, file)


def _by_window(
    rows: Sequence[Row],
    figure_of: str | Callable[[Row], float],
    label: str,
    x: Callable[[Row], float] = lambda row: row["window"],
) -> tuple[Any, Any]:
    """A line for each backend and number of chains, of the rows that vary the window."""
    figure, axis = plt.subplots(figsize=(6, 3.6), layout="constrained")
    y = (lambda row: row[figure_of]) if isinstance(figure_of, str) else figure_of
    shown = [row for row in rows if row["axis"] == "window" and "speed_up" in row]
    for backend, chains in dict.fromkeys((row["backend"], row["chains"]) for row in shown):
        own = [row for row in shown if (row["backend"], row["chains"]) == (backend, chains)]
        own.sort(key=lambda row: row["window"])
        plural = "s" if chains > 1 else ""
        name = f"{backend}, {chains} chain{plural}"
        axis.plot([x(row) for row in own], [y(row) for row in own], "o-", label=name)
    axis.set_xscale("log", base=2)
    values = [y(row) for row in shown]
    if values and min(values) > 0 and np.ptp(np.log(values)) > 0:
        axis.set_yscale("log")
    axis.set_xlabel("window")
    axis.set_ylabel(label)
    axis.grid(color="0.9")
    axis.spines[["top", "right"]].set_visible(False)
    if shown:
        first = shown[0]
        title = f"logistic regression, N = {first['n']}, D = {first['dimension']}"
        axis.set_title(title, fontsize=9, loc="left")
        axis.legend(fontsize=8, frameon=False)
    return figure, axis


def _save(figure: Any, file: Path) -> None:
    figure.savefig(file, dpi=130)
    plt.close(figure)
