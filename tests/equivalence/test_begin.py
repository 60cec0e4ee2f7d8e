"""Chains that begin together begin as each would alone."""

from collections.abc import Sequence

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

from pymc_deer import examples
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.chain import Chain, ChainRecord, begin_together
from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.chains.prepare import new_warmup
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.metric import identity_metric
from pymc_deer.noise import draw_tape
from pymc_deer.options import BackendName, HMCOptions
from pymc_deer.start import Start, find_starts
from pymc_deer.sweep import SweepSpec
from pymc_deer.warmup.metric_estimate import first_metric
from tests.support import BACKENDS, buffers_taken

MODEL = examples.horseshoe()
DENSITY = build_density(MODEL)
METRIC = identity_metric("diag", DENSITY.size)


def new_records(seeds: Sequence[int]) -> list[ChainRecord]:
    """Chains of DeerHMC that have not begun."""
    records = []
    for seed in seeds:
        warmup = new_warmup(HMCOptions.from_arguments({}), DENSITY, 100, 1.5, None)
        streams = Streams.spawn(np.random.default_rng(seed))
        records.append(ChainRecord(np.zeros(DENSITY.size), streams, warmup, 100, 100))
    return records


def starts_of(solver: Solver, records: Sequence[ChainRecord]) -> list[Start]:
    params, point = DENSITY.param_values({}), DENSITY.initial_point
    rngs = [record.streams.start for record in records]
    n_chains = len(records)
    return find_starts(MODEL, solver, [point] * n_chains, [()] * n_chains, params, rngs)


def begun(solver: Solver, seeds: Sequence[int]) -> list[ChainRecord]:
    """Chains of DeerHMC at their starts."""
    params, records = DENSITY.param_values({}), new_records(seeds)
    starts = starts_of(solver, records)
    begin_together([Chain(solver, record) for record in records], starts, METRIC, params)
    return records


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_chains_begin_in_one_batch_as_each_does_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From the same states, with the same step sizes, in as many calls as the slowest takes."""
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    taken = buffers_taken(monkeypatch)
    plan = WindowPlan(1, None, 1e-6, 256)
    solver = make_solver("jax", DENSITY, SweepSpec("diag", "secant", kernel="hmc"), plan)
    of_run = solver.for_chains(6)
    together = begun(of_run, range(6))
    # Those that are over fill up the batch, of which there is one program.
    assert set(taken) == {(1, 6)}
    n_calls = len(taken)
    for seed, record in enumerate(together):
        [alone] = begun(solver, [seed])
        np.testing.assert_array_equal(record.x, alone.x)
        assert record.warmup.tuning.step_size == alone.warmup.tuning.step_size
    assert len({record.warmup.tuning.step_size for record in together}) > 1
    assert 2 * n_calls < len(taken) - n_calls
    taken.clear()
    # One that is looked at by itself has the run's own program.
    point, params = np.zeros(DENSITY.size), DENSITY.param_values({})
    found = of_run.evaluate(point, METRIC, params), solver.evaluate(point, METRIC, params)
    assert taken == [(1, 6), (1, 1)]
    assert found[0][0] == pytest.approx(found[1][0])
    np.testing.assert_allclose(*(dlogp for _, dlogp in found))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_chain_that_stands_outside_the_support_knows_its_logp(backend: BackendName) -> None:
    """Where data have been moved since its last draw: rejections there are not of logp = 0."""
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Potential("bound", pt.switch(x[0] < 0.0, 0.0, -np.inf))
    density = build_density(model)
    plan = WindowPlan(1, None, 1e-6, 256)
    solver = make_solver(backend, density, SweepSpec("diag", "secant"), plan)
    rngs = np.random.default_rng(0).spawn(2)
    tape, metric = draw_tape(*rngs, 20, 2), identity_metric("diag", 2)
    tuning = Tuning(0.1, 1.5, metric)
    start, rng = np.array([5.0, 0.0]), np.random.default_rng(1)
    found = solver.solve(start, tape, tuning, density.param_values({}), rng)
    np.testing.assert_array_equal(found.z, np.tile(start, (20, 1)))
    np.testing.assert_array_equal(found.logp, -np.inf)


def test_chains_of_an_ensemble_begin_with_the_metric_that_all_starts_show() -> None:
    """And a start has the gradient of where it is, not of what it was jittered around."""
    plan, params = WindowPlan(1, None, 1e-6, 256), DENSITY.param_values({})
    spec = SweepSpec("low_rank", "secant", kernel="hmc")
    solver = make_solver(BACKENDS[-1], DENSITY, spec, plan)
    ensemble = Ensemble(solver, new_records(range(3)))
    starts = starts_of(solver, ensemble.records)
    for start in starts:
        _, dlogp = solver.evaluate(start.x, identity_metric("low_rank", DENSITY.size), params)
        np.testing.assert_array_equal(start.dlogp, dlogp)
    ensemble.begin(starts, params)
    expected = first_metric("low_rank", starts)
    assert not np.allclose(expected.factor, first_metric("low_rank", starts[:1]).factor)
    for record in ensemble.records:
        np.testing.assert_array_equal(record.warmup.tuning.metric.mu, expected.mu)
        np.testing.assert_array_equal(record.warmup.tuning.metric.factor, expected.factor)
