"""`pymc_deer.sample` with a store: the same groups and draws, whatever ends the process.

A kill is made in two ways: an exception that nothing catches, at each of the places where the disk
is half written; and SIGKILL, at random.
"""

import errno
import logging
import multiprocessing
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from typing import Any

import arviz_base
import numpy as np
import pandas as pd
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
import xarray as xr
from numpy.testing import assert_array_equal
from xarray import DataTree

import pymc_deer
from pymc_deer import store
from pymc_deer.chains import ensemble, plan
from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.examples import eight_schools
from pymc_deer.sampling import recorder, store_recorder
from pymc_deer.sampling.checkpoint import Checkpoint
from pymc_deer.sampling.store_recorder import StoreRecorder
from pymc_deer.status import ModelError, OptionError
from pymc_deer.store import DrawStore, _is_zarr_2, open_store
from tests.support import BACKENDS, SEED, Parabola, interrupt

pytestmark = [
    pytest.mark.skipif(
        "jax" not in BACKENDS, reason="models are compiled by JAX, but for one that takes both"
    ),
    pytest.mark.usefixtures("steps_made_once"),
]

ANY_ZARR = pytest.mark.any_zarr

TUNE, DRAWS = 30, 60

OPTIONS: dict[str, Any] = {
    "draws": DRAWS,
    "tune": TUNE,
    "chains": 2,
    "random_seed": SEED,
    "kernel": "mala",
    "backend": "jax",
    "window": 1,
    "discard_tuned_samples": False,
    "compute_convergence_checks": False,
    "quiet": True,
}

STOCHASTIC = {"window": 16, "jacobian": "stochastic", "curvature": 1.5, "tol": 1e-3}
"""Windows whose sweeps follow random probes, and leave their trace within a wide tolerance."""


@pytest.fixture
def many_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit after each stretch, and stretches of one call, as of a model that is slow."""
    commit_often(monkeypatch)


@pytest.fixture(autouse=True)
def short_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that short runs have many stretches; where calls end leaves a trace in the last bit."""
    shorten_calls(monkeypatch)


def shorten_calls(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(plan, "_LONGEST_CALL", 1)


def commit_often(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(store_recorder, "COMMIT_SECONDS", 0.0)
    patch.setattr(ensemble, "_MOST_NUMBERS", 1)


SCHOOLS = eight_schools()


def run(**changes: Any) -> DataTree:
    return pymc_deer.sample(**({"model": SCHOOLS} | OPTIONS | changes))


def resumed(path: Path, **changes: Any) -> DataTree:
    options = {"compute_convergence_checks": False, "quiet": True, "model": SCHOOLS}
    return pymc_deer.sample(resume=path, **(options | changes))


def assert_same(found: DataTree, expected: DataTree, n_draws: int | None = None) -> None:
    """All groups and variables, to the last bit; of the first draws if so many are given."""
    assert set(found.children) == set(expected.children)
    for group in expected.children:
        here, there = found[group].to_dataset(), expected[group].to_dataset()
        if n_draws is not None and "draw" in there.dims:
            here, there = (data.isel(draw=slice(None, n_draws)) for data in (here, there))
        # PyMC keeps statistics in a set, of another order in each process.
        in_order = sorted if "stats" in group else list
        assert in_order(map(str, here.variables)) == in_order(map(str, there.variables))
        for name in there.variables:
            assert here[name].dims == there[name].dims
            assert_array_equal(here[name].values, there[name].values)


class Killed(BaseException):
    """What nothing catches."""


@contextmanager
def killed_at(number: int, event: str | None = None) -> Iterator[list[str]]:
    """The process ends at the event of that number: as a file is replaced, or rows are written.

    Or at the next one that is named: ``rows``, or the name of the file.
    """
    events: list[str] = []
    killed = False
    replace, write = store.replace_file, DrawStore.write

    def dies_of(name: str) -> bool:
        nonlocal killed
        assert not killed, "what was killed goes on"
        events.append(name)
        killed = len(events) >= number and event in (None, name)
        return killed

    def replaced(path: Path, content: bytes) -> None:
        if dies_of(path.name):
            raise Killed
        replace(path, content)

    def written(self: DrawStore, group: str, first: int, columns: Any) -> None:
        if dies_of("rows"):
            write(self, group, first, {name: 0 * column for name, column in columns.items()})
            raise Killed
        write(self, group, first, columns)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("pymc_deer.store.replace_file", replaced)
        patch.setattr("pymc_deer.sampling.checkpoint.replace_file", replaced)
        patch.setattr(DrawStore, "write", written)
        yield events


def events_of(path: Path, **changes: Any) -> list[str]:
    """All events of a run."""
    with killed_at(10**9) as events:
        run(store=path, **changes)
    return events


@cache
def dated() -> pm.Model:
    """Coordinates and data of all types, and a matrix product."""
    days = pd.date_range("2024-01-01", periods=5)
    x = np.linspace(-1.0, 1.0, 15).reshape(5, 3)
    with pm.Model(coords={"day": days, "name": ["a", "bc", "d"], "i": [3, 1]}) as model:
        data, scale = pm.Data("x", x, dims=("day", "name")), pm.Data("scale", 2.0)
        beta = pm.Normal("beta", dims="name")
        mean = pm.Deterministic("mean", data @ beta, dims="day")
        pm.Dirichlet("weights", np.ones(2), dims="i")
        pm.Normal("y", mean, scale, observed=np.arange(5), dims="day")
    return model


@pytest.mark.usefixtures("many_commits")
@pytest.mark.parametrize(
    ("changes", "origin"),
    [
        ({}, 0),
        ({"discard_tuned_samples": True, "var_names": ["beta", "mean"], "chains": 1}, 1),
        (
            {
                "tune": 0,
                "idata_kwargs": {"dims": {"beta": ["letter"]}, "coords": {"letter": list("xyz")}},
            },
            0,
        ),
    ],
)
def test_a_store_holds_what_a_run_in_memory_returns(
    changes: dict[str, Any], origin: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same groups, variables in the same order, dims, coords, values, attributes.

    Also where ArviZ is told to count from another number.
    """
    monkeypatch.setitem(arviz_base.rcParams, "data.index_origin", origin)
    model = dated()
    expected = pymc_deer.sample(model=model, **(OPTIONS | changes))
    found = pymc_deer.sample(model=model, store=tmp_path / "run", **(OPTIONS | changes))
    assert_same(found, expected)
    for group in expected.children:
        names = ("created_at", "sampling_time")
        mine, its = found[group].attrs, expected[group].attrs
        assert mine.keys() == its.keys()
        for name in its:
            if name not in names and not name.startswith("deer_seconds"):
                assert mine[name] == its[name]
    assert found["posterior"]["mean"].dtype == float
    assert found["sample_stats"]["diverging"].dtype == bool
    assert found["observed_data"]["y"].dtype == expected["observed_data"]["y"].dtype


def test_a_store_has_no_draws_from_the_first_moment(tmp_path: Path, monkeypatch: Any) -> None:
    """None that is not written: memory that was others' is no draw."""
    seen = []

    def looked_at(path: Path, content: Any) -> None:
        replace(path, content)
        if path.name == ".zmetadata":
            seen.append(open_store(path.parent)["posterior"].sizes["draw"])

    replace = store._replace
    monkeypatch.setattr(store, "_replace", looked_at)
    pymc_deer.sample(model=dated(), store=tmp_path / "run", **OPTIONS)
    assert seen[0] == 0
    assert seen == sorted(seen)
    assert seen[-1] == OPTIONS["draws"]


@ANY_ZARR
def test_a_seed_of_any_size_goes_on(tmp_path: Path) -> None:
    place = tmp_path / "run"
    for seed in (2**100 + 1, [np.uint64(2**63), 5]):
        options = OPTIONS | {"random_seed": seed}
        pymc_deer.sample(model=dated(), store=place, **options)
        pymc_deer.sample(model=dated(), resume=place, **options)
        with pytest.raises(OptionError, match="the run was begun with random_seed="):
            pymc_deer.sample(model=dated(), resume=place, **(options | {"random_seed": 3}))
        shutil.rmtree(place)


def test_arguments_of_the_beginning_may_be_given_again(tmp_path: Path) -> None:
    """Those at their defaults, whatever was chosen for them, and a generator, which is not kept."""
    options = OPTIONS | {"noise": "auto", "backend": "auto", "window": "auto"}
    options["random_seed"] = np.random.default_rng(1)
    run = pymc_deer.sample(model=dated(), store=tmp_path, **options)
    again = pymc_deer.sample(model=dated(), resume=tmp_path, **options)
    xr.testing.assert_equal(again["posterior"].to_dataset(), run["posterior"].to_dataset())
    with pytest.raises(OptionError, match="the run was begun with window='auto', not 16"):
        pymc_deer.sample(model=dated(), resume=tmp_path, **(options | {"window": 16}))
    options["random_seed"] = np.random.SeedSequence(1)
    pymc_deer.sample(model=dated(), resume=tmp_path, **options)


def test_a_place_is_meant_where_it_is_given(tmp_path: Path, monkeypatch: Any) -> None:
    """Draws are read when they are used, and the process may be elsewhere by then."""
    runs = []
    for seed in (1, 2):
        (tmp_path / str(seed)).mkdir()
        monkeypatch.chdir(tmp_path / str(seed))
        runs.append(run(store="run", random_seed=seed))
    opened = open_store("run")
    monkeypatch.chdir(tmp_path)
    for seed, stored in zip((1, 2, 2), (*runs, opened), strict=True):
        expected = run(random_seed=seed)["posterior"]["theta"].to_numpy()
        assert_array_equal(stored["posterior"]["theta"].to_numpy(), expected)
    monkeypatch.setenv("HOME", str(tmp_path))
    at_home = resumed(Path("~/1/run"))
    assert_array_equal(at_home["posterior"]["mu"], runs[0]["posterior"]["mu"])


def test_dates_of_any_century_come_back_as_they_were(tmp_path: Path) -> None:
    coords = {
        "day": np.array(["1650-01-01", "9999-12-31"], "datetime64[s]"),
        "instant": np.array(["2020-01-01T00:00:00.000000001", "2020-01-02"], "datetime64[ns]"),
        "wait": np.array([1, 90], "timedelta64[s]"),
    }
    with pm.Model(coords=coords) as model:
        pm.Normal("x", dims=tuple(coords))
    stored = run(model=model, store=tmp_path / "run")["posterior"]
    in_memory = run(model=model)["posterior"]
    for name in coords:
        assert stored[name].dtype == in_memory[name].dtype
        assert_array_equal(stored[name], in_memory[name])


def test_what_is_written_to_draws_that_were_read_stays_in_memory(tmp_path: Path) -> None:
    stored = run(store=tmp_path / "run")["posterior"]["mu"]
    before = stored.to_numpy().copy()
    stored[0, 0] = 5.0
    assert stored[0, 0] == 5.0
    assert_array_equal(open_store(tmp_path / "run")["posterior"]["mu"], before)


def test_a_run_that_cannot_begin_leaves_its_place_empty(tmp_path: Path, monkeypatch: Any) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(StoreRecorder, "_write_and_commit", full)
        with pytest.raises(OSError, match="No space left"):
            run(store=tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["lock"]
    run(store=tmp_path / "run")


def test_an_interrupt_of_the_first_commit_leaves_the_place_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody else is at work there when it is cleared."""

    def interrupted(*_: Any) -> None:
        assert threading.current_thread() is threading.main_thread()
        raise KeyboardInterrupt

    monkeypatch.setattr(Checkpoint, "save", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run(store=tmp_path / "run")
    assert [file.name for file in (tmp_path / "run").iterdir()] == ["lock"]


@pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")
def test_zarr_packs_no_rows_where_an_interrupt_could_break_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taken in the main thread, the lock of numcodecs' Blosc may never be given back."""
    import zarr

    packed, write = [], zarr.Array.__setitem__

    def written(array: Any, *args: Any) -> None:
        packed.append(threading.current_thread())
        write(array, *args)

    monkeypatch.setattr(zarr.Array, "__setitem__", written)
    with pm.Model() as model:
        # Whose draws are recorded in the main thread, as an Op in Python has it.
        pm.Deterministic("square", Parabola()(pm.Normal("x")))
    pymc_deer.sample(model=model, store=tmp_path / "run", **(OPTIONS | {"backend": "numba"}))
    assert packed
    assert threading.main_thread() not in packed


def test_the_numbers_of_draws_are_written_in_pieces(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(store, "_ROWS_OF_COORDINATE", 25)
    stored = run(store=tmp_path / "run")
    assert_array_equal(stored["posterior"]["draw"], np.arange(DRAWS))
    assert len(list((tmp_path / "run" / "posterior" / "draw").glob("[0-9]*"))) == -(-DRAWS // 25)


def test_of_two_processes_one_begins_a_run(tmp_path: Path, monkeypatch: Any) -> None:
    """The other one found nothing there, and has the place when the run has ended."""
    place, locked = tmp_path / "run", store_recorder._locked

    def meanwhile(path: Path, where: str) -> Any:
        (path / "checkpoint.npz").write_bytes(b"")
        return locked(path, where)

    monkeypatch.setattr(store_recorder, "_locked", meanwhile)
    with pytest.raises(OptionError, match="there is a run already"):
        pymc_deer.sample(model=dated(), store=place, **OPTIONS)


@pytest.mark.skipif(_is_zarr_2(), reason="xarray reads by zarr 3, PyMC's ZarrTrace by zarr 2")
def test_xarray_opens_a_store_while_it_runs(tmp_path: Path, monkeypatch: Any) -> None:
    commit_often(monkeypatch)
    lengths = []
    commit = StoreRecorder.commit

    def looked_at(self: StoreRecorder) -> None:
        commit(self)
        idata = xr.open_datatree(tmp_path / "run", engine="zarr")
        lengths.append(idata["warmup_posterior"].sizes["draw"])

    monkeypatch.setattr(StoreRecorder, "commit", looked_at)
    found = run(store=tmp_path / "run")
    assert 0 in lengths
    assert any(0 < length < TUNE for length in lengths)
    assert_same(xr.open_datatree(tmp_path / "run", engine="zarr"), found)


KINDS: dict[str, dict[str, Any]] = {
    "step by step": {"steps_per_draw": 20},
    "HMC": {"kernel": "hmc", "metric": "low_rank"},
    "windows": STOCHASTIC,
}


@pytest.mark.usefixtures("many_commits")
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_anywhere_goes_on_as_if_it_had_not_been(kind: str, tmp_path: Path) -> None:
    changes = KINDS[kind]
    events = events_of(tmp_path / "whole", **changes)
    whole = open_store(tmp_path / "whole")
    assert len(np.unique(whole["posterior"]["mu"])) > DRAWS / 2
    first = first_of_run(events)
    assert {"rows", "checkpoint.npz", ".zmetadata"} <= set(events[first:])
    path = tmp_path / "once"
    with pytest.raises(Killed), killed_at(np.random.default_rng(SEED).integers(first, len(events))):
        run(store=path, **changes)
    assert_committed(path, whole)
    assert_same(resumed(path), whole)
    # Again and again, each time later. A run that goes on writes as many files at first.
    path, later = tmp_path / "often", (len(events) - 2 * first) // 5
    for number, event in enumerate(("rows", "checkpoint.npz", ".zmetadata", "rows")):
        with pytest.raises(Killed), killed_at(first + later, event):
            resumed(path) if number else run(store=path, **changes)
        assert_committed(path, whole)
    assert_same(resumed(path), whole)


def first_of_run(events: list[str]) -> int:
    """Number of the first event behind the first checkpoint: before it there is no run."""
    return events.index("checkpoint.npz") + 2


def assert_committed(path: Path, whole: DataTree) -> None:
    """What readers see of a killed run is what its checkpoint has, or less by one commit."""
    seen = open_store(path)
    for group, n_done in zip(
        ("warmup_posterior", "posterior"), Checkpoint.load(path).n_done, strict=True
    ):
        n_seen = seen[group].sizes["draw"]
        assert n_seen <= n_done
        for name, values in whole[group].data_vars.items():
            assert_array_equal(seen[group][name], values[:, :n_seen])


@pytest.mark.skipif("numba" not in BACKENDS, reason="Numba is not under test")
@pytest.mark.usefixtures("many_commits")
def test_a_run_of_numba_goes_on_as_well(tmp_path: Path) -> None:
    events = events_of(tmp_path / "whole", backend="numba")
    whole = open_store(tmp_path / "whole")
    path = tmp_path / "killed"
    with pytest.raises(Killed), killed_at(first_of_run(events) + 7):
        run(store=path, backend="numba")
    with pytest.raises(Killed), killed_at(len(events) // 2, "rows"):
        resumed(path)
    assert_same(resumed(path), whole)


@pytest.mark.parametrize("changes", [{}, {"kernel": "hmc", "metric": "low_rank"}], ids=["", "HMC"])
def test_a_run_goes_on_to_more_draws(
    changes: dict[str, Any], tmp_path: Path, monkeypatch: Any
) -> None:
    """To those of a run that was begun with as many, also where it had not come to its own end."""
    whole = run(draws=3 * DRAWS, **changes)
    ended, broken = tmp_path / "ended", tmp_path / "broken"
    run(store=ended, **changes)
    with monkeypatch.context() as patch:
        interrupt(patch, 4)
        run(store=broken, **changes)
    for path in (ended, broken):
        assert_same(resumed(path, draws=3 * DRAWS), whole)
        assert_same(resumed(path), whole)
        files = list((path / "posterior" / "mu").glob("[0-9]*"))
        assert len(files) == 1, "as many as the draws fill"
    with arviz_base.rc_context({"data.index_origin": 1}):
        run(store=tmp_path / "from 1", **changes)
    numbers = resumed(tmp_path / "from 1", draws=DRAWS + 5)["posterior"]["draw"]
    assert_array_equal(numbers, 1 + np.arange(DRAWS + 5))


def test_a_run_that_keeps_no_warmup_goes_on_to_more_draws_of_what_it_records(
    tmp_path: Path,
) -> None:
    options = {"discard_tuned_samples": False, "idata_kwargs": {"include_transformed": True}}
    for number, changes in enumerate(
        ({"discard_tuned_samples": True, "var_names": ["mu"]}, options)
    ):
        path = tmp_path / str(number)
        run(store=path, **changes)
        assert_same(resumed(path, draws=DRAWS + 20), run(draws=DRAWS + 20, **changes))


@pytest.mark.parametrize("noise", ["host", "device"])
def test_an_interrupted_run_is_returned_and_goes_on(
    noise: str, tmp_path: Path, monkeypatch: Any
) -> None:
    whole = run(noise=noise)
    with monkeypatch.context() as patch:
        interrupt(patch, 10)
        part = run(store=tmp_path, noise=noise)
    n = part["warmup_posterior"].sizes["draw"]
    assert 0 < n < TUNE
    assert part["posterior"].sizes["draw"] == 0
    assert_array_equal(part["warmup_posterior"]["mu"], whole["warmup_posterior"]["mu"][:, :n])
    assert_same(resumed(tmp_path), whole)
    # Nothing is left to do.
    assert_same(resumed(tmp_path), whole)


def test_an_interrupted_run_in_windows_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    """As from a GPU, on which stretches of draws are several calls: cuts are where they were."""
    from pymc_deer.backends.jax import JaxSolver

    monkeypatch.setattr("pymc_deer.chains.plan.SHORTEST_CALL", 1)
    solve, sizes = Ensemble.next_stretch, []

    def noted(ensemble: Ensemble, params: Any) -> Any:
        found = solve(ensemble, params)
        sizes.append(len(found[0].trajectory))
        return found

    options = {"backend": "jax", "window": 4, "steps_per_draw": 1, "tune": 20, "draws": 150}
    # As many as it takes: where windows are narrowed follows from the calls.
    options |= {"max_sweeps": 4}
    with monkeypatch.context() as patch:
        patch.setattr(Ensemble, "next_stretch", noted)
        in_turn = run(**options)
        # Calls of four windows.
        assert max(sizes) == 16
        patch.setattr(JaxSolver, "overlaps", True)
        sizes.clear()
        whole = run(**options)
        assert sizes.count(64) == 2
    for name in in_turn["posterior"]:
        assert_array_equal(whole["posterior"][name], in_turn["posterior"][name])
    monkeypatch.setattr(JaxSolver, "overlaps", True)
    with monkeypatch.context() as patch:
        interrupt(patch, len(sizes) - 1)
        part = run(store=tmp_path, **options)
    assert part["posterior"].sizes["draw"] == 64
    assert_same(resumed(tmp_path), whole)


def mean_of(total: str = "total", shape: int = 1, dim: str = "abc") -> pm.Model:
    with pm.Model(coords={"k": list(dim)}) as model:
        b = pm.Normal("b", dims="k")
        if total:
            pm.Deterministic(total, pt.repeat(b.sum(), shape))
        pm.Normal("y", b.sum(), pm.HalfNormal("s"), observed=np.linspace(-1.0, 2.0, 20))
    return model


def test_a_run_whose_backend_was_chosen_for_it_goes_on(tmp_path: Path, monkeypatch: Any) -> None:
    """To look at a gradient's work, which the choice goes by, changes nothing of the gradient."""
    options = {"model": mean_of(), "backend": "auto"}
    whole = run(**options)
    assert_same(run(model=mean_of()), whole)
    with monkeypatch.context() as patch:
        interrupt(patch, 10)
        run(store=tmp_path, **options)
    assert_same(resumed(tmp_path, model=mean_of()), whole)


def test_a_run_goes_on_with_what_it_records(tmp_path: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 5)
        run(store=tmp_path, model=mean_of())
    for model, told in (
        (mean_of(""), r"recorded values total \(1,\), not none"),
        (mean_of("sum"), r"recorded values total \(1,\), not sum \(1,\)"),
        (mean_of(shape=3), r"recorded values total \(1,\), not total \(3,\)"),
        (mean_of(dim="abd"), "other data in the coordinates of k"),
    ):
        with pytest.raises(ModelError, match=told):
            resumed(tmp_path, model=model)


@ANY_ZARR
def test_a_run_that_had_ended_shows_no_progress(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """There would be a row of zeros."""
    run(store=tmp_path, quiet=False, progressbar=True)
    assert capfd.readouterr().out.strip()
    resumed(tmp_path, quiet=False, progressbar=True)
    assert not capfd.readouterr().out.strip()


@ANY_ZARR
@pytest.mark.parametrize("precisions", [("float64", "float32"), ("float32", "float64")])
def test_a_run_does_not_go_on_in_another_precision(
    tmp_path: Path, monkeypatch: Any, precisions: tuple[str, str]
) -> None:
    """Whether the model is made anew in it, or only sampled in it."""

    def counts() -> pm.Model:
        with pm.Model() as model:
            pm.Bernoulli("y", logit_p=pm.Normal("b"), observed=np.array([0, 1, 1]))
        return model

    then, now = precisions
    with pytensor.config.change_flags(floatX=then), monkeypatch.context() as patch:
        model = counts()
        interrupt(patch, 5)
        run(store=tmp_path, model=model)
    told = rf"the run is in {then}, and this model in {now}\. .*floatX = '{then}'"
    with pytensor.config.change_flags(floatX=now):
        # What is of float64 stays so, whatever is set.
        for other in (counts(), *([model] if now == "float64" else [])):
            with pytest.raises(ModelError, match=told):
                resumed(tmp_path, model=other)
    with pytensor.config.change_flags(floatX=then):
        assert resumed(tmp_path, model=model)["posterior"]["b"].dtype == then


def test_draws_whose_file_is_lost_are_not_made_up(tmp_path: Path, monkeypatch: Any) -> None:
    with monkeypatch.context() as patch:
        interrupt(patch, 10)
        patch.setattr(recorder, "_BLOCK_BYTES", 2000)
        idata = run(store=tmp_path)
    mu = idata["warmup_posterior"]["mu"]
    whole = mu.values
    tau = idata["warmup_posterior"]["tau"].to_numpy()
    files = (tmp_path / "warmup_posterior" / "mu").glob("0.*")
    last = max(files, key=lambda file: int(file.name.split(".")[1]))
    last.rename(tmp_path / "elsewhere")
    assert_array_equal(mu[:, 0], whole[:, 0])
    assert_array_equal(open_store(tmp_path)["warmup_posterior"]["tau"], tau)
    for read in (lambda: mu.values, lambda: mu[:, -1].values, lambda: mu[:, 1::3].values):
        with pytest.raises(OptionError, match=f"{last.name} is not there any more"):
            read()
    with pytest.raises(OptionError, match=f"{last.name} is not there any more"):
        resumed(tmp_path)
    (tmp_path / "elsewhere").rename(last)
    assert_array_equal(mu, whole)
    assert_same(resumed(tmp_path), run())


def test_draws_of_another_run_are_not_taken_for_those_of_one_that_is_lost(tmp_path: Path) -> None:
    """Its directory has been given to the other."""
    place = tmp_path / "run"
    first = run(store=place)["posterior"]["mu"]
    shutil.rmtree(place)
    with pytest.raises(OptionError, match="run is not there any more: the draws"):
        _ = first.values
    second = run(store=place, random_seed=SEED + 1)["posterior"]["mu"]
    for read in (lambda: first.values, lambda: first[:, 1::3].values, lambda: first[0, 0].values):
        with pytest.raises(OptionError, match="run belongs to another run now"):
            read()
    assert_array_equal(second, run(random_seed=SEED + 1)["posterior"]["mu"])
    # Whoever has moved a run is asked for its new place, and it goes on there.
    place.rename(tmp_path / "moved")
    assert_same(resumed(tmp_path / "moved"), run(random_seed=SEED + 1))


@pytest.mark.usefixtures("many_commits")
@pytest.mark.parametrize(
    ("other", "told"), [(False, "is not there any more"), (True, "belongs to another run now")]
)
@pytest.mark.parametrize("discards", [False, True])
def test_a_run_whose_place_is_gone_says_so(
    other: bool, told: str, discards: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In warm-up too, of which there may be no rows; what another run has there stays its own."""
    place, commit, n_commits = tmp_path / "run", DrawStore.commit, []

    def lost(store: DrawStore, *args: Any) -> None:
        commit(store, *args)
        n_commits.append(1)
        if len(n_commits) == 3:
            shutil.rmtree(place)
            if other:
                run(store=place)

    monkeypatch.setattr(DrawStore, "commit", lost)
    with pytest.raises(OptionError, match=f"run {told}"):
        run(store=place, discard_tuned_samples=discards)
    assert place.exists() == other
    if other:
        assert_same(open_store(place), run())
        assert_same(resumed(place), run())


@ANY_ZARR
@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EIO])
def test_a_file_system_without_locks_takes_runs(
    number: int, tmp_path: Path, monkeypatch: Any
) -> None:
    fcntl = pytest.importorskip("fcntl")

    def flock(*_: Any) -> None:
        raise OSError(number, "said by the system")

    monkeypatch.setattr(fcntl, "flock", flock)
    if number == errno.EIO:
        with pytest.raises(OptionError, match=r"cannot be made there: .* said by the system"):
            run(store=tmp_path / "run")
    else:
        whole = run(store=tmp_path / "run")
        assert_same(resumed(tmp_path / "run"), whole)


@pytest.mark.usefixtures("many_commits")
def test_a_copy_without_hidden_files_of_arrays_goes_on(tmp_path: Path) -> None:
    """But for the one of which readers know the draws, they follow from it."""
    whole = run()
    with pytest.raises(Killed), killed_at(60):
        run(store=tmp_path / "run")
    hidden = [file for file in tmp_path.rglob(".z*") if file.name != ".zmetadata"]
    assert len(hidden) > 10
    for file in hidden:
        file.unlink()
    assert_same(resumed(tmp_path / "run"), whole)
    assert all(file.exists() for file in hidden)


@ANY_ZARR
def test_names_to_record_may_be_given_again_in_any_order(tmp_path: Path) -> None:
    names = {"mu", "tau", "theta"}
    run(store=tmp_path / "run", var_names=names)
    for again in (names, ["theta", "mu", "tau"]):
        assert set(names) <= set(resumed(tmp_path / "run", var_names=again)["posterior"].data_vars)
    with pytest.raises(OptionError, match="begun with var_names"):
        resumed(tmp_path / "run", var_names={"mu", "tau"})


@ANY_ZARR
@pytest.mark.parametrize("shape", ["variances", "covariance"])
def test_a_metric_that_was_given_is_given_again_or_left_out(shape: str, tmp_path: Path) -> None:
    variances = np.linspace(0.5, 1.5, 10)
    metric = variances if shape == "variances" else np.diag(variances)
    whole = run(store=tmp_path / "run", metric=metric)
    assert_same(resumed(tmp_path / "run", metric=metric.copy()), whole)
    assert_same(resumed(tmp_path / "run"), whole)
    for other in (2 * metric, metric[:1], "diag"):
        with pytest.raises(OptionError, match="was begun with metric=array"):
            resumed(tmp_path / "run", metric=other)


@ANY_ZARR
def test_no_metric_is_given_to_a_run_that_adapts_it(tmp_path: Path) -> None:
    run(store=tmp_path / "run", metric="diag")
    with pytest.raises(OptionError, match="was begun with metric='diag', not array"):
        resumed(tmp_path / "run", metric=np.ones(10))


@ANY_ZARR
def test_a_stored_run_says_how_long_it_took(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="pymc"):
        run(store=tmp_path / "run", quiet=False, progressbar=False)
    told = f"Sampling 2 chains for {TUNE} tune and {DRAWS} draw iterations ({2 * TUNE} + "
    assert any(message.startswith(told) for message in caplog.messages)


@ANY_ZARR
@pytest.mark.parametrize("kind", ["step by step", "windows"])
def test_where_stretches_end_leaves_no_trace(kind: str, monkeypatch: Any) -> None:
    """The clock decides it, so a run that is repeated ends them elsewhere."""
    # Calls so short that the pieces of warm-up take several.
    monkeypatch.setattr("pymc_deer.chains.plan.SHORTEST_CALL", 32)
    solve, lengths = Ensemble.next_stretch, []

    def noted(ensemble: Ensemble, params: Any) -> Any:
        found = solve(ensemble, params)
        lengths[-1].append(len(found[0]))
        return found

    monkeypatch.setattr(Ensemble, "next_stretch", noted)
    rng = np.random.default_rng(SEED)
    runs = []
    for most in (2, 9):
        allowed = partial(rng.integers, 1, most)
        monkeypatch.setattr("pymc_deer.backends.pace.Pace.allows", lambda *_, a=allowed: int(a()))
        lengths.append([])
        runs.append(run(**({"tune": 100, "steps_per_draw": 7} | KINDS[kind])))
    # Windows are as many in each call, whatever the clock says.
    assert (lengths[0] == lengths[1]) == (kind == "windows")
    assert_same(*runs)


@pytest.mark.usefixtures("many_commits")
def test_a_checkpoint_does_not_grow_with_the_draws(tmp_path: Path, monkeypatch: Any) -> None:
    sizes = []
    save = Checkpoint.save

    def weighed(self: Checkpoint, path: Path) -> None:
        save(self, path)
        if self.n_done[1] > 100:
            sizes.append((path / "checkpoint.npz").stat().st_size)

    monkeypatch.setattr(Checkpoint, "save", weighed)
    run(store=tmp_path, draws=2000)
    assert len(sizes) > 20
    # What it says of how the chain mixes is 20 to 40 means.
    assert max(sizes[len(sizes) // 2 :]) < 1.1 * max(sizes[: len(sizes) // 2])


def child(path: str, options: dict[str, Any] | None) -> None:
    """Makes a run with these options, or goes on with one, in small blocks, until it is killed."""
    with pytest.MonkeyPatch.context() as patch:
        shorten_calls(patch)
        commit_often(patch)
        if options is None:
            resumed(Path(path))
        else:
            run(store=path, **options)


def kill_often(path: Path, n_kills: int, **options: int) -> None:
    """A run is killed and taken up so many times, each time behind a block that it had not had."""
    rng = np.random.default_rng(SEED)
    context = multiprocessing.get_context("forkserver")
    whole = run(**options)
    # Where the kills come, in draws, warm-up included.
    targets = np.sort(rng.integers(1, int(0.9 * sum(options.values())), n_kills))
    for number, target in enumerate(targets):
        process = context.Process(target=child, args=(str(path), None if number else options))
        process.start()
        finished = 0
        while finished < target:
            alive = process.is_alive()
            if Checkpoint.exists(path):
                finished = sum(Checkpoint.load(path).n_done)
            assert alive or finished >= target
            time.sleep(0.01 * rng.random())
        process.kill()
        process.join()
        assert sum(Checkpoint.load(path).n_done) >= finished
        assert_committed(path, whole)
    assert_same(resumed(path), whole)


@pytest.mark.timeout(300)
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_process_killed_at_random_loses_no_block(tmp_path: Path) -> None:
    kill_often(tmp_path / "run", 1, tune=50, draws=600)


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.skipif(sys.platform == "win32", reason="no SIGKILL")
def test_a_process_killed_twenty_times_loses_no_block(tmp_path: Path) -> None:
    kill_often(tmp_path / "run", 20, tune=100, draws=3000)


def test_convergence_is_checked_on_some_of_the_draws(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: Any
) -> None:
    looked_at: list[DataTree] = []
    check: Callable[..., Any] = pymc_deer.sampling.inference_data.run_convergence_checks

    def spy(idata: DataTree, model: pm.Model) -> Any:
        looked_at.append(idata)
        return check(idata, model)

    monkeypatch.setattr("pymc_deer.sampling.inference_data.run_convergence_checks", spy)
    # Steps so long that many are divergent.
    changes = {
        "step_size": 1.0,
        "tune": 0,
        "draws": 9000,
        "metric": np.eye(10),
        "steps_per_draw": 1,
    }
    checks = {"compute_convergence_checks": True, "quiet": False, "progressbar": False}
    idata = run(store=tmp_path, **changes, **checks)
    n_divergent = int(idata["sample_stats"]["diverging"].sum())
    assert n_divergent > 100
    assert f"There were {n_divergent} divergences" in caplog.text
    [checked] = looked_at
    assert checked["posterior"].sizes["draw"] == 3000


def regression(
    sign: float = 1.0, names: str = "ab", dim: str = "i", turn: complex = 1j, step: int = 1
) -> pm.Model:
    """From 0, where logp says nothing of the covariates, which are no data of the model's."""
    covariates = sign * np.random.default_rng(0).normal(size=(20, 2))
    with pm.Model(coords={"i": [0, 1], "j": [0, 1]}) as model:
        coefficients = {name: pm.Normal(name, dims=dim) for name in names}
        pm.Normal(
            "y", covariates @ (coefficients["a"] + 2 * coefficients["b"]), observed=[1.0] * 20
        )
        pm.Deterministic("turned", turn * (coefficients["a"] + [1.0, 2.0])[::step])
    return model


@ANY_ZARR
def test_models_that_are_alike_where_the_run_began_are_told_apart(tmp_path: Path) -> None:
    starts = {"a": np.zeros(2), "b": np.zeros(2)}
    place, model = tmp_path / "run", regression()
    pymc_deer.sample(model=model, store=place, initvals=starts, **OPTIONS)
    pymc_deer.sample(model=model, resume=place, **OPTIONS)
    changes: dict[str, dict[str, Any]] = {
        "another gradient": {"sign": -1.0},
        r"variables a \(2,\), b \(2,\), not b \(2,\), a \(2,\)": {"names": "ba"},
        "other data in the dims of a, the dims of b": {"dim": "j"},
    }
    for told, changed in changes.items():
        with pytest.raises(ModelError, match=told):
            pymc_deer.sample(model=regression(**changed), resume=place, **OPTIONS)
    for changed in ({"turn": -1j}, {"step": -1}):
        with pytest.raises(ModelError, match="other values of turned"):
            pymc_deer.sample(model=regression(**changed), resume=place, **OPTIONS)


@pytest.mark.filterwarnings("ignore:Duplicate dimension names:UserWarning")
def test_two_axes_may_have_one_dim(tmp_path: Path) -> None:
    """A correlation matrix has its variables twice, and xarray warns of that."""
    with pm.Model(coords={"name": ["a", "b", "c"]}) as model:
        near = pm.Data("near", np.eye(3), dims=("name", "name"))
        x = pm.Normal("x", dims="name")
        pm.Deterministic("products", x[:, None] * x, dims=("name", "name"))
        pm.Normal("y", near @ x, observed=np.ones(3), dims="name")
    in_memory = pymc_deer.sample(model=model, **OPTIONS)
    stored = pymc_deer.sample(model=model, store=tmp_path / "run", **OPTIONS)
    assert_same(stored, in_memory)
    assert stored["posterior"]["products"].shape[2:] == (3, 3)


def test_groups_without_variables_are_groups(tmp_path: Path) -> None:
    with pm.Model() as model:
        pm.Normal("x")
    in_memory = pymc_deer.sample(model=model, **OPTIONS)
    stored = pymc_deer.sample(model=model, store=tmp_path / "run", **OPTIONS)
    assert list(stored.children) == list(in_memory.children)


def test_arrays_without_elements_are_stored(tmp_path: Path) -> None:
    with pm.Model(coords={"none": []}) as model:
        pm.Data("empty", np.zeros(0), dims="none")
        pm.Deterministic("nothing", pm.Normal("x") * np.zeros(0))
    in_memory = pymc_deer.sample(model=model, **OPTIONS)
    stored = pymc_deer.sample(model=model, store=tmp_path / "run", **OPTIONS)
    assert_same(stored, in_memory)
    assert stored["posterior"]["nothing"].shape == (2, DRAWS, 0)
