"""Pictures show the numbers that they are given: what is drawn is compared, not that it is."""

import json
from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.figure import Figure
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.plots import (
    plot_convergence,
    plot_guesses,
    plot_profile,
    plot_sweeps,
    plot_tuning,
)
from pymc_deer.profiling.cost_shares import Work
from pymc_deer.profiling.recommendation import WindowCost
from pymc_deer.profiling.report import Profile
from pymc_deer.sweep_trace import SweepTrace

N, D, SWEEPS, W = 6, 2, 3, 4
COMMITTED = np.array([0, 2, 4, 6])
CHAINS, TUNE, DRAWS = 2, 5, 7


@pytest.fixture(autouse=True)
def _no_screen() -> Iterator[None]:
    mpl.use("Agg")
    yield
    # What does not fit together is warned of when it is laid out.
    for number in plt.get_fignums():
        plt.figure(number).canvas.draw()
    plt.close("all")


@pytest.fixture
def trace() -> SweepTrace:
    """Six transitions in windows of four, two of them committed by a sweep."""
    rng = np.random.default_rng(0)
    residuals = np.full((SWEEPS, N), np.nan)
    for k, done in enumerate(COMMITTED[:-1]):
        residuals[k, done : done + W] = rng.uniform(1e-8, 1.0, min(W, N - done))
    exact, states = rng.normal(size=(N, D)), rng.normal(size=(SWEEPS + 1, N, D))
    return SweepTrace(exact, states, residuals, COMMITTED, W, 1e-6, 0.7)


def stats(n: int, seed: int, window: int = 64) -> xr.Dataset:
    rng = np.random.default_rng(seed)

    def column(*values: float) -> tuple[tuple[str, str], np.ndarray]:
        return ("chain", "draw"), rng.uniform(*values, (CHAINS, n))

    swept = window > 1
    return xr.Dataset(
        {
            "sweeps": column(1.0, 2.0) if swept else column(0.0, 0.0),
            "n_transitions": column(5.0, 6.0),
            "committed_per_sweep": column(3.0, 9.0) if swept else column(0.0, 0.0),
            "window": (("chain", "draw"), np.full((CHAINS, n), window)),
            "step_size": column(0.5, 1.0),
            "acceptance_rate": column(0.0, 1.0),
            "curvature": column(1.0, 2.0),
        },
        {"chain": np.arange(CHAINS), "draw": np.arange(n)},
    )


def idata(window: int = 64, *, warmup: bool = True, **attrs: Any) -> xr.DataTree:
    groups = {"sample_stats": stats(DRAWS, 1, window).assign_attrs(attrs)}
    if warmup:
        groups["warmup_sample_stats"] = stats(TUNE, 2, window)
    return xr.DataTree.from_dict(groups)


def lines(figure: Figure, panel: int) -> dict[Any, np.ndarray]:
    """Points (2, n) of a panel's named lines, by name."""
    drawn = figure.axes[panel].get_lines()
    return {
        line.get_label(): np.array(line.get_data(), float)
        for line in drawn
        if not str(line.get_label()).startswith("_")
    }


def ends_of_warmup(axes: Any) -> list[float]:
    """Where a panel has lines that no chain has."""
    return [line.get_xdata()[0] for line in axes.get_lines() if line.get_label().startswith("_")]


def assert_chains(drawn: dict[Any, np.ndarray], values: np.ndarray, draws: np.ndarray) -> None:
    assert list(drawn) == [f"chain {i}" for i in range(CHAINS)]
    for (x, y), expected in zip(drawn.values(), values, strict=True):
        assert_array_equal(x, draws)
        assert_array_equal(y, expected)


def test_the_heat_map_has_the_residuals_of_each_sweep(trace: SweepTrace) -> None:
    figure = plot_sweeps(trace)
    axes, colours = figure.axes
    [mesh] = axes.collections
    assert_array_equal(np.ma.filled(mesh.get_array(), np.nan), trace.residuals)
    assert (mesh.norm.vmin, mesh.norm.vmax) == (trace.tol, np.nanmax(trace.residuals))
    # Sweep k is the row around k, transition t the column around t.
    corners = mesh.get_coordinates()
    assert_array_equal(corners[0, :, 0], np.arange(N + 1) + 0.5)
    assert_array_equal(corners[:, 0, 1], np.arange(SWEEPS + 1) + 0.5)
    assert axes.get_ylim() == (SWEEPS + 0.5, 0.5), "the first sweep is on top"
    [green] = [patch for patch in axes.patches if patch.get_label() == "committed before"]
    assert_array_equal(green.get_data().values, COMMITTED[:-1] + 0.5)
    assert axes.get_title(loc="left") == "6 transitions in 3 sweeps, windows of 4"
    assert "residual" in colours.get_ylabel()


def test_residuals_of_nothing_are_the_darkest(trace: SweepTrace) -> None:
    """0 has no logarithm."""
    trace.residuals[0, :2] = 0.0
    [mesh] = plot_sweeps(trace).axes[0].collections
    colours = mesh.to_rgba(mesh.get_array())
    assert_array_equal(colours[0, 0], mesh.cmap(0.0))
    assert_array_equal(colours[0, -1], (0, 0, 0, 0), "outside the window there is nothing")


def test_the_heat_map_goes_where_it_is_told(trace: SweepTrace) -> None:
    figure, (left, right) = plt.subplots(1, 2)
    assert plot_sweeps(trace, ax=right) is figure
    assert right.collections
    assert not left.collections


def test_guesses_are_drawn_over_the_chain(trace: SweepTrace) -> None:
    figure = plot_guesses(trace, sweeps=[0, 2], coordinate=1)
    assert len(figure.axes) == 2
    for panel, sweep in enumerate((0, 2)):
        drawn = lines(figure, panel)
        for name, values in (("sequential chain", trace.exact), ("DEER", trace.states[sweep])):
            assert_array_equal(drawn[name], [np.arange(1, N + 1), values[:, 1]])
        title = figure.axes[panel].get_title(loc="left")
        assert f"{COMMITTED[sweep]} of 6 states committed" in title
        [green] = figure.axes[panel].patches
        assert green.get_x() + green.get_width() == COMMITTED[sweep] + 0.5


@pytest.mark.parametrize(("n_sweeps", "shown"), [(3, [1, 2, 3]), (8, [1, 2, 4, 8]), (1, [1])])
def test_sweeps_are_shown_at_doubling_distances(
    trace: SweepTrace, n_sweeps: int, shown: list[int]
) -> None:
    several = SweepTrace(
        trace.exact,
        np.zeros((n_sweeps + 1, N, D)),
        np.zeros((n_sweeps, N)),
        np.linspace(0, N, n_sweeps + 1).astype(int),
        *(W, 1e-6, 0.7),
    )
    titles = [ax.get_title(loc="left") for ax in plot_guesses(several).axes]
    assert [int(title.split()[1]) for title in titles] == shown


def test_convergence_shows_the_statistics() -> None:
    data = idata()
    both = [data[f"{name}sample_stats"].dataset for name in ("warmup_", "")]
    whole = {name: np.concatenate([part[name].values for part in both], axis=1) for name in both[0]}
    figure, draws = plot_convergence(data), np.arange(-TUNE, DRAWS)
    assert len(figure.axes) == 3
    assert_chains(lines(figure, 0), 1000 * whole["sweeps"] / whole["n_transitions"], draws)
    assert_chains(lines(figure, 1), whole["committed_per_sweep"], draws)
    assert_chains(lines(figure, 2), whole["window"], draws)
    assert figure.axes[2].get_xlabel() == "draw, of warm-up below 0"
    assert [ends_of_warmup(ax) for ax in figure.axes] == [[-0.5]] * 3


def test_convergence_without_warmup_begins_at_draw_0() -> None:
    figure = plot_convergence(idata(warmup=False))
    assert not any(map(ends_of_warmup, figure.axes))
    [x, _] = lines(figure, 1)["chain 0"]
    assert_array_equal(x, np.arange(DRAWS))
    assert figure.axes[2].get_xlabel() == "draw"


TRIALS = [
    {"window": 1, "jacobian": "secant", "microseconds": 50.0},
    {"window": 256, "jacobian": "secant", "microseconds": 20.0},
    {"window": 64, "jacobian": "secant", "microseconds": 25.0},
    {"window": 1024, "jacobian": "secant", "microseconds": None},
    {"window": 256, "jacobian": "stochastic", "microseconds": 30.0},
]


@pytest.mark.parametrize(("window", "panels"), [(256, 4), (1, 1)])
def test_the_choice_of_windows_is_shown(window: int, panels: int) -> None:
    """By itself, where the chains have no sweeps."""
    data = idata(window, deer_trials=json.dumps(TRIALS), deer_window=window)
    figure = plot_convergence(data)
    assert len(figure.axes) == panels
    drawn = lines(figure, panels - 1)
    assert not any(label.startswith("chain") for label in drawn)
    expected = [[1, 64, 256, 1024], [50.0, 25.0, 20.0, np.nan]]
    assert_array_equal(drawn["secant, measured"], expected)
    assert_array_equal(drawn["stochastic, measured"], [[256], [30.0]])
    assert_array_equal(drawn["chosen"][0], [window, window])
    assert_array_equal(drawn["given up: too slow"][0], [1024, 1024])


@pytest.mark.parametrize(
    ("attrs", "target"),
    [
        ({"deer_options": json.dumps({"target_accept": 0.65})}, 0.65),
        ({"deer_options": json.dumps({"target_accept": "auto"}), "deer_target_accept": 0.9}, 0.9),
        ({"deer_options": json.dumps({"target_accept": "auto"})}, None),
        ({}, None),
    ],
    ids=["given", "tuned", "not known", "of another program"],
)
def test_tuning_shows_the_acceptance_rate_aimed_at(attrs: dict, target: float | None) -> None:
    drawn = lines(plot_tuning(idata(**attrs)), 1)
    assert ("target" in drawn) == (target is not None)
    if target is not None:
        assert_array_equal(drawn["target"][1], [target, target])


def test_tuning_shows_warmup_alone() -> None:
    data = idata()
    warmup = data["warmup_sample_stats"].dataset
    figure, draws = plot_tuning(data), np.arange(-TUNE, 0)
    drawn = [lines(figure, panel) for panel in range(3)]
    for panel, name in ((0, "step_size"), (2, "curvature")):
        assert_chains(drawn[panel], warmup[name].values, draws)
    rates = warmup["acceptance_rate"].values
    so_far = np.cumsum(rates, axis=1) / np.arange(1, TUNE + 1)
    for (x, y), expected in zip(drawn[1].values(), so_far, strict=True):
        assert_array_equal(x, draws)
        assert_allclose(y, expected)
    points = [line for line in figure.axes[1].get_lines() if line.get_marker() == "."]
    for line, expected in zip(points, rates, strict=True):
        assert_array_equal(line.get_xydata(), np.stack([draws, expected], axis=1))


def test_a_run_interrupted_in_warmup_has_that_to_show() -> None:
    whole = idata()
    part = xr.DataTree.from_dict({"warmup_sample_stats": whole["warmup_sample_stats"].dataset})
    of_whole, of_part = (plot_tuning(data) for data in (whole, part))
    for panel in range(3):
        drawn = lines(of_part, panel)
        assert list(drawn) == [name for name in lines(of_whole, panel) if name != "target"]
        for name, points in drawn.items():
            assert_array_equal(points, lines(of_whole, panel)[name])
    [rates, *_] = lines(plot_convergence(part), 0).values()
    assert_array_equal(rates[0], np.arange(-TUNE, 0))


def test_many_chains_have_no_legend() -> None:
    data = idata().map_over_datasets(lambda part: xr.concat([part] * 5, "chain") if part else part)
    first = plot_tuning(data).axes[0]
    assert len(first.get_lines()) == 5 * CHAINS
    assert first.get_legend() is None
    assert plot_tuning(idata()).axes[0].get_legend() is not None


def test_a_profile_has_a_line_for_each_backend() -> None:
    costs = (
        WindowCost("numba", "cpu", 1, gradient_us=3.0, transitions_per_second=3e5),
        WindowCost("numba", "cpu", 16, gradient_us=2.0, transitions_per_second=1e5),
        WindowCost("numba", "cpu", 64, note="not tried."),
        WindowCost("jax", "some GPU", 1, gradient_us=50.0, transitions_per_second=2e4),
        WindowCost("jax", "some GPU", 64, gradient_us=0.5, transitions_per_second=9e5),
    )
    report = Profile(2, "float64", 10, 80, "dense", Work(matrix=1.0), {}, costs)
    figure = plot_profile(report)
    assert len(figure.axes) == 2
    for panel, numbers in enumerate(([3.0, 2.0, np.nan], [3e5, 1e5, np.nan])):
        drawn = lines(figure, panel)
        assert list(drawn)[:2] == ["numba, cpu", "jax, some GPU"]
        assert_array_equal(drawn["numba, cpu"], [[1, 16, 64], numbers])
        crosses = [line for line in figure.axes[panel].get_lines() if line.get_marker() == "x"]
        assert_array_equal(crosses[0].get_xdata(), [64])
        assert_array_equal(crosses[1].get_xdata(), [])
        assert_array_equal(drawn["jax, some GPU"][0], [1, 64])
        ticks = [text.get_text() for text in figure.axes[panel].get_xticklabels()]
        assert ticks == ["1", "16", "64"]
