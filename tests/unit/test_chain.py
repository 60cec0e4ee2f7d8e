"""A chain by itself: where it begins, where it goes on, and what it is worth."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.chain import Chain, ChainRecord
from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.chains.prepare import new_warmup
from pymc_deer.chains.stretch import SolvedStretch, Streams
from pymc_deer.density import build_density
from pymc_deer.duplicate import duplicate
from pymc_deer.examples import eight_schools
from pymc_deer.metric import identity_metric
from pymc_deer.options import Options
from pymc_deer.start import Start
from pymc_deer.sweep import SweepSpec
from pymc_deer.warmup.mixing import BatchMeans
from tests.support import BACKENDS, autoregressive, trajectory


@pytest.fixture(scope="module")
def solver() -> Solver:
    """Of eight schools, step by step."""
    plan = WindowPlan(1, None, 1e-6, 256)
    density = build_density(eight_schools())
    return make_solver(BACKENDS[-1], density, SweepSpec("diag", "secant", kernel="mala"), plan)


def new_chain(solver: Solver, n_tune: int = 100, n_draws: int = 10) -> Chain:
    density = solver.density
    warmup = new_warmup(Options.from_arguments({"metric": "diag"}), density, n_tune, 1.5, None)
    streams = Streams.spawn(np.random.default_rng(1))
    return Chain(solver, ChainRecord(np.full(density.size, 0.1), streams, warmup, n_tune, n_draws))


def test_where_the_metric_changes_the_chain_goes_on_where_it_stands(solver: Solver) -> None:
    chain, params, n_metrics = new_chain(solver), solver.density.param_values({}), 0
    for _ in range(100):
        before = chain.record.warmup.tuning.metric
        chain.next_draw(params, tuning=True, alone=True)
        metric = chain.record.warmup.tuning.metric
        n_metrics += metric is not before
        if chain.record.handed_out == 0:
            assert_allclose(metric.to_x(chain.task().start), chain.position, rtol=1e-12)
    assert n_metrics >= 3


def started(solver: Solver, accepts: Callable[[float], bool]) -> float:
    """The step size a chain begins with, where transitions are accepted if `accepts` says so."""
    chain = new_chain(solver)
    size = solver.density.size
    z = np.zeros((1, size))
    trials = chain.trials(Start(np.zeros(size), np.zeros(size)), identity_metric("diag", size))
    asked = next(trials)
    while True:
        log_alpha = 0.0 if accepts(asked.tuning.step_size) else -5.0
        try:
            asked = trials.send(trajectory(z, z, log_alpha))
        except StopIteration:
            return chain.record.warmup.tuning.step_size


@pytest.mark.parametrize("limit", [1e-3, 0.3, 0.6, 1.5, 50.0])
def test_a_chain_begins_with_the_largest_step_size_accepted(solver: Solver, limit: float) -> None:
    found = started(solver, lambda step_size: step_size <= limit)
    assert found <= limit < 2 * found


def test_where_none_is_accepted_the_search_ends(solver: Solver) -> None:
    assert 0.0 < started(solver, lambda _: False) < 1e-12


@pytest.mark.parametrize(("phi", "slow"), [(0.5, False), (0.95, True)])
def test_few_effective_draws_are_counted(solver: Solver, phi: float, slow: bool) -> None:
    chain, rows = new_chain(solver, 0, 0), autoregressive(phi, 4000)[:, None]
    chain.record.kept = BatchMeans()
    chain.record.kept.add(rows)
    chain.record.n_draws_left = 1
    assert chain.warning() is None, "the last draw is still to come"
    chain.record.n_draws_left = 0
    assert (chain.warning() is not None) == slow
    if slow:
        assert chain.few_effective == pytest.approx(4000 * (1 - phi) / (1 + phi), rel=0.5)
    else:
        assert chain.few_effective is None


def test_too_few_draws_tell_of_no_slowness(solver: Solver) -> None:
    chain = new_chain(solver, 0, 0)
    chain.record.kept.add(np.zeros((199, 1)))
    assert chain.few_effective is None
    chain.record.kept.add(np.zeros((1, 1)))
    assert chain.few_effective == 1.0


@pytest.mark.parametrize("is_angle", [True, False])
def test_turns_of_an_angle_are_no_slowness(solver: Solver, is_angle: bool) -> None:
    """On the line it is a walk by whole turns; on the circle its draws are independent."""
    chain = new_chain(solver, 0, 0)
    chain.end_warmup()
    record, rng, n = chain.record, np.random.default_rng(0), 1000
    columns = np.array([2] if is_angle else [], int)
    record.warmup = duplicate(record.warmup, angles=columns)
    z = rng.normal(0.0, 0.5, (n, solver.density.size))
    z[:, 2] += 2 * np.pi * rng.integers(-1, 2, n).cumsum()
    found = trajectory(z, -z)
    solved = SolvedStretch(found, [], record.warmup.tuning, 1, 1, record.streams)
    chain.go_on(record, solved, n)
    assert (chain.few_effective is None) == is_angle


def test_a_warmup_that_is_broken_off_is_over(solver: Solver) -> None:
    """Its draws that are solved already are no draws of those to keep."""
    chain, params = new_chain(solver), solver.density.param_values({})
    for _ in range(60):
        chain.next_draw(params, tuning=True, alone=True)
    assert chain.record.handed_out < chain.record.stretch_draws
    stats = [chain.next_draw(params, tuning=False, alone=True)[1] for _ in range(10)]
    warmup = chain.record.warmup
    assert {s["step_size"] for s in stats} == {warmup.tuning.step_size}
    assert {s["n_transitions"] for s in stats} == {warmup.steps_per_draw}
    assert chain.record.n_draws_left == 0
    assert chain.record.kept.count == 10


def test_what_ends_warmup_leaves_earlier_records_as_they_were(solver: Solver) -> None:
    """A checkpoint may be written from one meanwhile."""
    chain = new_chain(solver, 0)
    before = chain.record
    step_size, steps = before.warmup.tuning.step_size, before.warmup.steps_per_draw
    chain.end_warmup()
    chain.take_steps(steps + 1)
    assert chain.record.warmup.finished
    assert not before.warmup.finished
    assert before.warmup.tuning.step_size == step_size
    assert before.warmup.steps_per_draw == steps


def test_a_record_holds_no_more_than_its_state(solver: Solver) -> None:
    """A view would keep the memory of all draws that were solved with it."""
    chain, params = new_chain(solver), solver.density.param_values({})
    for tuning in (True, False):
        chain.next_draw(params, tuning=tuning, alone=True)
        while chain.record.handed_out:
            chain.next_draw(params, tuning=tuning, alone=True)
        assert chain.record.x.base is None
    assert chain.record.z is not None
    assert chain.record.z.base is None


@pytest.mark.parametrize(
    ("n_fallback", "learnt", "n", "narrowing"),
    [(0, False, 10, 2), (3, False, 10, 3), (3, False, 9, 2), (0, True, 10, 0), (3, True, 10, 0)],
)
def test_windows_are_narrowed_until_the_next_metric(
    solver: Solver, n_fallback: int, learnt: bool, n: int, narrowing: int
) -> None:
    """By stretches that are used as a whole: of others the same noise comes again."""
    chain, z = new_chain(solver), np.zeros((10, solver.density.size))
    record = chain.record
    record.narrowing, record.stretch_draws, tuning = 2, 10, record.warmup.tuning
    metric = identity_metric("diag", solver.density.size) if learnt else tuning.metric
    found = replace(trajectory(z, z), n_fallback=n_fallback)
    solved = SolvedStretch(found, [], replace(tuning, metric=metric), 16, 10, record.streams)
    chain.go_on(record, solved, n)
    assert chain.record.narrowing == narrowing


def test_few_draws_are_solved_ahead_of_who_moves_the_chain(
    solver: Solver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One, and twice as many for as long as none of them is in vain."""
    chain, params = new_chain(solver, 0, 200), solver.density.param_values({})
    choose, chosen = Chain._choose_length, []

    def noted(chain: Chain, tuning: bool, calls: int) -> int:
        chosen.append(choose(chain, tuning, calls))
        return chosen[-1]

    monkeypatch.setattr(Chain, "_choose_length", noted)
    for i in range(67):
        if i in (10, 11):
            chain.move(np.zeros(solver.density.size))
        chain.next_draw(params, tuning=False, alone=True)
    most = chain.draws_at_once
    assert 16 < most < 32
    assert chosen == [most, 1, 1, 2, 4, 8, 16, most]
    assert chain.record.ahead is None


def test_draws_that_are_kept_leave_earlier_records_as_they_were(solver: Solver) -> None:
    chain, params = new_chain(solver, 0, 9), solver.density.param_values({})
    chain.end_warmup()
    records = [chain.record]
    for n in (4, 5):
        chain.begin_stretch(1, tuning=False)
        solved = chain.task().solve(params)
        chain.go_on(chain.after(solved, n), solved, n)
        records.append(chain.record)
    assert [record.kept.count for record in records] == [0, 4, 9]
    assert [record.n_draws_left for record in records] == [9, 5, 0]


def test_windows_of_an_ensemble_are_as_narrow_as_the_chain_that_needs_it_has_them(
    solver: Solver,
) -> None:
    ensemble = Ensemble(solver, [new_chain(solver, 0, 9).record for _ in range(3)])
    ensemble.chains[1].record.narrowing = 2
    ensemble.next_stretch(solver.density.param_values({}))
    assert [record.narrowing for record in ensemble.records] == [2, 2, 2]


def test_a_stretch_assumes_values_not_arrays(solver: Solver) -> None:
    z, tuning = np.zeros((1, 2)), new_chain(solver).record.warmup.tuning
    values = [np.array([1.0, np.nan]), np.zeros(3)]
    streams = Streams.spawn(np.random.default_rng(1))
    solved = SolvedStretch(trajectory(z, z), values, tuning, 1, 1, streams)
    assert solved.assumes(values)
    assert solved.assumes([value.copy() for value in values])
    assert not solved.assumes([values[0], np.ones(3)])
    assert not solved.assumes([np.ones(2), values[1]])


def test_draws_that_are_dropped_teach_nothing_and_leave_their_noise(solver: Solver) -> None:
    chain, params = new_chain(solver), solver.density.param_values({})
    while chain.record.handed_out < 3:
        chain.next_draw(params, tuning=True, alone=True)
    record, size = chain.record, solver.density.size
    steps, n = record.warmup.steps_per_draw, record.handed_out
    assert n < record.stretch_draws
    streams, tuning = record.streams.branch(sweeps=False), record.warmup.tuning
    noise = streams.tape(record.stretch_draws * steps, size, tuning)
    chain.move(np.zeros(size))
    assert chain.record.warmup.seen == record.warmup.seen + n * steps
    left = chain.record.streams.branch(sweeps=False).tape(steps, size, tuning)
    assert_array_equal(left.xi, noise.xi[n * steps : (n + 1) * steps])
    assert_array_equal(left.log_u, noise.log_u[n * steps : (n + 1) * steps])


def test_draws_of_more_transitions_than_a_call_has_are_the_same(solver: Solver) -> None:
    params, found = solver.density.param_values({}), []
    for capacity in (256, 3):
        own = solver.with_plan(replace(solver.plan, capacity=capacity))
        chain = Chain(own, new_chain(solver, 0, 5).record)
        chain.end_warmup()
        chain.take_steps(8)
        draws = [chain.next_draw(params, tuning=False, alone=True) for _ in range(5)]
        assert {stats["n_transitions"] for _, stats in draws} == {8}
        found.append([x for x, _ in draws])
    assert_allclose(*found, rtol=1e-12)
