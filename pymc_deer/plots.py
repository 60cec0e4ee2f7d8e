"""Pictures of how chains are solved, on matplotlib; each function returns the figure.

In a notebook end the line with a semicolon, or the figure is shown twice, as with any of pyplot's.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr
from xarray import Dataset, DataTree

from pymc_deer.options import is_integer, listed
from pymc_deer.profiling.report import Profile
from pymc_deer.status import OptionError, invalid_option
from pymc_deer.sweep_trace import SweepTrace

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_NAMED = 8
"""Chains that a legend has room for."""

_OF_SWEEPS = ["sweeps", "n_transitions", "committed_per_sweep", "window"]
_DRAWN = [*_OF_SWEEPS, "step_size", "acceptance_rate", "curvature"]

_SMOOTHED = {"acceptance_rate": 25}
"""Statistics that scatter from draw to draw, and draws to take the mean of."""

_DONE = "C2"
_WIDTH = 8.0
_PANEL = 1.9


def plot_sweeps(
    trace: SweepTrace, *, ax: "Axes | None" = None, figsize: tuple[float, float] | None = None
) -> "Figure":
    """Residuals by transition and sweep: the committed states grow from the left.

    Parameters
    ----------
    trace
        What :func:`pymc_deer.trace_sweeps` returns.
    ax
        Axes to draw in; those of a new figure by default.
    figsize
        Of a new figure.

    Returns
    -------
    matplotlib.figure.Figure
        Residuals of at most the tolerance have the darkest colour; what is committed is green.

    Raises
    ------
    OptionError
        If an argument is something else.
    """
    _refuse_other("plot_sweeps", trace)
    import matplotlib.pyplot as plt
    from matplotlib.colors import LogNorm
    from matplotlib.ticker import MaxNLocator

    n, sweeps = trace.n_transitions, trace.n_sweeps
    if ax is None:
        ax = plt.figure(figsize=figsize or (_WIDTH, 3.6), layout="constrained").add_subplot()
    assert ax is not None
    if not isinstance(ax, plt.Axes):
        raise invalid_option("plot_sweeps", "ax", ax, "None or matplotlib's Axes")
    steps, rows = np.arange(n + 1) + 0.5, np.arange(sweeps + 1) + 0.5
    largest = max(np.nanmax(trace.residuals), 10 * trace.tol)
    norm = LogNorm(trace.tol, largest, clip=True)
    drawn = ax.pcolormesh(steps, rows, trace.residuals, norm=norm, cmap="viridis")
    figure = drawn.get_figure(root=True)
    assert figure is not None
    label = "residual, whitened units"
    figure.colorbar(drawn, ax=ax, label=label, extend="min", pad=0.01)
    ax.stairs(
        trace.committed[:-1] + 0.5,
        rows,
        orientation="horizontal",
        baseline=0.5,
        fill=True,
        color=_DONE,
        alpha=0.3,
        linewidth=0,
        label="committed before",
    )
    ax.set(xlim=(0.5, n + 0.5), ylim=(sweeps + 0.5, 0.5), xlabel="transition", ylabel="sweep")
    ax.yaxis.set_major_locator(MaxNLocator(integer=True))
    windows = "one window" if trace.window >= n else f"windows of {trace.window}"
    ax.set_title(f"{n} transitions in {sweeps} sweeps, {windows}", loc="left")
    ax.legend(loc="lower left", fontsize="small")
    return figure


def plot_guesses(
    trace: SweepTrace,
    *,
    sweeps: Sequence[int] | None = None,
    coordinate: int = 0,
    figsize: tuple[float, float] | None = None,
) -> "Figure":
    """One coordinate after some of the sweeps: guesses that close in on the sequential chain.

    Parameters
    ----------
    trace
        What :func:`pymc_deer.trace_sweeps` returns.
    sweeps
        Sweeps to show the states after, from 0; 1, 2, 4 and so on, and the last one by default.
    coordinate
        Which of the D whitened coordinates.
    figsize
        Of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        One panel for each of the sweeps.

    Raises
    ------
    OptionError
        If an argument is something else.
    """
    _refuse_other("plot_guesses", trace)
    last, size = trace.n_sweeps, trace.exact.shape[1]
    chosen = _doubled(last) if sweeps is None else listed(sweeps)
    if not chosen or not all(is_integer(k, 0, last) for k in chosen):
        expected = f"some of 0 to {last}, the trace's sweeps"
        raise invalid_option("plot_guesses", "sweeps", sweeps, expected)
    if not is_integer(coordinate, 0, size - 1):
        expected = f"an integer from 0 to {size - 1}"
        raise invalid_option("plot_guesses", "coordinate", coordinate, expected)
    figure, axes = _panels(len(chosen), figsize or (_WIDTH, 1.35 * len(chosen)), sharey=True)
    steps = np.arange(1, trace.n_transitions + 1)
    for ax, k in zip(axes, chosen, strict=True):
        ax.plot(steps, trace.exact[:, coordinate], color="0.75", lw=3, label="sequential chain")
        ax.plot(steps, trace.states[k, :, coordinate], color="C3", lw=1.1, label="DEER")
        committed = int(trace.committed[k])
        ax.axvspan(0.5, committed + 0.5, color=_DONE, alpha=0.12, linewidth=0)
        plural = "" if k == 1 else "s"
        title = f"after {k} sweep{plural}: {committed} of {len(steps)} states committed"
        ax.set_title(title, fontsize=9, loc="left")
    axes[0].legend(fontsize=8, ncols=2, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    axes[-1].set(xlabel="transition", xlim=(0.5, len(steps) + 0.5))
    figure.supylabel(f"whitened coordinate {coordinate}", fontsize=9)
    return figure


def plot_convergence(idata: DataTree, *, figsize: tuple[float, float] | None = None) -> "Figure":
    """Sweeps, committed transitions and window widths along the draws of each chain.

    Where the statistics' attributes hold the measurements by which windows were chosen, as those of
    `pymc_deer.sample` do, a panel shows them.

    Parameters
    ----------
    idata
        Of a chain of :class:`DeerMALA` or :class:`DeerHMC`.
    figsize
        Of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        Warm-up, if it was kept, is left of draw 0. Chains that run step by step have no sweeps.

    Raises
    ------
    OptionError
        If nothing was solved in windows, and none was tried; or if `idata` is not of one step of
        pymc_deer, with all its statistics.
    """
    stats = _statistics("plot_convergence", idata)
    trials = json.loads(stats.attrs.get("deer_trials", "[]"))
    swept = bool((stats["window"] > 1).any())
    if not swept and not trials:
        raise OptionError(
            "plot_convergence(idata): the chains ran step by step, without sweeps. Sample with "
            "window=64, or another width."
        )
    curves = {
        "sweeps for 1000\ntransitions": 1000 * stats["sweeps"] / stats["n_transitions"],
        "transitions\ncommitted by a sweep": stats["committed_per_sweep"],
        "window": stats["window"],
    }
    n_curves = len(curves) if swept else 0
    n_panels = n_curves + bool(trials)
    figure, axes = _panels(n_panels, figsize or (_WIDTH, 0.7 + _PANEL * n_panels), sharex=False)
    if swept:
        for ax, (label, values) in zip(axes[:n_curves], curves.items(), strict=True):
            _draw_chains(ax, values, label)
        axes[n_curves - 1].set_yscale("log", base=2)
        _finish_draws(axes[:n_curves])
    if trials:
        _draw_trials(axes[-1], trials, stats.attrs["deer_window"])
    return figure


def plot_tuning(idata: DataTree, *, figsize: tuple[float, float] | None = None) -> "Figure":
    """Step size, acceptance rate and curvature bound along the draws of warm-up.

    Parameters
    ----------
    idata
        Of a chain of :class:`DeerMALA` or :class:`DeerHMC` whose warm-up was kept,
        ``discard_tuned_samples=False``.
    figsize
        Of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        A line for each chain. Acceptance rates of single draws are points, over which the lines are
        means of the last 25. The rate aimed at is drawn where `pymc_deer.sample` noted it.

    Raises
    ------
    OptionError
        If warm-up was not kept; or if `idata` is not of one step of pymc_deer, with all its
        statistics.
    """
    stats = _statistics("plot_tuning", idata)
    stats = stats.sel(draw=stats["draw"] < 0)
    if not stats.sizes["draw"]:
        raise OptionError(
            "plot_tuning(idata): there is no warm-up in it. Sample with "
            "discard_tuned_samples=False."
        )
    labels = {
        "step_size": "step size,\nwhitened units",
        "acceptance_rate": "acceptance rate\nof a draw",
        "curvature": "curvature\nbound c",
    }
    figure, axes = _panels(len(labels), figsize or (_WIDTH, 0.7 + _PANEL * len(labels)))
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        _draw_chains(ax, stats[name], label, smoothed=_SMOOTHED.get(name, 1))
    axes[0].set_yscale("log")
    given = json.loads(stats.attrs.get("deer_options", "{}")).get("target_accept")
    target = stats.attrs.get("deer_target_accept", given)
    if isinstance(target, float):
        line = axes[1].axhline(target, color="black", linestyle="--", linewidth=1, label="target")
        axes[1].legend(handles=[line], fontsize="small", loc="lower right")
    axes[2].set_ylim(bottom=0)
    _finish_draws(axes)
    return figure


def plot_profile(profile: Profile, *, figsize: tuple[float, float] | None = None) -> "Figure":
    """What a state costs, and what a chain makes of it, by width, backend and device.

    Parameters
    ----------
    profile
        What :func:`pymc_deer.profile` returns.
    figsize
        Of the figure.

    Returns
    -------
    matplotlib.figure.Figure
        A cross at the bottom is a width that was not measured, or given up; `profile` says why.

    Raises
    ------
    OptionError
        If `profile` is something else.
    """
    if not isinstance(profile, Profile):
        raise invalid_option("plot_profile", "profile", profile, "what pymc_deer.profile returns")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=figsize or (_WIDTH, 3.4), layout="constrained")
    labels = {
        "gradient_us": "µs per gradient",
        "transitions_per_second": "predicted transitions a second",
    }
    costs: Any = profile.to_dataframe()
    for ax, (name, label) in zip(axes, labels.items(), strict=True):
        for (backend, device), rows in costs.groupby(["backend", "device"], sort=False):
            [line] = ax.plot(rows["window"], rows[name], marker="o", label=f"{backend}, {device}")
            missing = rows["window"][rows[name].isna()]
            at_the_bottom = {"transform": ax.get_xaxis_transform(), "in_layout": False}
            crosses = {"color": line.get_color(), "linestyle": "", "marker": "x"}
            ax.plot(missing, np.full(len(missing), 0.03), **crosses, **at_the_bottom)
        ax.set(xlabel="window (1 is step by step)", yscale="log")
        decades = np.log10(costs[name].agg(["min", "max"]))
        if decades.notna().all():
            ax.set_ylim(10 ** np.floor(decades["min"] - 1e-3), 10 ** np.ceil(decades["max"] + 1e-3))
        ax.set_title(label, fontsize="medium", loc="left")
        _count_in_twos(ax, costs["window"].unique())
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].plot([], [], "x", color="black", label="not measured")
    axes[0].legend(fontsize="small")
    return figure


def _draw_chains(ax: "Axes", values: Any, label: str, smoothed: int = 1) -> None:
    """A line for each chain, of means over so many draws, with the draws themselves as points."""
    for one in values.transpose("chain", "draw"):
        # Not more of them than there are, which xarray takes and bottleneck does not.
        means = one.rolling(draw=min(smoothed, one.sizes["draw"]), min_periods=1).mean()
        name = f"chain {one['chain'].item()}"
        [line] = ax.plot(one["draw"], means, linewidth=1, alpha=0.8, label=name)
        if smoothed > 1:
            ax.plot(one["draw"], one, ".", color=line.get_color(), markersize=2, alpha=0.2)
    ax.set_ylabel(label, fontsize=9)


def _finish_draws(axes: Sequence["Axes"]) -> None:
    """What panels over the draws have in common."""
    first, *others = axes
    if len(first.get_lines()) <= _MOST_NAMED:
        first.legend(fontsize=8, ncols=4, loc="lower right", bbox_to_anchor=(1, 1), frameon=False)
    for ax in others:
        ax.sharex(first)
    if first.dataLim.xmin < 0 < first.dataLim.xmax:
        for ax in axes:
            ax.axvline(-0.5, color="black", linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("draw, of warm-up below 0" if first.dataLim.xmin < 0 else "draw")


def _draw_trials(ax: "Axes", trials: Sequence[dict[str, Any]], chosen: int) -> None:
    """What was measured before the chains began, by rule and width."""
    for rule in dict.fromkeys(trial["jacobian"] for trial in trials):
        mine = sorted((t for t in trials if t["jacobian"] == rule), key=lambda t: t["window"])
        times = [np.nan if t["microseconds"] is None else t["microseconds"] for t in mine]
        ax.plot([t["window"] for t in mine], times, marker="o", label=f"{rule}, measured")
    given_up = [t["window"] for t in trials if t["microseconds"] is None]
    for i, window in enumerate(dict.fromkeys(given_up)):
        label = "given up: too slow" if i == 0 else None
        ax.axvline(window, color="C3", linestyle=":", label=label)
    ax.axvline(chosen, color=_DONE, linewidth=6, alpha=0.3, label="chosen")
    ax.set(yscale="log", xlabel="window (1 is step by step)")
    ax.set_ylabel("µs a transition", fontsize=9)
    _count_in_twos(ax, np.unique([chosen, *(t["window"] for t in trials)]))
    ax.legend(fontsize="small")


def _count_in_twos(ax: "Axes", widths: Sequence[int] | np.ndarray) -> None:
    """A scale of widths, with a tick at each of these."""
    ax.set_xscale("log", base=2)
    ax.set_xticks(widths, [str(width) for width in widths])


def _statistics(caller: str, idata: Any) -> Dataset:
    """Statistics of all draws; those of warm-up, if kept, are counted below 0."""
    groups = getattr(idata, "children", {})
    phases = [name for name in ("sample_stats", "warmup_sample_stats") if name in groups]
    # Interrupted in warm-up, a run has that alone.
    found = groups[phases[0]].to_dataset() if phases else Dataset()
    kept = found[[name for name in _DRAWN if name in found]]
    if len(kept) < len(_DRAWN) or not {"chain", "draw"} <= kept.sizes.keys():
        raise OptionError(
            f"{caller}(idata): idata must be what pymc_deer.sample returns, or pm.sample with a "
            "step of pymc_deer, with all its statistics by chain and draw. Of one chain, write "
            "idata.isel(chain=[0])."
        )
    if len(kept.sizes) > 2:
        several = "its statistics are those of several steps, and a picture is of one"
        raise OptionError(f"{caller}(idata): {several}. Sample with one step of pymc_deer.")
    if phases == ["sample_stats"]:
        return kept
    warmup = groups["warmup_sample_stats"].to_dataset()[_DRAWN]
    warmup = warmup.assign_coords(draw=np.arange(-warmup.sizes["draw"], 0))
    return xr.concat([warmup, kept][: len(phases)], dim="draw").assign_attrs(kept.attrs)


def _doubled(last: int) -> list[int]:
    """1, 2, 4, ... below the last sweep, and that."""
    return [*(2**i for i in range(last.bit_length()) if 2**i < last), last]


def _panels(
    n: int, figsize: tuple[float, float], *, sharex: bool = True, sharey: bool = False
) -> "tuple[Figure, list[Axes]]":
    """Panels below each other."""
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        n, 1, figsize=figsize, sharex=sharex, sharey=sharey, squeeze=False, layout="constrained"
    )
    for ax in axes[:, 0]:
        ax.spines[["top", "right"]].set_visible(False)
    return figure, list(axes[:, 0])


def _refuse_other(caller: str, trace: object) -> None:
    if not isinstance(trace, SweepTrace):
        raise invalid_option(caller, "trace", trace, "what pymc_deer.trace_sweeps returns")
