"""`pymc_deer.sample` gives what `pm.sample` gives."""

import inspect
import itertools
import logging
import signal
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import fields, replace
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.tensor.blockwise import Blockwise
from xarray import DataArray, DataTree

import pymc_deer
from pymc_deer.backends.base import Solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.threads import Threads
from pymc_deer.beside import Beside
from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.chains.plan import in_windows
from pymc_deer.chains.stretch import Streams
from pymc_deer.chains.trials import UNKNOWN
from pymc_deer.density import build_density
from pymc_deer.examples import eight_schools
from pymc_deer.graphs.each_row import at_each_row
from pymc_deer.noise import Tape
from pymc_deer.sampling.inference_data import inference_data
from pymc_deer.sampling.memory_recorder import MemoryRecorder
from pymc_deer.sampling.recorder import Piece, Values, traced
from pymc_deer.sampling.settings import Settings
from pymc_deer.sampling.shared_step import KERNELS
from pymc_deer.status import ModelError, StartError
from pymc_deer.warmup import adaptation
from tests.support import BACKENDS, SEED, interrupt
from tests.support import sample as step_by_step
from tests.zoo import two_modes

pytestmark = pytest.mark.usefixtures("steps_made_once")

BOTH_KERNELS = pytest.mark.parametrize("kernel", KERNELS)

SCHOOLS = eight_schools()


def together(model: pm.Model, **changes: Any) -> DataTree:
    """A short, silent run."""
    options: dict[str, Any] = {
        "draws": 20,
        "tune": 30,
        "chains": 2,
        "random_seed": SEED,
        "kernel": "mala",
        "backend": "jax",
        "window": 1,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    return pymc_deer.sample(model=model, **(options | changes))


def test_arguments_have_the_defaults_at_which_a_run_that_goes_on_takes_them_for_left_out() -> None:
    arguments = inspect.signature(pymc_deer.sample).parameters
    named = [field.name for field in fields(Settings) if field.name in arguments]
    assert {"draws", "kernel", "tune", "chains"} < set(named)
    # Any number of draws may be one to go on to.
    named.remove("draws")
    assert arguments["draws"].default is None
    assert {n: arguments[n].default for n in named} == {n: getattr(Settings(), n) for n in named}


def test_transitions_are_those_of_hmc_unless_told_otherwise() -> None:
    options = {"draws": 5, "tune": 20, "chains": 1, "random_seed": SEED, "backend": "jax"}
    options |= {"window": 1, "quiet": True, "compute_convergence_checks": False}
    found, hmc, mala = (
        pymc_deer.sample(model=SCHOOLS, **options, **kernel)
        for kernel in ({}, {"kernel": "hmc"}, {"kernel": "mala"})
    )
    assert_array_equal(found["posterior"]["mu"], hmc["posterior"]["mu"])
    assert not np.array_equal(found["posterior"]["mu"], mala["posterior"]["mu"])


@cache
def linear() -> pm.Model:
    x = np.linspace(-1.0, 1.0, 12)
    with pm.Model(coords={"i": range(12), "k": ["a", "b"]}) as model:
        data = pm.Data("x", x, dims="i")
        beta = pm.Normal("beta", dims="k")
        mean = pm.Deterministic("mean", beta[0] + beta[1] * data, dims="i")
        pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=2 * x, dims="i")
    return model


def named_axes() -> pm.Model:
    """The same with names in place of positions, and an axis picked by an index that is data."""
    x = DataArray(np.linspace(-1.0, 1.0, 12), dims="i")
    with pm.Model(coords={"i": range(12), "k": ["a", "b"]}) as model:
        group = pmd.Data("group", np.arange(12) % 2, dims="i")
        beta = pmd.Normal("beta", dims="k")
        mean = pmd.Deterministic("mean", beta.isel(k=group) * x)
        pmd.Potential("wall", -(beta**4).sum())
        pmd.Normal("y", mean, pmd.HalfNormal("sigma"), observed=2 * x)
    return model


def imputed() -> pm.Model:
    with pm.Model() as model:
        mu = pm.Normal("mu")
        pm.Normal("y", mu, observed=np.ma.masked_invalid([0.1, np.nan, 0.3, np.nan]))
    return model


def ordered() -> pm.Model:
    with pm.Model() as model:
        pm.Normal(
            "cut", [0.0, 1.0, 2.0], 1.0, transform=pm.distributions.transforms.ordered, shape=3
        )
    return model


def simplex() -> pm.Model:
    with pm.Model(coords={"kind": ["x", "y", "z"]}) as model:
        p = pm.Dirichlet("p", np.ones(3), dims="kind")
        pm.Multinomial("n", 10, p, observed=[3, 3, 4], dims="kind")
    return model


def zero_sum() -> pm.Model:
    with pm.Model(coords={"g": list("abcd")}) as model:
        pm.ZeroSumNormal("effect", dims="g")
    return model


def nested() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("x")
        with pm.Model("inner"):
            pm.Gamma("y", 2.0, 1.0)
    return model


def with_potential() -> pm.Model:
    with pm.Model() as model:
        x = pm.Uniform("x", -1.0, 3.0, shape=(2, 3))
        pm.Potential("ridge", -pt.sum((x - 1.0) ** 4))
        pm.Deterministic("constant", pt.as_tensor(np.arange(3.0)))
    return model


def correlated() -> pm.Model:
    with pm.Model() as model:
        chol, _, _ = pm.LKJCholeskyCov(
            "chol", n=2, eta=2.0, sd_dist=pm.Exponential.dist(1.0), compute_corr=True
        )
        pm.MvNormal("x", np.zeros(2), chol=chol)
    return model


def mixture() -> pm.Model:
    with pm.Model() as model:
        w = pm.Beta("w", 2.0, 2.0)
        parts = [pm.Normal.dist(-1.0, 1.0), pm.Normal.dist(1.0, 1.0)]
        pm.Mixture("y", pt.stack([w, 1 - w]), parts, observed=np.linspace(-2, 2, 7))
    return model


VARIED = (
    *(eight_schools, linear, named_axes, imputed, ordered, simplex),
    *(zero_sum, nested, with_potential, correlated, mixture),
)


def outline(idata: DataTree) -> dict[str, Any]:
    """Groups with their variables, dims, types and coords."""
    return {
        group: {
            "variables": {
                str(name): (v.dims, v.shape, v.dtype) for name, v in data.dataset.data_vars.items()
            },
            "coords": {str(n): c.values.tolist() for n, c in data.dataset.coords.items()},
        }
        for group, data in idata.children.items()
    }


@pytest.mark.filterwarnings("ignore::pymc.exceptions.ImputationWarning")
@pytest.mark.parametrize("build", VARIED)
def test_one_chain_is_that_of_pm_sample(build: Callable[[], pm.Model]) -> None:
    """The same draws, in the same groups, variables, dims and coords."""
    # Sums are cut otherwise. Here half of a window moves once, and its metric enlarges roundings.
    rounding = 1e-6 if build is correlated else 1e-12
    changes = {"chains": 1, "discard_tuned_samples": False}
    model = build()
    found = together(model, **changes)
    with model:
        step = pymc_deer.DeerMALA(backend="jax", window=1)
    expected = step_by_step(step, **changes)
    assert outline(found) == outline(expected)
    for group in ("posterior", "warmup_posterior", "sample_stats", "warmup_sample_stats"):
        for name, values in expected[group].dataset.data_vars.items():
            assert_allclose(found[group][name].values, values.values, rtol=rounding, atol=rounding)


@pytest.mark.parametrize(
    ("backend", "kernel"),
    [pair for pair in (("numba", "mala"), ("jax", "hmc")) if pair[0] in BACKENDS],
)
def test_chains_warm_up_together(backend: str, kernel: str, monkeypatch) -> None:
    """They share metric, paths and steps per draw; each has its own step size."""
    ensembles: list[Ensemble] = []
    begin = Ensemble.begin

    def spy(self: Ensemble, *args: Any) -> None:
        ensembles.append(self)
        begin(self, *args)

    monkeypatch.setattr(Ensemble, "begin", spy)
    # A rate at which no chain could take longer steps than its paths are.
    options = {"kernel": kernel, "backend": backend, "target_accept": 0.95}
    idata = together(SCHOOLS, tune=200, chains=3, **options)
    first, *others = [record.warmup for record in ensembles[0].records]
    assert others
    for other in others:
        assert other.tuning.metric is first.tuning.metric
        assert other.path == first.path
        assert other.steps_per_draw == first.steps_per_draw
    sizes = idata["sample_stats"]["step_size"].values
    assert len(np.unique(sizes)) == 3
    theta = idata["posterior"]["mu"] + idata["posterior"]["tau"] * idata["posterior"]["eta"]
    assert_allclose(idata["posterior"]["theta"].values, theta.values, rtol=1e-12)
    # What the attributes say is what ran.
    assert idata["sample_stats"].attrs["deer_backend"] == backend


def test_each_chain_has_its_step_size_in_the_attributes() -> None:
    stats = together(SCHOOLS)["sample_stats"]
    last = stats["step_size"].values[:, -1]
    assert len(np.unique(last)) == 2
    assert_array_equal(stats.attrs["deer_step_size"], last)


def test_the_times_of_a_run_that_goes_on_are_those_of_all_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Interrupted in warm-up; and none is added where nothing was left to do."""
    model, place = linear(), tmp_path / "run"
    with monkeypatch.context() as patch:
        interrupt(patch, 8)
        begun = together(model, store=place, discard_tuned_samples=False)
    ended, again = (
        pymc_deer.sample(
            model=model, resume=place, progressbar=False, compute_convergence_checks=False
        )
        for _ in range(2)
    )
    begun_took, took, again_took = (
        run["posterior"].attrs["sampling_time"] for run in (begun, ended, again)
    )
    assert again_took >= took > begun_took > 0
    begun_warmup, warmup, again_warmup = (
        run["sample_stats"].attrs["deer_seconds_warmup"] for run in (begun, ended, again)
    )
    assert again_warmup == warmup > begun_warmup > 0


def test_draws_of_all_chains_take_as_many_transitions(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many as the chain can afford whose paths have most steps."""
    affordable, given = itertools.count(20, -1), []

    def fewer_and_fewer(n_leapfrog: int) -> int:
        given.append(next(affordable))
        return given[-1]

    monkeypatch.setattr(adaptation, "affordable_steps", fewer_and_fewer)
    monkeypatch.setattr(adaptation, "steps_per_draw", lambda transitions, size: 64)
    idata = together(SCHOOLS, tune=5, draws=300, chains=3, kernel="hmc")
    assert idata["posterior"].sizes["draw"] == 300
    stats = idata["sample_stats"]
    assert (stats["n_transitions"] == given[-1]).all()
    assert stats.attrs["deer_steps_per_draw"] == given[-1]


def test_chains_in_different_modes_do_not_slow_each_other() -> None:
    """What they learn together is the shape of a mode, not how far apart the modes are."""
    model = two_modes(3)
    starts = [{"x": np.array([mode, 0.0, 0.0])} for mode in (20.0, -20.0)]
    options = {"kernel": "hmc", "tune": 200, "chains": 2}
    apart = together(model, initvals=starts, **options)
    alike = together(model, initvals=starts[0], **options)
    assert_allclose(np.sign(apart["posterior"]["x"].values[:, :, 0]), [[1.0] * 20, [-1.0] * 20])
    last = [run["sample_stats"].isel(draw=-1) for run in (apart, alike)]
    assert max(int(stats["n_steps"].max()) for stats in last) <= 8
    assert_allclose(*(stats["step_size"].mean().item() for stats in last), rtol=0.5)


@BOTH_KERNELS
def test_seed_determines_the_draws(kernel: str) -> None:
    runs = [together(SCHOOLS, kernel=kernel, random_seed=seed) for seed in (1, 1, 2)]
    first, again, other = (run["posterior"]["mu"].values for run in runs)
    assert_array_equal(first, again)
    chains = [set(chain) for draws in (first, other) for chain in draws]
    assert len(set.union(*chains)) == sum(map(len, chains))


def test_windows_change_no_draw() -> None:
    fixed = {"step_size": 0.4, "metric": np.eye(10), "steps_per_draw": 5, "tune": 0, "draws": 50}
    fixed |= {"jacobian": "secant", "curvature": 1.5}
    one, wide = (together(SCHOOLS, window=w, **fixed) for w in (1, 16))
    assert (wide["sample_stats"]["sweeps"] > 0).all()
    for name, values in one["posterior"].dataset.data_vars.items():
        assert_allclose(wide["posterior"][name].values, values.values, rtol=1e-4, atol=1e-4)


def check_is_the_beginning(part: DataTree, whole: DataTree) -> None:
    """Of a warm-up of 30 draws, some and not all."""
    n = part["warmup_posterior"].sizes["draw"]
    assert 0 < n < 30
    assert_array_equal(
        part["warmup_posterior"]["mu"].values, whole["warmup_posterior"]["mu"].values[:, :n]
    )


def test_an_interrupt_keeps_what_all_chains_have_finished(monkeypatch) -> None:
    whole = together(SCHOOLS, tune=30, draws=30, discard_tuned_samples=False)
    interrupt(monkeypatch, 8)
    part = together(SCHOOLS, tune=30, draws=30, discard_tuned_samples=False)
    check_is_the_beginning(part, whole)


@pytest.mark.parametrize("stored", [False, True])
def test_an_interrupt_while_the_last_draws_are_recorded_loses_none(
    stored: bool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """Unless it comes twice."""
    caplog.set_level(logging.INFO, logger="pymc")
    whole = together(SCHOOLS)
    wait, interrupts = Beside.wait, []

    def interrupted(beside: Beside) -> None:
        if interrupts:
            raise interrupts.pop()
        wait(beside)

    monkeypatch.setattr(Beside, "wait", interrupted)
    for n_times in (1, 2):
        interrupts.extend([KeyboardInterrupt] * n_times)
        place = {"store": tmp_path / str(n_times)} if stored else {}
        if n_times == 2:
            with pytest.raises(KeyboardInterrupt):
                together(SCHOOLS, **place)
        else:
            found = together(SCHOOLS, **place)
            assert_array_equal(found["posterior"]["theta"], whole["posterior"]["theta"])
            assert "Interrupted" in caplog.text
        assert not interrupts


def test_an_interrupt_is_not_told_of_where_nothing_is_to_be(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="pymc")
    interrupt(monkeypatch, 8)
    part = together(SCHOOLS, draws=30, discard_tuned_samples=False, quiet=True)
    assert part["warmup_posterior"].sizes["draw"] < 30
    assert not caplog.messages


@pytest.mark.parametrize("keeps_warmup", [False, True])
def test_an_interrupt_before_any_draw_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, *, keeps_warmup: bool
) -> None:
    """There is nothing to return: neither an error of PyMC's, nor a word about draws."""
    interrupt(monkeypatch, 1 if keeps_warmup else 3)
    with pytest.raises(KeyboardInterrupt):
        together(SCHOOLS, tune=30, draws=30, discard_tuned_samples=not keeps_warmup)
    assert "Interrupted" not in caplog.text


def interrupt_with_warmup_over(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the first draw behind it."""
    end = Ensemble._end_warmup

    def interrupted(ensemble: Ensemble) -> None:
        end(ensemble)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ensemble, "_end_warmup", interrupted)


def test_an_interrupt_with_warmup_over_and_discarded_is_an_interrupt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt_with_warmup_over(monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        together(SCHOOLS, tune=30, draws=30)


def test_an_interrupt_with_warmup_over_keeps_all_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupt_with_warmup_over(monkeypatch)
    idata = together(
        linear(), tune=30, discard_tuned_samples=False, idata_kwargs={"log_prior": True}
    )
    assert idata["warmup_posterior"].sizes["draw"] == 30
    assert "log_prior" not in idata.children


def check_recorded_beside(backend: str, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """The recording of the first stretch and the solving of the second wait for each other."""
    monkeypatch.setattr("pymc_deer.chains.ensemble._MOST_NUMBERS", 1)
    monkeypatch.setattr("pymc_deer.chains.plan._LONGEST_CALL", 1)
    meeting, solves = threading.Barrier(2, timeout=seconds), []
    solve, write = Solver.run_together, MemoryRecorder._write

    def solving(self: Solver, *arguments: Any) -> Any:
        solves.append(None)
        if len(solves) == 2:
            meeting.wait()
        return solve(self, *arguments)

    def writing(self: MemoryRecorder, piece: Piece, values: Any) -> None:
        if piece.first == 0:
            meeting.wait()
        write(self, piece, values)

    monkeypatch.setattr("pymc_deer.sampling.recorder._BLOCK_BYTES", 1)
    monkeypatch.setattr(Solver, "run_together", solving)
    monkeypatch.setattr(MemoryRecorder, "_write", writing)
    frozen = {"step_size": 0.4, "metric": np.eye(10), "steps_per_draw": 60, "tune": 0}
    together(SCHOOLS, backend=backend, **frozen)
    assert len(solves) > 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_draws_are_recorded_while_the_next_are_made(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    check_recorded_beside(backend, monkeypatch, 60.0)


def test_recording_in_turns_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymc_deer.beside.Beside.do", lambda beside, call: call())
    with pytest.raises(threading.BrokenBarrierError):
        check_recorded_beside(BACKENDS[-1], monkeypatch, 0.1)


@pytest.mark.parametrize("discard", [True, False])
def test_draws_that_are_discarded_are_not_recorded(discard: bool, monkeypatch) -> None:
    at, n_draws = Values.at, []

    def counted(self: Values, draws: np.ndarray, first: int) -> Any:
        n_draws.append(draws.shape[1])
        return at(self, draws, first)

    monkeypatch.setattr(Values, "at", counted)
    idata = together(SCHOOLS, tune=30, draws=20, discard_tuned_samples=discard)
    assert sum(n_draws) == (20 if discard else 50)
    assert idata["posterior"].sizes["draw"] == 20
    assert ("warmup_posterior" in idata) != discard


def test_deterministics_are_computed_for_all_draws_in_one_call() -> None:
    """Vectorised, the view that each is would be a loop over the draws."""
    with eight_schools() as model:
        pm.Deterministic("twice", 2 * model["theta"])
        step = pymc_deer.DeerMALA(backend="jax", window=1)
    values = Values(model, step.density, traced(model, None), 2)
    at: Any = values._at
    assert not [n for n in at.maker.fgraph.apply_nodes if isinstance(n.op, Blockwise)]
    draws = np.random.default_rng(0).normal(size=(2, 5, step.density.size))
    found = values.at(draws, 0)
    assert_allclose(found["twice"], 2 * found["theta"])
    by_hand = found["mu"][..., None] + found["tau"][..., None] * found["eta"]
    assert_allclose(found["theta"], by_hand)


def test_what_is_computed_of_a_draw_does_not_depend_on_where_blocks_end() -> None:
    """Matrix products round a row by its place in the batch."""
    rng = np.random.default_rng(0)
    features = rng.normal(size=(301, 300))
    with pm.Model() as model:
        pm.Deterministic("mu", features @ pm.Normal("b", shape=300))
    values = Values(model, build_density(model), traced(model, None), 2)
    draws = rng.normal(size=(2, 400, 300))
    whole = values.at(draws, 0)["mu"]
    assert_allclose(whole, draws @ features.T, rtol=1e-10, atol=1e-10)
    for first, last in ((0, 1), (3, 190), (63, 64), (100, 383), (399, 400)):
        assert_array_equal(values.at(draws[:, first:last], first)["mu"], whole[:, first:last])


def test_slow_chains_are_told_of_once_where_convergence_is_checked(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    crawling = {"metric": np.array([1.0, 1e-4]), "steps_per_draw": 1, "step_size": 0.5}
    with caplog.at_level("WARNING"):
        together(model, draws=400, compute_convergence_checks=False, **crawling)
        assert not caplog.messages
        together(model, draws=400, compute_convergence_checks=True, **crawling)
    slow = [m for m in caplog.messages if "draws of 2 of 2 chains are worth about" in m]
    assert len(slow) == 1


def test_slow_chains_are_told_of_after_an_interrupt(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pm.Model() as model:
        pm.Normal("x", shape=2)
    crawling = {"metric": np.array([1.0, 1e-4]), "steps_per_draw": 1, "step_size": 0.5}
    monkeypatch.setattr("pymc_deer.chains.plan._LONGEST_CALL", 1)
    monkeypatch.setattr("pymc_deer.chains.ensemble._MOST_NUMBERS", 1)
    interrupt(monkeypatch, 4)
    with caplog.at_level("WARNING"):
        idata = together(
            model, draws=10_000, tune=0, chains=1, compute_convergence_checks=True, **crawling
        )
    n_draws = idata["posterior"].sizes["draw"]
    assert 200 <= n_draws < 10_000
    assert [m for m in caplog.messages if f"The {n_draws} draws of this chain are worth" in m]


def test_values_of_transformed_variables_are_computed_where_they_are_asked_for() -> None:
    names = [str(v.name) for v in traced(SCHOOLS, None)]
    assert names == ["mu", "eta", "tau", "theta"]
    assert {str(v.name) for v in traced(SCHOOLS, None, transformed=True)} == {*names, "tau_log__"}


def test_a_step_size_that_is_fixed_has_no_acceptance_rate_to_aim_at() -> None:
    adapted, fixed = (
        together(SCHOOLS, draws=3, tune=6, **changes)["sample_stats"].attrs
        for changes in ({}, {"step_size": 0.1})
    )
    assert adapted["deer_target_accept"] == pytest.approx(0.6, abs=0.3)
    assert "deer_target_accept" not in fixed


def test_discrete_variables_are_refused_before_anything_is_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pm.Model() as model:
        pm.Normal("x", pm.Bernoulli("k", 0.5))
    monkeypatch.setattr("pymc_deer.step.build_density", None)
    with pytest.raises(ModelError, match=r"^k: pymc_deer\.sample moves all variables itself"):
        together(model)


@BOTH_KERNELS
def test_angles_that_go_around_take_no_longer_paths(
    kernel: str, caplog: pytest.LogCaptureFixture
) -> None:
    with pm.Model() as model:
        pm.VonMises("angle", 0.0, 1.0, shape=2)
        pm.Normal("x", shape=5)
    named = {"idata_kwargs": {"include_transformed": True}}
    with caplog.at_level("WARNING"):
        idata = together(model, kernel=kernel, draws=1000, tune=500, chains=2, **named)
    assert np.abs(idata["posterior"]["angle_circular__"]).max() > 2 * np.pi
    assert idata["sample_stats"]["n_steps"].mean() <= 6
    assert not caplog.messages
    # The ratio of two Bessel functions.
    error = 4 * np.sqrt(0.165 / 1000)
    assert_allclose(np.cos(idata["posterior"]["angle"]).mean(), 0.4464, atol=error)


def test_initial_values_and_var_names() -> None:
    frozen = {"step_size": 1e-12, "metric": np.eye(10), "steps_per_draw": 1, "tune": 0, "draws": 3}
    initvals = [{"mu": 1.0}, {"mu": -2.0}]
    idata = together(SCHOOLS, initvals=initvals, var_names=["mu", "theta"], **frozen)
    assert set(map(str, idata["posterior"].data_vars)) == {"mu", "theta"}
    assert_allclose(idata["posterior"]["mu"].values[:, 0], [1.0, -2.0], atol=1e-9)


def test_a_start_of_what_follows_from_others_is_ignored() -> None:
    frozen = {"step_size": 1e-12, "metric": np.eye(10), "steps_per_draw": 1, "tune": 0, "draws": 3}
    for theta, start in (("theta", np.zeros(8)), (SCHOOLS["theta"], np.zeros(3))):
        idata = together(SCHOOLS, initvals={"mu": 1.0, theta: start}, **frozen)
        assert_allclose(idata["posterior"]["mu"].values[:, 0], 1.0, atol=1e-9)


def test_starts_may_be_of_variables_of_the_model_that_this_one_was_made_of() -> None:
    with pm.Model() as whole:
        s = pm.HalfNormal("s")
        pm.Normal("y", 0.0, s)
    model = pm.observe(whole, {"y": 1.0})
    frozen = {"step_size": 1e-12, "metric": np.ones(1), "steps_per_draw": 1, "tune": 0, "draws": 3}
    values = whole.rvs_to_values[s]
    for initvals in ({s: 2.0}, [{s: 2.0}, {values: np.log(2.0)}], {values: np.log(2.0)}):
        idata = together(model, initvals=initvals, chains=2, **frozen)
        assert_allclose(idata["posterior"]["s"].values[:, 0], 2.0, atol=1e-9)


def test_starts_are_named_with_or_without_the_models_prefix() -> None:
    with pm.Model(name="sub") as model:
        pm.HalfNormal("s")
    frozen = {"step_size": 1e-12, "metric": np.ones(1), "steps_per_draw": 1, "tune": 0, "draws": 3}
    for name, start in {"s": 2.0, "sub::s": 2.0, "sub::s_log__": np.log(2.0)}.items():
        idata = together(model, initvals={name: start}, **frozen)
        assert_allclose(idata["posterior"]["sub::s"].values[:, 0], 2.0, atol=1e-9)
    for name in ("s", "sub::s"):
        with pytest.raises(StartError, match=rf"of {name} has the shape \(3,\), .* \(\)"):
            together(model, initvals={name: np.ones(3)}, **frozen)


def test_what_follows_from_a_start_is_jittered() -> None:
    """The default of x is where mu starts."""
    with pm.Model() as model:
        pm.Normal("x", pm.Normal("mu"), shape=3)
    frozen = {"step_size": 1e-12, "metric": np.ones(4), "steps_per_draw": 1, "tune": 0, "draws": 3}
    posterior = together(model, initvals={"mu": 5.0}, **frozen)["posterior"]
    assert_allclose(posterior["mu"][:, 0], 5.0, atol=1e-9)
    x = posterior["x"].values[:, 0]
    assert len(np.unique(x)) == x.size
    assert np.abs(x - 5.0).max() < 1.0


def test_a_start_that_is_the_default_is_kept_as_well() -> None:
    """Variables without a start are jittered, but not those that were given one of all."""
    with pm.Model() as model:
        pm.Normal("x", shape=3)
        pm.HalfNormal("s", shape=3)
    frozen = {"step_size": 1e-12, "metric": np.ones(6), "steps_per_draw": 1, "tune": 0}
    default = np.ones(3)
    initvals = [{"x": np.zeros(3)}, {"s": default, "x": None}]
    idata = together(model, initvals=initvals, draws=3, **frozen)
    x, s = (idata["posterior"][name].values[:, 0] for name in ("x", "s"))
    assert_allclose(x[0], 0.0, atol=1e-9)
    assert np.abs(x[1]).min() > 1e-3
    assert_allclose(s[1], default, atol=1e-9)
    assert np.abs(s[0] - default).min() > 1e-3


def test_variables_of_single_precision_beside_float_x() -> None:
    """What the draws of such a model are of is float64, which floatX says."""
    with pm.Model() as model:
        pm.Normal("x", dtype="float32")
        pm.Deterministic("double", 2 * model["x"])
    posterior = together(model)["posterior"]
    assert posterior["x"].dtype == np.float32
    assert_allclose(posterior["double"], 2 * posterior["x"])


def test_a_deterministic_whose_pieces_vary_in_shape() -> None:
    with pm.Model() as model:
        x = pm.Normal("x", shape=2)
        pm.Deterministic("up to the largest", x[: pt.argmax(x) + 1].sum())
    posterior = together(model)["posterior"]
    first, second = np.moveaxis(posterior["x"].values, -1, 0)
    expected = np.where(first >= second, first, first + second)
    assert {True, False} == set((first >= second).ravel().tolist())
    assert_allclose(posterior["up to the largest"], expected)


NUMBERS: dict[str, dict[str, Any]] = {
    "counts": {"draws": np.uint8(200), "tune": np.uint8(100), "chains": np.uint8(2)},
    "steps of a draw": {"steps_per_draw": np.int8(3), "draws": np.int16(100)},
    "windows": {
        "window": np.int8(8),
        "max_sweeps": np.int64(8),
        "curvature": np.float32(1.5),
        "jacobian": "stochastic",
        "probes": np.int8(2),
    },
    "a fraction": {"step_size": Fraction(1, 3)},
    "half a float": {"target_accept": np.float16(0.75)},
    "steps too small to count": {"step_size": 1e-300, "kernel": "hmc"},
}


def plainly(value: Any) -> Any:
    """The same number as one of Python's own."""
    if isinstance(value, Fraction):
        return float(value)
    return value.item() if isinstance(value, np.generic) else value


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_any_type(name: str, tmp_path: Path) -> None:
    """They are stored, and do not overflow."""
    given = NUMBERS[name]
    stored = together(SCHOOLS, store=tmp_path / "run", quiet=True, **given)
    assert stored["posterior"].sizes == {"chain": 2, "draw": given.get("draws", 20), "school": 8}
    plain = {key: plainly(value) for key, value in given.items()}
    in_memory = together(SCHOOLS, **plain)
    for group in ("posterior", "sample_stats"):
        xr.testing.assert_equal(stored[group].to_dataset(), in_memory[group].to_dataset())


def test_nothing_to_check_is_no_error() -> None:
    """PyMC's checks look at free variables, and fail where none is recorded."""
    idata = together(linear(), var_names=["mean"], draws=200, compute_convergence_checks=True)
    assert list(idata["posterior"].data_vars) == ["mean"]


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
@pytest.mark.parametrize("steps", [5, 10])
def test_calls_step_by_step_with_less_room_change_no_draw(
    steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a stretch leaves windows empty: with room for 7 transitions, of 5 or 10 for a draw."""

    def drawn() -> DataTree:
        settled = {"step_size": 0.3, "jacobian": "secant", "curvature": 1.5}
        return together(SCHOOLS, draws=3, tune=0, window=256, steps_per_draw=steps, **settled)

    def with_less_room(*arguments: Any) -> Solver:
        solver = in_windows(*arguments)
        rooms.append(solver.plan.capacity)
        return solver.with_plan(replace(solver.plan, capacity=7))

    whole, rooms = drawn(), []
    monkeypatch.setattr("pymc_deer.chains.chain.in_windows", with_less_room)
    found = drawn()
    assert min(rooms) > 3 * steps, "one call was enough before"
    for group in ("posterior", "sample_stats"):
        xr.testing.assert_equal(found[group].to_dataset(), whole[group].to_dataset())


def test_divergences_are_told_where_no_free_variable_is_recorded(
    caplog: pytest.LogCaptureFixture,
) -> None:
    def told(**arguments: Any) -> bool:
        caplog.clear()
        # Steps so long that some energies are infinite.
        idata = together(linear(), var_names=["mean"], draws=50, tune=0, step_size=1e3, **arguments)
        assert idata["sample_stats"]["diverging"].any()
        return "divergences after tuning" in caplog.text

    assert told(quiet=False, compute_convergence_checks=True)
    assert not told(quiet=True, compute_convergence_checks=True)
    assert not told(quiet=False, compute_convergence_checks=False)


def test_chains_that_stand_still_are_told_of_unless_a_stored_run_is_quiet(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    frozen = {"step_size": 1e-9, "metric": np.ones(3), "steps_per_draw": 1, "tune": 0}
    for quiet in (False, True):
        caplog.clear()
        place = tmp_path / f"quiet={quiet}"
        checks = {"quiet": quiet, "compute_convergence_checks": True}
        together(linear(), draws=100, store=place, **frozen, **checks)
        assert ("effective sample size per chain is smaller" in caplog.text) == (not quiet)
    assert not caplog.messages


def test_a_check_that_one_draw_fails_is_that_draws_alone() -> None:
    """PyMC's traces have minus infinity there."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Deterministic("of_sd", pm.logp(pm.Normal.dist(0.0, x), 1.0))
    posterior = together(model, draws=200)["posterior"]
    outside = posterior["x"].to_numpy() <= 0
    assert 0.2 < outside.mean() < 0.8
    assert_array_equal(np.isneginf(posterior["of_sd"].to_numpy()), outside)


def test_an_interrupt_in_warmup_needs_no_log_likelihood(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    interrupt(monkeypatch, 3)
    idata = together(
        linear(), tune=30, discard_tuned_samples=False, idata_kwargs={"log_prior": True}
    )
    assert idata["warmup_posterior"].sizes["draw"] > 0
    assert "log_prior" not in idata.children
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_what_follows_from_large_arrays_is_computed_a_few_draws_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Such as a Gaussian process, of which each draw has a covariance of its own."""
    asked = []

    def counted(*arguments: Any) -> Any:
        at = at_each_row(*arguments)

        def of_rows(rows: np.ndarray) -> Any:
            asked.append(len(rows))
            return at(rows)

        return of_rows

    monkeypatch.setattr("pymc_deer.sampling.recorder.at_each_row", counted)
    with pm.Model() as model:
        x = pm.Normal("x", shape=500)
        pm.Deterministic("total", pt.exp(-((x[:, None] - x[None]) ** 2)).sum())
    posterior = together(model, draws=6)["posterior"]
    assert set(asked) == {1, 4}
    x = posterior["x"].to_numpy()
    expected = np.exp(-((x[..., None] - x[..., None, :]) ** 2)).sum(axis=(-2, -1))
    assert_allclose(posterior["total"].to_numpy(), expected)


@pytest.mark.filterwarnings("ignore:Passing `log_likelihood`:FutureWarning")
@pytest.mark.parametrize("error", [MemoryError("No room"), KeyboardInterrupt()])
def test_draws_outlive_terms_that_cannot_be_computed(
    error: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def failing(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr("pymc.stats.log_density.compute_log_likelihood", failing)
    asked = {"log_likelihood": True, "log_prior": True}
    caplog.set_level(logging.INFO, logger="pymc")
    idata = together(linear(), draws=7, idata_kwargs=asked, quiet=False)
    assert idata["posterior"].sizes["draw"] == 7
    assert not {"log_likelihood", "log_prior"} & set(idata.children)
    messages = [record.message for record in caplog.records]
    told = [text for text in messages if "without log_likelihood and log_prior" in text]
    assert [type(error).__name__ in text for text in told] == [True]
    assert sum(" took " in text for text in messages) == 1, "PyMC tells it once"


@cache
def with_a_dim_twice() -> pm.Model:
    """ArviZ cannot tell the axes of such a variable apart."""
    with pm.Model(coords={"a": [1, 2]}) as model:
        pm.Normal("x", dims=("a", "a"))
    return model


@cache
def without_elements() -> pm.Model:
    with pm.Model() as model:
        pm.Normal("nothing", shape=0)
        pm.Normal("x")
    return model


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
@pytest.mark.parametrize("model", [with_a_dim_twice, without_elements])
@pytest.mark.parametrize("stored", [False, True])
def test_draws_outlive_convergence_checks_that_fail(
    model: Callable[[], pm.Model], stored: bool, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"store": tmp_path / "run"} if stored else {}
    with caplog.at_level(logging.WARNING):
        idata = together(model(), draws=120, compute_convergence_checks=True, **place)
    assert idata["posterior"]["x"].sizes["draw"] == 120
    told = [r.message for r in caplog.records if "without a check" in r.message]
    assert ["ValueError: " in text for text in told] == [True]


def test_draws_outlive_an_interrupt_of_their_convergence_checks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("pymc_deer.sampling.inference_data.run_convergence_checks", interrupted)
    with caplog.at_level(logging.WARNING):
        idata = together(linear(), draws=7, compute_convergence_checks=True)
    assert idata["posterior"].sizes["draw"] == 7
    assert "without a check of their convergence (KeyboardInterrupt)" in caplog.text


def test_an_axis_with_a_name_leaves_other_names_to_variables() -> None:
    with pm.Model(coords={"a": [1, 2]}) as model:
        x = pm.Normal("x", dims="a")
        pm.Deterministic("x_dim_0", x.sum())
        pm.Deterministic("x_dim_1", x[0])
        pair = pm.Deterministic("pair", pt.stack([x, x], axis=1), dims=("a", None))
        pm.Deterministic("pair_dim_1", pair.sum())
    posterior = together(model)["posterior"]
    assert posterior["pair"].dims[2:] == ("a", "pair_dim_0")
    assert {"x", "x_dim_0", "x_dim_1", "pair_dim_1"} <= set(posterior.data_vars)


def test_errors_that_no_term_is_to_blame_for_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    fail_to_convert(monkeypatch, MemoryError())
    with pytest.raises(MemoryError):
        together(SCHOOLS, draws=7, idata_kwargs={"log_prior": False})


def test_draws_outlive_an_interrupt_of_their_conversion(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that comes while they are recorded; a second one loses them."""
    fail_to_convert(monkeypatch, KeyboardInterrupt())
    assert together(SCHOOLS, draws=7)["posterior"].sizes["draw"] == 7
    fail_to_convert(monkeypatch, KeyboardInterrupt(), KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        together(SCHOOLS, draws=7)


def fail_to_convert(monkeypatch: pytest.MonkeyPatch, *errors: BaseException) -> None:
    """Raise these when the draws are made, one after the other."""
    left = list(errors)

    def failing(traces: Any, **options: Any) -> Any:
        if len(traces[0]) > 2 and left:
            raise left.pop()
        return inference_data(traces, **options)

    monkeypatch.setattr("pymc_deer.sampling.memory_recorder.inference_data", failing)


@pytest.mark.parametrize("mode", [True, "combined", "split+stats"])
def test_progress_bar(mode: Any, capsys, monkeypatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    together(SCHOOLS, progressbar=mode)
    shown = capsys.readouterr().out
    assert ("Step size" in shown) == (mode != "combined")
    # Behind warm-up a bar counts from 1 again, those of all chains alike.
    n_draws, n_bars = (40, 1) if mode == "combined" else (20, 2)
    assert shown.count(f" {n_draws} ") == n_bars


def pretend_cores(monkeypatch: pytest.MonkeyPatch, n: int) -> None:
    """As if the machine had n of them."""
    monkeypatch.setattr("pymc_deer.backends.threads.existing_cores", lambda: n)
    monkeypatch.setattr("pymc_deer.backends.base.existing_cores", lambda: n)


def threads_asked_for(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Grows by a number for each stretch whose chains get threads, however short it is."""
    monkeypatch.setattr("pymc_deer.backends.base._THREADS_SECONDS", 0.0)
    asked_for: list[int] = []
    run = Threads.run

    def counted(threads: Threads, tasks: Any, n_threads: int, stopped: Any) -> Any:
        asked_for.append(n_threads)
        return run(threads, tasks, n_threads, stopped)

    monkeypatch.setattr(Threads, "run", counted)
    return asked_for


WINDOWED = {"window": 16, "jacobian": "secant", "curvature": 1.5}
STARVED = {**WINDOWED, "max_sweeps": 2}


@pytest.mark.parametrize("options", [{}, WINDOWED, STARVED], ids=["auto", "windows", "starved"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_cores_change_no_draw(
    backend: str, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Chains in threads of their own are those of one thread, bit for bit.

    Those whose sweeps run out compile the chain step by step when they are in their threads, which
    therefore come first.
    """
    for name in ("base.available_cores", "numba.available_threads"):
        monkeypatch.setattr(f"pymc_deer.backends.{name}", lambda: 2)
    monkeypatch.setattr(Solver, "blas_threads", lambda solver: 2)
    asked_for = threads_asked_for(monkeypatch)
    two = together(SCHOOLS, backend=backend, **options)
    assert set(asked_for) == {2}
    asked_for.clear()
    one = together(SCHOOLS, backend=backend, cores=1, **options)
    assert not asked_for
    for name, values in one["posterior"].dataset.data_vars.items():
        assert_array_equal(two["posterior"][name].values, values.values)


@pytest.mark.parametrize("backend", BACKENDS)
def test_chains_draw_their_noise_in_their_threads(
    backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn by one thread for all it holds up the others, the longer the more of them there are."""
    pretend_cores(monkeypatch, 2)
    threads_asked_for(monkeypatch)
    drawn_by: list[threading.Thread] = []
    draw = Streams.tape

    def seen(streams: Streams, *arguments: Any) -> Tape:
        drawn_by.append(threading.current_thread())
        return draw(streams, *arguments)

    monkeypatch.setattr(Streams, "tape", seen)
    together(SCHOOLS, backend=backend, cores=2)
    assert drawn_by
    assert threading.main_thread() not in drawn_by


@pytest.mark.usefixtures("hears_interrupts")
def test_an_interrupt_reaches_chains_in_their_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend_cores(monkeypatch, 2)
    options = {"tune": 30, "draws": 30, "discard_tuned_samples": False, "cores": 2}
    whole = together(SCHOOLS, **options)
    asked_for = threads_asked_for(monkeypatch)
    draw, interrupts = Streams.tape, []

    def interrupting(streams: Streams, *arguments: Any) -> Tape:
        if len(asked_for) == 8 and not interrupts:
            interrupts.append(threading.current_thread())
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        return draw(streams, *arguments)

    monkeypatch.setattr(Streams, "tape", interrupting)
    part = together(SCHOOLS, **options)
    assert interrupts
    assert threading.main_thread() not in interrupts
    check_is_the_beginning(part, whole)


@pytest.mark.parametrize("fails", [False, True])
def test_threads_stay_for_a_run_and_end_with_it(
    fails: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Started for each stretch they take time and memory; left behind, a fork warns of them."""
    pretend_cores(monkeypatch, 2)
    asked_for = threads_asked_for(monkeypatch)
    seen: set[threading.Thread] = set()
    draw = Streams.tape

    def noted(streams: Streams, *arguments: Any) -> Tape:
        seen.add(threading.current_thread())
        if fails and len(asked_for) > 3:
            raise RuntimeError("no noise")
        return draw(streams, *arguments)

    monkeypatch.setattr(Streams, "tape", noted)
    with pytest.raises(RuntimeError, match="no noise") if fails else nullcontext():
        together(SCHOOLS, cores=2)
    assert len(asked_for) > 3
    assert len(seen) == 2
    assert not any(thread.is_alive() for thread in seen)


def test_a_worker_process_has_the_cores_it_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether its siblings need the others, only the user knows; BLAS is no measure of it."""
    pretend_cores(monkeypatch, 4)
    monkeypatch.setattr("multiprocessing.parent_process", lambda: "another")
    monkeypatch.setattr(Solver, "blas_threads", lambda solver: 4)
    asked_for = threads_asked_for(monkeypatch)
    together(SCHOOLS)
    assert not asked_for
    monkeypatch.setattr(Solver, "blas_threads", lambda solver: 1)
    together(SCHOOLS, cores=2)
    assert set(asked_for) == {2}
    asked_for.clear()
    monkeypatch.setattr("pymc_deer.backends.base.existing_cores", lambda: 1)
    together(SCHOOLS, cores=2)
    assert not asked_for


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_stretches_that_would_leave_windows_empty_go_step_by_step() -> None:
    """JAX evaluates whole windows; no state is another one but for rounding and the tolerance."""
    with pm.Model() as model:
        pm.Normal("x", shape=4)
    metric, options = np.ones(4), {"jacobian": "secant", "curvature": 1.5, "step_size": 0.5}

    def run(window: int, draws: int) -> DataTree:
        sizes = {"draws": draws, "tune": 0, "steps_per_draw": 1, "chains": 2}
        return together(model, window=window, metric=metric, **sizes, **options)

    short, filled, by_steps = run(256, 63), run(256, 64), run(1, 64)
    assert (short.sample_stats["window"] == 1).all()
    assert (short.sample_stats["sweeps"] == 0).all()
    assert (filled.sample_stats["window"] == 256).all()
    assert (filled.sample_stats["sweeps"] > 0).all()
    x = by_steps.posterior["x"]
    np.testing.assert_array_equal(short.posterior["x"], x[:, :63])
    np.testing.assert_allclose(filled.posterior["x"], x, atol=1e-5)


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_the_windows_of_all_chains_fit_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One chain's do; those that run at the same time are made narrower, and the user is told.

    Such a run goes on with the arguments that it was begun with.
    """
    monkeypatch.setattr("pymc_deer.backends.base.available_cores", lambda: 4)
    monkeypatch.setattr(Solver, "blas_threads", lambda solver: 4)
    with pm.Model() as model:
        pm.Normal("x", shape=4)

    def run(free: float, chains: int, **where: Path) -> DataTree:
        monkeypatch.setattr("pymc_deer.backends.base.available_memory", lambda: free)
        options = {"window": 256, "jacobian": "secant", "curvature": 1.5, "draws": 40, "tune": 5}
        return together(model, chains=chains, **options, **where)

    step = KERNELS["mala"](model=model, foreseen=UNKNOWN, backend="jax", window=1)
    free = 4 * 256 * step.solver.bytes_per_state()
    alone = run(free, 1)
    assert alone.sample_stats.attrs["deer_window"] == 256
    expected = r"^Windows of 256 transitions of 4 chains do not fit"
    with pytest.warns(UserWarning, match=expected) as warned:
        found = run(free, 4, store=tmp_path / "run")
    assert [one.filename for one in warned] == [__file__]
    assert 8 <= found.sample_stats.attrs["deer_window"] < 256
    assert (found.sample_stats["window"] == found.sample_stats.attrs["deer_window"]).all()
    assert run(4 * free, 4).sample_stats.attrs["deer_window"] == 256
    drawn = found.posterior["x"].to_numpy()
    again = run(free, 4, resume=tmp_path / "run")
    np.testing.assert_array_equal(again.posterior["x"], drawn)


@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_no_windows_of_a_batch_are_tried_that_do_not_fit_in_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As on a GPU, where one chain's would."""
    windowed, tried = JaxSolver._windowed, set()

    def run(solver: JaxSolver, *arguments: Any) -> Any:
        tried.add(solver.plan.window)
        return windowed(solver, *arguments)

    monkeypatch.setattr(JaxSolver, "_windowed", run)
    monkeypatch.setattr(JaxSolver, "batches_chains", True)
    with pm.Model() as model:
        pm.Normal("x", shape=4)
    step = KERNELS["mala"](model=model, foreseen=UNKNOWN, backend="jax", window=1)
    free = 4 * 256 * step.solver.bytes_per_state()
    monkeypatch.setattr("pymc_deer.backends.base.available_memory", lambda: free)
    with pytest.warns(UserWarning, match=r"^Windows of 256 transitions of 4 chains do not fit"):
        found = together(model, chains=4, window=256, jacobian="secant", draws=40, tune=5)
    assert tried == {found.sample_stats.attrs["deer_window"]}
    assert 1 < max(tried) < 256
