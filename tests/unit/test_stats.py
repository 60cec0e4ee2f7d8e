"""The table of statistics is what chains emit and what PyMC is told."""

from dataclasses import replace

import numpy as np
import pymc as pm
import pytest

from pymc_deer import DeerMALA
from pymc_deer.backends.request import Tuning
from pymc_deer.chains.stretch import SolvedStretch, Streams
from pymc_deer.metric import identity_metric
from pymc_deer.stats import STATS, STATS_DTYPES_SHAPES
from tests.support import trajectory


def test_declaration_is_the_table() -> None:
    assert list(STATS_DTYPES_SHAPES) == [*(stat.name for stat in STATS), "warning"]
    for stat in STATS:
        assert STATS_DTYPES_SHAPES[stat.name] == (stat.dtype, [])
        assert stat.meaning.endswith(".")
    assert DeerMALA.stats_dtypes_shapes == STATS_DTYPES_SHAPES


def test_sweeps_and_fallbacks_of_draws_add_up_to_those_of_the_solver() -> None:
    z = np.zeros((12, 2))
    solved = replace(trajectory(z, z), n_sweeps=9, n_fallback=3)
    tuning = Tuning(0.5, 1.0, identity_metric("diag", 2))
    streams = Streams.spawn(np.random.default_rng(0))
    stretch = SolvedStretch(solved, [], tuning, window=4, steps_per_draw=2, streams=streams)
    sums = {name: np.sum(stretch.statistics[name]) for name in ("sweeps", "fallback", "n_steps")}
    assert sums == {"sweeps": pytest.approx(9), "fallback": pytest.approx(3), "n_steps": 12}
    # Those that fell back are no sweep's.
    assert stretch.statistics["committed_per_sweep"] == [1.0] * 6


@pytest.mark.parametrize("window", [1, 4])
def test_chains_emit_exactly_the_table(window: int) -> None:
    with pm.Model() as model:
        pm.Normal("x", 1.0, 2.0, shape=2)
        step = DeerMALA(backend="jax", window=window, steps_per_draw=3)
    step.setup_chain(np.random.default_rng(0), 2, 3)
    point, logp = model.initial_point(), model.compile_logp(mode="FAST_COMPILE")
    for i in range(5):
        if i == 2:
            step.stop_tuning()
        point, [stats] = step.step(point)
        assert set(stats) == set(STATS_DTYPES_SHAPES)
        assert stats["warning"] is None
        for stat in STATS:
            assert np.can_cast(np.asarray(stats[stat.name]).dtype, stat.dtype), stat.name
            assert np.ndim(stats[stat.name]) == 0
        assert stats["tune"] is (i < 2)
        assert stats["n_steps"] == 3
        assert stats["window"] == window
        assert (stats["sweeps"] > 0) == (stats["committed_per_sweep"] > 0) == (window > 1)
        assert stats["model_logp"] == pytest.approx(logp(point))
