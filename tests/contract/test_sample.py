"""DeerMALA and DeerHMC keep the contract of `pm.sample`."""

import copy
import multiprocessing
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pymc.sampling.parallel import ParallelSamplingError
from xarray import DataTree

from pymc_deer import DeerHMC, DeerMALA
from pymc_deer.examples import eight_schools
from pymc_deer.stats import STATS, STATS_DTYPES_SHAPES
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, FORKS, SEED, sample

NAMES = ("mu", "tau", "eta")

STEPWISE = pytest.mark.parametrize(
    ("backend", "sampler"),
    [pair for pair in (("jax", DeerMALA), ("numba", DeerHMC)) if pair[0] in BACKENDS],
)
"""Single steps of both samplers, and on both backends; windows are of the other pairs."""


@cache
def compiled_step(backend: str, sampler: type[DeerStep] = DeerMALA) -> DeerStep:
    """One instance for many runs, which PyMC allows: every run must begin anew."""
    with eight_schools():
        step = sampler(backend=backend, window=1)
    assert isinstance(step, sampler)
    return step


def draws_of(idata: DataTree, group: str = "posterior") -> dict[str, np.ndarray]:
    return {name: idata[group][name].to_numpy() for name in NAMES}


def assert_same_draws(one: DataTree, two: DataTree) -> None:
    for name, values in draws_of(one).items():
        assert_array_equal(values, draws_of(two)[name])


@STEPWISE
def test_inference_data(backend: str, sampler: type[DeerStep]) -> None:
    step = compiled_step(backend, sampler)
    idata = sample(step, discard_tuned_samples=False)

    for group, n_draws in (("posterior", 20), ("warmup_posterior", 30)):
        data = idata[group]
        assert data["mu"].dims == ("chain", "draw")
        assert data["eta"].dims == data["theta"].dims == ("chain", "draw", "school")
        assert data["eta"].shape == (2, n_draws, 8)
        assert list(data["school"].values) == list("ABCDEFGH")
        theta = data["mu"] + data["tau"] * data["eta"]
        assert_allclose(data["theta"].values, theta.values, rtol=1e-12)
        assert (data["tau"] > 0).all()

    # PyMC takes `tune` for the split into groups and keeps it to itself.
    recorded = [stat for stat in STATS if stat.name != "tune"]
    names = {"lp" if stat.name == "model_logp" else stat.name for stat in recorded}
    for group in ("sample_stats", "warmup_sample_stats"):
        stats = idata[group]
        assert set(map(str, stats.data_vars)) == names
        for stat in recorded:
            values = stats["lp" if stat.name == "model_logp" else stat.name]
            assert values.dtype == stat.dtype
            assert values.dims == ("chain", "draw")

    # What is recorded belongs together: lp is the model's logp at the recorded draw.
    logp = step.model.compile_logp(mode="FAST_COMPILE")
    first = idata["posterior"].isel(chain=1, draw=3)
    point = {
        "mu": first["mu"].values,
        "tau_log__": np.log(first["tau"].values),
        "eta": first["eta"].values,
    }
    assert_allclose(idata["sample_stats"]["lp"].values[1, 3], logp(point), rtol=1e-9)

    # Every tuned quantity is fixed once warm-up is over.
    for name in ("step_size", "curvature", "n_steps"):
        assert (np.ptp(idata["sample_stats"][name].values, axis=1) == 0).all()
    assert (np.ptp(idata["warmup_sample_stats"]["step_size"].values, axis=1) > 0).all()


@STEPWISE
def test_seed_determines_the_draws(backend: str, sampler: type[DeerStep]) -> None:
    step = compiled_step(backend, sampler)
    first = sample(step)
    assert_same_draws(first, sample(step))
    other = sample(step, random_seed=SEED + 1)
    # Neither another seed nor another chain repeats a single draw.
    chains = [set(d) for idata in (first, other) for d in idata["posterior"]["mu"].values]
    assert all(len(chain) > 2 for chain in chains)
    assert len(set.union(*chains)) == sum(map(len, chains))


def test_new_instance_gives_the_same_draws() -> None:
    with eight_schools():
        other = DeerMALA(backend="jax")
    assert_same_draws(sample(compiled_step("jax")), sample(other))


def test_more_chains_and_a_longer_run_begin_alike() -> None:
    step = compiled_step("jax")
    short, long = sample(step, chains=1), sample(step, chains=3, draws=25)
    for name, values in draws_of(short).items():
        assert_array_equal(values[0], draws_of(long)[name][0, :20])


# PyMC treats spawn as it does forkserver, but for the time it takes.
CONTEXTS = [
    pytest.param(backend, method, sampler, marks=pytest.mark.slow if method == "spawn" else [])
    for backend, method, sampler in (
        ("numba", "fork", DeerHMC),
        ("numba", "forkserver", DeerHMC),
        ("numba", "spawn", DeerMALA),
        ("jax", "forkserver", DeerMALA),
        ("jax", "spawn", DeerHMC),
    )
    if backend in BACKENDS
]


@pytest.mark.timeout(300)
@FORKS
@pytest.mark.parametrize(("backend", "method", "sampler"), CONTEXTS)
def test_processes_give_the_same_draws(backend: str, method: str, sampler: type[DeerStep]) -> None:
    if method not in multiprocessing.get_all_start_methods():
        pytest.skip(f"no {method} on this platform")
    step = compiled_step(backend, sampler)
    serial, parallel = sample(step), sample(step, cores=2, mp_ctx=method)
    assert_same_draws(serial, parallel)


@pytest.mark.timeout(120)
@pytest.mark.skipif("jax" not in BACKENDS, reason="about JAX")
@pytest.mark.skipif(
    "fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this platform"
)
@pytest.mark.parametrize("step_of", [lambda step: step, copy.copy], ids=["itself", "a copy"])
@FORKS
def test_forked_jax_fails_and_says_what_to_write(step_of: Callable[[DeerStep], DeerStep]) -> None:
    """A copy has nothing compiled yet: what it would compile in the fork hangs just as well."""
    with pytest.raises(
        ParallelSamplingError, match=r"mp_ctx='forkserver'.*cores=1.*backend='numba'"
    ):
        sample(step_of(compiled_step("jax")), cores=2, mp_ctx="fork")


@cache
def frozen_step() -> DeerMALA:
    """Steps too small to see: the draws show where chains start."""
    with eight_schools():
        step = DeerMALA(backend="jax", step_size=1e-12, metric=np.eye(10), steps_per_draw=1)
    assert isinstance(step, DeerMALA)
    return step


def test_chains_start_jittered_within_bounds() -> None:
    step = frozen_step()
    posterior = sample(step, chains=4, tune=0, draws=5)["posterior"].isel(draw=0)
    default = step.model.initial_point()
    starts = np.column_stack(
        [
            posterior["mu"].values - default["mu"],
            np.log(posterior["tau"].values) - default["tau_log__"],
            posterior["eta"].values - default["eta"],
        ]
    )
    assert (np.abs(starts) <= 1.0 + 1e-9).all()
    assert np.abs(starts).max() > 0.8
    for column in starts.T:
        assert len(np.unique(column)) == 4
    assert len(np.unique(starts[0])) == 10


def test_initial_values_are_respected() -> None:
    step = frozen_step()
    eta = np.arange(8.0)
    posterior = sample(step, tune=0, draws=5, initvals={"tau": 3.0, "eta": eta})["posterior"]
    assert_allclose(posterior["tau"].values, 3.0, rtol=1e-9)
    assert_allclose(posterior["eta"].values[:, 0], [eta, eta], atol=1e-9)
    # What was not given is jittered still.
    assert len(set(posterior["mu"].values[:, 0])) == 2
    assert (posterior["mu"].values != 0).all()


def test_initial_values_of_each_chain() -> None:
    step = frozen_step()
    initvals = [{"mu": 1.0}, {"mu": -2.0}]
    posterior = sample(step, tune=0, draws=5, initvals=initvals)["posterior"]
    assert_allclose(posterior["mu"].values[:, 0], [1.0, -2.0], atol=1e-9)


def test_var_names() -> None:
    idata = sample(compiled_step("jax"), var_names=["mu", "theta"], chains=1)
    assert set(map(str, idata["posterior"].data_vars)) == {"mu", "theta"}


@pytest.mark.parametrize("chains", [1, 2])
def test_without_tuning(chains: int) -> None:
    idata = sample(compiled_step("jax"), tune=0, draws=10, chains=chains)
    assert idata["posterior"]["mu"].shape == (chains, 10)
    assert np.isfinite(idata["posterior"]["theta"].values).all()
    assert len(np.unique(idata["posterior"]["mu"].values)) > 1
    assert "warmup_posterior" not in idata


def test_default_tuning_is_declared() -> None:
    step = compiled_step("jax")
    idata = sample(step, tune=None, draws=5, chains=1, discard_tuned_samples=False)
    assert idata["warmup_posterior"].sizes["draw"] == DeerMALA.default_tune_steps


@pytest.mark.parametrize(
    ("backend", "sampler"),
    [pair for pair in (("jax", DeerHMC), ("numba", DeerMALA)) if pair[0] in BACKENDS],
)
def test_windows(backend: str, sampler: type[DeerStep]) -> None:
    with eight_schools():
        step = sampler(backend=backend, window=16, jacobian="secant")
    idata = sample(step, chains=1)
    stats = idata["sample_stats"]
    assert (stats["window"] == 16).all()
    assert (stats["sweeps"] > 0).all()
    assert_same_draws(idata, sample(step, chains=1))


def test_callback_sees_every_draw() -> None:
    seen: list[tuple[int, int, bool]] = []

    def callback(trace: Any, draw: Any) -> None:
        seen.append((draw.chain, draw.draw_idx, draw.tuning))
        assert set(STATS_DTYPES_SHAPES) == set(draw.stats[0])

    sample(compiled_step("jax"), callback=callback, draws=5, tune=4)
    expected = [(chain, i, i < 4) for chain in range(2) for i in range(9)]
    assert seen == expected
