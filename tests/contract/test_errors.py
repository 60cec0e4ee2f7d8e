"""What a user is told when something is wrong: every row of docs/errors.md, and nothing else.

Each row of the page's tables of errors has a case here, under the row's own words, that makes the
mistake; the error must be of the row's class and say what the row says.
"""

import os
import re
import shutil
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, fields
from functools import cache, partial
from inspect import signature
from io import IOBase
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import jax
import numpy as np
import pymc as pm
import pymc.dims as pmd
import pytensor
import pytensor.tensor as pt
import pytest
import scipy.sparse
from jax.sharding import Mesh
from pymc.distributions.mixture import MixtureTransformWarning
from pymc.exceptions import ImputationWarning
from pymc.step_methods.compound import CompoundStep
from pytensor.graph.op import Op
from pytensor.link.numba.dispatch.basic import numba_funcify
from pytensor.sparse import structured_dot
from xarray import DataArray, DataTree

import pymc_deer
from pymc_deer import DeerHMC, examples, plots
from pymc_deer.backends import jax_process
from pymc_deer.backends.mesh import AskedDevices
from pymc_deer.density import _Prepared
from pymc_deer.options import Options
from pymc_deer.sampling.arguments import INSTEAD, OWN
from pymc_deer.sampling.plain import packed
from pymc_deer.sampling.shared_step import KERNELS
from pymc_deer.step import DeerStep
from pymc_deer.store import open_store
from tests.support import SAMPLERS, Opaque, hide_package, one_variable, sample

pytestmark = pytest.mark.usefixtures("steps_made_once")

ONE_VARIABLE = one_variable()
"""Of runs that share their steps: no mistake changes it."""


PAGE = Path(__file__).parents[2] / "docs" / "errors.md"

PLACEHOLDER = r"\b(?!JAX\b|NUTS\b)[A-Z]+\b|\.\.\."
"""Words in capitals, which stand for the user's values, and what the page leaves out."""


@dataclass(frozen=True)
class Row:
    """A row of the page: the mistake, the class of the error, its message."""

    mistake: str
    error: str
    message: str

    @property
    def samplers(self) -> tuple[type[DeerStep], ...]:
        """The one that the mistake is of, or each where the message names it."""
        of = [s for s in SAMPLERS if self.mistake.startswith(f"`{s.__name__}`")]
        return tuple(of) or (SAMPLERS if "DeerMALA" in self.message else ())

    def pattern(self, sampler: type[DeerStep]) -> str:
        """What this sampler's message must match, from end to end."""
        told = self.message.replace("DeerMALA", sampler.__name__)
        return rf"(?s)\A{'.+'.join(map(re.escape, re.split(PLACEHOLDER, told)))}\Z"


def rows() -> dict[str, Row]:
    """The page's rows by mistake: those of the tables whose columns are those of errors."""
    lines = PAGE.read_text().splitlines()
    tables = [i for i, line in enumerate(lines) if line == "| mistake | error | message | remedy |"]
    found = {}
    for first in tables:
        for line in lines[first + 2 :]:
            if not line.startswith("|"):
                break
            mistake, error, message, _ = (cell.strip() for cell in line.strip("| ").split(" | "))
            name = error.split("`")[1]
            found[mistake] = Row(mistake, name, message.removeprefix("`").removesuffix("`"))
    return found


Trigger = Callable[[type[DeerStep], pytest.MonkeyPatch], object]


def made(build: Callable[[], pm.Model] = one_variable, **arguments: Any) -> Trigger:
    """Making the step is the mistake."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with build():
            return sampler(**{"backend": "jax", "window": 1, **arguments})

    return trigger


def model_of(build: Callable[[], object]) -> Callable[[], pm.Model]:
    """A model that `build` fills, when it is asked for."""

    def model() -> pm.Model:
        with pm.Model() as made:
            build()
        return made

    return model


def no_second_derivative() -> None:
    """That of a concentration is a function whose derivative PyMC does not have."""
    pm.VonMises("y", 0, pm.HalfNormal("x"), observed=np.ones(2))


def each(name: str, *values: Any, **arguments: Any) -> tuple[Trigger, ...]:
    """Every one of these values of an argument is the mistake."""
    return tuple(made(**{name: value}, **arguments) for value in values)


NOT_POSITIVE = (0.0, -1.0, float("nan"), float("inf"), "0.1", True, 10**400)
NOT_COUNTS = (0, -3, 2.0, float("nan"), True, "many", [8], 10**400, 10**5000)
SAMPLE = {"chains": 1, "cores": 1, "tune": 1, "draws": 1}


def steps_from(build: Callable[[], pm.Model], **changes: Any) -> Trigger:
    """The mistake shows at the first draw, from the initial point with these changes."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with build() as model:
            step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        step.setup_chain(np.random.default_rng(0), 0, 5)
        return step.step({**model.initial_point(), **changes})

    return trigger


def sampled(**arguments: Any) -> Trigger:
    """Arguments of pm.sample are the mistake."""

    return lambda sampler, _: sample(step_of_one_variable(sampler), **arguments)


@cache
def step_of_one_variable(sampler: type[DeerStep]) -> Any:
    with ONE_VARIABLE:
        return sampler(backend="jax", window=1)  # type: ignore[call-arg]


def steps_from_initvals(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model():
        pm.Normal("x", shape=2)
        return sample(sampler(backend="jax", window=1), initvals={"x": np.ones(3)})  # type: ignore[call-arg]


def step_class(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with one_variable():
        return pm.sample(step=sampler, **SAMPLE)


def outside_a_model(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    return sampler()  # type: ignore[call-arg]


def dense_in_little_memory(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    patch.setattr("pymc_deer.backends.base.available_memory", lambda: 1e9)
    with pm.Model():
        pm.Normal("x", shape=5000)
        return sampler(backend="jax", window=1, metric="dense")  # type: ignore[call-arg]


def with_noise() -> None:
    pm.Deterministic("noisy", pm.Normal("x") + pm.Normal.dist())


def missing_backend(name: str) -> Trigger:
    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        hide_package(patch, name)
        with one_variable():
            return sampler(backend=name)  # type: ignore[call-arg]

    return trigger


def forked(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    with one_variable() as model:
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
    patch.setattr(jax_process, "os", SimpleNamespace(getpid=lambda: -1))
    return step.step(model.initial_point())


def without_scikit_learn(_: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    patch.setitem(sys.modules, "sklearn.datasets", None)
    return examples.breast_cancer()


def data_of_another_shape(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model() as model:
        data = pm.Data("data", np.zeros(3))
        pm.Normal("y", pm.Normal("x"), observed=data)
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        pm.set_data({"data": np.zeros(4)})
    return step.step(model.initial_point())


def data_of_groups_with(n_rows: int) -> Trigger:
    """Rows that lie sorted by group are gone through in another order, which is that of 64."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        step = step_of_groups(sampler)
        with step.model as model:
            pm.set_data({"group": np.arange(n_rows) % 4, "y_data": np.ones(n_rows)})
        return step.step(model.initial_point())

    return trigger


@cache
def step_of_groups(sampler: type[DeerStep]) -> Any:
    with pm.Model():
        group, y = pm.Data("group", np.arange(64) // 16), pm.Data("y_data", np.zeros(64))
        pm.Normal("y", pm.Normal("a", shape=4)[group], observed=y)
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
    assert any(isinstance(s, _Prepared) for s in step.density._sources)
    return step


def dimension_of_another_length(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model(coords={"row": range(3)}) as model:
        pm.Data("data", np.zeros(3), dims="row")
        x = pm.Normal("x")
        pm.Potential("term", -model.dim_lengths["row"].astype("float64") * x**2)
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        pm.set_data({"data": np.zeros(4)}, coords={"row": range(4)})
    return step.step(model.initial_point())


def with_groups(last: int = 3) -> None:
    groups = pm.Data("group", np.array([0, last]))
    pm.Normal("y", pm.Normal("x", shape=3)[groups], 1.0, observed=np.zeros(2))


def with_another_group(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with model_of(lambda: with_groups(2))() as model:
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        pm.set_data({"group": np.array([0, 3])})
    return step.step(model.initial_point())


SPARSE = scipy.sparse.eye_array(3, format="csr")


def with_sparse_data() -> None:
    data: Any = pm.Data("data", SPARSE)
    pm.Potential("term", -structured_dot(data, pm.Normal("x", shape=3)[:, None]).sum())


def other_sparse_data(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with model_of(with_sparse_data)() as model:
        step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        pm.set_data({"data": 2.0 * SPARSE})
    return step.step(model.initial_point())


@cache
def with_dims() -> pm.Model:
    with pm.Model(coords={"row": range(3)}) as model:
        pm.HalfNormal("x", dims="row")
    return model


@cache
def bounded() -> pm.Model:
    with pm.Model() as model:
        pm.Uniform("x")
        pm.HalfNormal("y")
    return model


def of_any_length() -> None:
    x = pm.Normal("x", shape=3)
    pm.Deterministic("positive", x[x > 0])


def together(**arguments: Any) -> Trigger:
    """The mistake is in the arguments of pymc_deer.sample."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        kernel = kernel_of(sampler)
        options = {"model": ONE_VARIABLE, "kernel": kernel, "backend": "jax", "window": 1}
        return pymc_deer.sample(**(options | arguments))

    return trigger


def on_devices(choose: Callable[[Any], Any]) -> Trigger:
    """The mistake is in the choice of devices, made when JAX may start."""
    return lambda *of: together(devices=choose(jax.devices()[0]))(*of)


SETTLED = {"window": 16, "jacobian": "secant", "curvature": 1.5}


def on_many_devices(n: int, *axes: str) -> Trigger:
    """The mistake is the number of devices, which need not exist: none is used."""

    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        asked = AskedDevices(np.full(n, jax.devices()[0]), axes or None)
        patch.setattr("pymc_deer.sampling.hardware.asked_devices", lambda _: asked)
        return together(devices=n, chains=1, **SETTLED)(sampler, patch)

    return trigger


def in_processes(**arguments: Any) -> Trigger:
    """The mistake is in the arguments of one of several processes."""

    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        for module in ("mesh", "placement"):
            patch.setattr(f"pymc_deer.backends.{module}.n_processes", lambda devices: 2)
        return together(devices=1, **arguments)(sampler, patch)

    return trigger


def in_processes_that_differ(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    patch.setattr(
        "pymc_deer.backends.placement.process_allgather", lambda mine: np.array([mine, mine + 1])
    )
    return in_processes(random_seed=1)(sampler, patch)


def of_other_processes(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    all_devices = jax.devices()
    patch.setattr("jax.process_index", lambda: 1)
    patch.setattr(
        "pymc_deer.backends.mesh.n_processes", lambda given: 2 if given is all_devices else 1
    )
    patch.setattr("jax.devices", lambda: all_devices)
    return together(devices=1)(sampler, patch)


def uneven_processes(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    device = jax.devices()[0]
    others = [SimpleNamespace(process_index=i) for i in (1, 1)]
    patch.setattr("jax.process_index", lambda: 1)
    patch.setattr("jax.devices", lambda: [device, *others])
    return together(devices=[device])(sampler, patch)


def profiled(build: Callable[[], pm.Model] = one_variable, **arguments: Any) -> Trigger:
    """Profiling the model is the mistake."""
    return lambda *_: pymc_deer.profile(build(), **arguments)


def traced(build: Callable[[], pm.Model] = one_variable, **arguments: Any) -> Trigger:
    """The mistake is in what is to be traced."""
    return lambda *_: pymc_deer.trace_sweeps(model=build(), **arguments)


@cache
def small_trace() -> pymc_deer.SweepTrace:
    """Five transitions of one coordinate."""
    return pymc_deer.trace_sweeps(5, model=one_variable(), backend="jax")


def drawn(picture: Callable[..., object], of: Callable[[], object], **arguments: Any) -> Trigger:
    """The mistake is in what a picture is asked for, of what `of` returns."""
    return lambda *_: picture(of(), **arguments)


@cache
def in_single_steps() -> DataTree:
    """Chains without sweeps, and without their warm-up."""
    return pymc_deer.sample(
        2, tune=2, chains=1, model=one_variable(), backend="jax", window=1, quiet=True
    )


def without_windows() -> DataTree:
    """Chains one of whose statistics was left out."""
    stats = in_single_steps()["sample_stats"].to_dataset()
    return DataTree.from_dict({"sample_stats": stats.drop_vars("window")})


@cache
def by_two_steps() -> DataTree:
    """Chains of two steps of ours, of which each has statistics of its own."""
    with pm.Model():
        steps = [sampler([pm.Normal(name)], backend="jax") for name, sampler in TWO_STEPS.items()]
        return pm.sample(2, tune=2, chains=2, cores=1, step=steps, quiet=True, random_seed=1)


TWO_STEPS: dict[str, Any] = {"x": pymc_deer.DeerMALA, "y": DeerHMC}


def with_place(fill: Callable[[Path], object], **arguments: Any) -> Trigger:
    """The mistake is what is at the path given to pymc_deer.sample as `store` or `resume`."""
    [(name, file), *others] = arguments.items()

    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        with tempfile.TemporaryDirectory() as folder, ExitStack() as at_end:
            if isinstance(taken := fill(Path(folder)), IOBase):
                at_end.enter_context(taken)
            return together(**{name: Path(folder) / file}, **dict(others))(sampler, patch)

    return trigger


def without_room(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    """The system refuses, as it does where a user may not write."""

    def refused(path: Path, **_: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    def patched(folder: Path) -> None:
        patch.setattr(Path, "mkdir", refused)

    return with_place(patched, store="new")(sampler, patch)


def not_to_be_written(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    """Before anything is compiled."""

    def patched(folder: Path) -> None:
        patch.setattr(os, "access", lambda *_: False)
        patch.setattr(pymc_deer.sampling.driver, "make_step", None)

    return with_place(patched, store="new/run")(sampler, patch)


def not_to_be_locked(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    opened = Path.open

    def patched(folder: Path) -> None:
        def refused(path: Path, *arguments: Any, **named: Any) -> Any:
            if path.is_relative_to(folder):
                raise OSError(30, "Read-only file system", str(path))
            return opened(path, *arguments, **named)

        checkpoint_of(b"")(folder)
        patch.setattr(Path, "open", refused)

    return with_place(patched, resume="")(sampler, patch)


def in_rows_of_another_file() -> None:
    pm.modelcontext(None).add_coord("i/j", [1, 2])
    pm.Normal("x", dims="i/j")


def checkpoint_of(content: bytes) -> Callable[[Path], object]:
    return lambda folder: (folder / "checkpoint.npz").write_bytes(content)


def held(folder: Path) -> object:
    """A run that another process has."""
    fcntl = pytest.importorskip("fcntl")
    checkpoint_of(b"")(folder)
    lock = (folder / "lock").open("ab")
    fcntl.flock(lock, fcntl.LOCK_EX)
    return lock


@cache
def stored(kernel: str) -> tempfile.TemporaryDirectory[str]:
    """A run of two draws, in a directory that goes with the process."""
    folder = tempfile.TemporaryDirectory()
    store(kernel, folder.name)
    return folder


def store(kernel: str, path: str | Path) -> None:
    """A run of two draws, there."""
    options: dict[str, Any] = {"kernel": kernel, "backend": "jax", "window": 1, "quiet": True}
    pymc_deer.sample(2, tune=0, chains=1, model=ONE_VARIABLE, store=path, **options)


def kernel_of(sampler: type[DeerStep]) -> str:
    return next(name for name, kind in KERNELS.items() if issubclass(kind, sampler))


def goes_on(model: Callable[[], pm.Model] = lambda: ONE_VARIABLE, **arguments: Any) -> Trigger:
    """The mistake is in how a stored run is taken up."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        kernel = kernel_of(sampler)
        path = stored(kernel).name
        return pymc_deer.sample(resume=path, model=model(), kernel=kernel, **arguments)

    return trigger


def in_float32_from_here(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
    stored(kernel_of(sampler))
    with pytensor.config.change_flags(floatX="float32"):
        return goes_on(one_variable)(sampler, patch)


def without_zarr(use: Trigger) -> Trigger:
    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        patch.setitem(sys.modules, "zarr", None)
        return use(sampler, patch)

    return trigger


def with_zarr(version: str, arguments: Mapping[str, str]) -> Trigger:
    def trigger(sampler: type[DeerStep], patch: pytest.MonkeyPatch) -> object:
        patch.setattr("zarr.__version__", version)
        return together(**arguments)(sampler, patch)

    return trigger


def with_a_name_of_values() -> None:
    pm.Deterministic("x_raw__", pm.Normal("x") ** 2)


def with_differences() -> None:
    pm.Data("time", np.arange(5.0), dims="t")
    x = pm.Normal("x", dims="t")
    pm.Deterministic("changes", x[1:] - x[:-1], dims="t")


def of_several_types() -> None:
    pm.modelcontext(None).add_coord("kind", ["a", None])
    pm.Normal("x", dims="kind")


def half_set_anew(name: str = "covariate") -> pm.Model:
    with pm.Model() as model:
        slope, intercepts = pm.Normal("slope"), pm.Normal("intercepts", shape=2)
        covariate = pm.Data("covariate", np.ones(5))
        group = pm.Data("group", np.array([0, 1, 0, 1, 0]))
        observed = pm.Data("observed", np.ones(5))
        pm.Normal("y", slope * covariate + intercepts[group], observed=observed)
        pm.set_data({name: np.zeros(7, model[name].dtype)})
    return model


def half_set_anew_by_name() -> pm.Model:
    with pm.Model(coords={"i": range(5)}) as model:
        covariate, observed = (pmd.Data(name, np.ones(5), dims="i") for name in ("x", "observed"))
        pmd.Normal("y", pmd.Normal("slope") * covariate, observed=observed)
        pm.set_data({"x": np.zeros(7)}, coords={"i": range(7)})
    return model


def with_an_axis_without_a_name() -> None:
    pm.modelcontext(None).add_coord("kind", [1, 2])
    pm.Deterministic("x_dim_0", pm.Normal("x"))
    pm.Data("o", np.ones((2, 3)), dims=("kind", None))
    pm.Data("o_dim_0", np.ones(3))


def of_pairs() -> None:
    pm.modelcontext(None).add_coord("kind", [("a", 1), ("b", 2)])
    pm.Normal("x", dims="kind")


def without_a_file(
    of: Callable[[Path], object],
    name: str = "posterior/x/0.0",
    change: Callable[[Path], object] = Path.unlink,
) -> Trigger:
    """The mistake is that a file of a store has been removed, or changed."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        kernel = kernel_of(sampler)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(shutil.copytree(stored(kernel).name, Path(folder) / "run"))
            change(path / name)
            return of(path)

    return trigger


def goes_on_at(path: Path) -> DataTree:
    """The stored run is to go on."""
    return pymc_deer.sample(resume=path, model=ONE_VARIABLE)


def half_written(file: Path) -> None:
    file.write_text("{")


def without_its_store(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    """The mistake is that a store is removed before its draws are read."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(shutil.copytree(stored(kernel_of(sampler)).name, Path(folder) / "run"))
        idata = open_store(path)
        shutil.rmtree(path)
        return idata["posterior"]["x"].values


def with_another_run(read: Callable[[DataTree], object]) -> Trigger:
    """The mistake is that the directory of a store has been given to another run."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with tempfile.TemporaryDirectory() as folder:
            path, kernel = Path(folder) / "run", kernel_of(sampler)
            shutil.copytree(stored(kernel).name, path)
            of_first = open_store(path)
            shutil.rmtree(path)
            store(kernel, path)
            return read(of_first)

    return trigger


def like_one_variable(observed: float = 0.5, sd: float = 2.0, times: int = 2) -> pm.Model:
    with pm.Model() as model:
        x = pm.Normal("x", 1.0, sd)
        pm.Deterministic("double", times * x)
        pm.Normal("y", x, observed=observed)
    return model


def resumed(n_steps: int) -> Trigger:
    """A state taken after so many of the chain's one draw is the mistake."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with one_variable() as model:
            step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        step.setup_chain(np.random.default_rng(0), 0, 1)
        for _draw in range(n_steps):
            step.step(model.initial_point())
        return pymc_deer.resume(step, step.sampling_state)

    return trigger


def resumed_without_point(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model() as model:
        x = pm.Normal("x")
        y = pm.Normal("y", x)
        step = CompoundStep([sampler([x], backend="jax"), pm.Slice([y])])
    step.setup_chain(np.random.default_rng(0), 0, 2)
    step.step(model.initial_point())
    return pymc_deer.resume(step, step.sampling_state)


def resumed_in_part(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    """As one stores it who does not know of the step that PyMC has added."""
    with pm.Model() as model:
        x = pm.Normal("x")
        pm.Poisson("k", pm.math.exp(x))
        step = sampler([x], backend="jax")  # type: ignore[call-arg]
    step.setup_chain(np.random.default_rng(0), 0, 2)
    point, _stats = step.step(model.initial_point())
    return pymc_deer.resume(step, step.sampling_state, point)


def halfway_in(
    sampler: type[DeerStep], build: Callable[[], pm.Model] = one_variable, **options: Any
) -> Any:
    """A step whose chain has made the first of two draws."""
    with build() as model:
        step = sampler(**({"backend": "jax", "window": 1} | options))
    step.setup_chain(np.random.default_rng(0), 0, 2)
    step.step(model.initial_point())
    return step


@cache
def halfway(sampler: type[DeerStep]) -> Any:
    """Such a step of one variable, which no mistake moves."""
    return halfway_in(sampler)


def taken_up(
    choose: Callable[[type[DeerStep]], Any] = lambda sampler: halfway(sampler).sampling_state,
    point: Any = None,
) -> Trigger:
    """The mistake is in the state that a step of one variable is given, or in the point."""
    return lambda sampler, _: pymc_deer.resume(halfway(sampler), choose(sampler), point)


def in_float32(sampler: type[DeerStep]) -> object:
    with pytensor.config.change_flags(floatX="float32"):
        return halfway_in(sampler).sampling_state


def two_elements() -> None:
    pm.Normal("x", shape=2)


def state_of_the_other(sampler: type[DeerStep]) -> object:
    return halfway(next(other for other in SAMPLERS if other is not sampler)).sampling_state


class WithGradient(Opaque):
    """The same with its gradient."""

    def pullback(self, inputs: Any, outputs: Any, cotangents: Any) -> list[Any]:
        return [-2 * inputs[0] * cotangents[0]]


@numba_funcify.register(WithGradient)
def _refuse(op: Op, **_: Any) -> None:
    raise NotImplementedError("no Numba implementation")


def with_potential(term: Callable[[Any], Any]) -> Callable[[], pm.Model]:
    """One normal variable x and a term of logp."""
    return model_of(lambda: pm.Potential("term", term(pm.Normal("x"))))


def float16() -> None:
    with pytensor.config.change_flags(floatX="float16"):
        pm.Normal("x", dtype="float16")


def no_data_for_two() -> None:
    level = pm.Flat("level", shape=3)
    pm.Normal("y", level[0], observed=1.0)


def some_of_the_data() -> None:
    batch = pm.Minibatch(np.zeros(100), batch_size=10)
    pm.Normal("y", pm.Normal("x"), observed=batch, total_size=100)


def simulated() -> None:
    with warnings.catch_warnings():
        # PyMC's, of how it makes one.
        warnings.simplefilter("ignore", DeprecationWarning)
        pm.Simulator("s", lambda rng, x, size: rng.normal(x), pm.Normal("x"), observed=0.5)


def censored() -> None:
    x = pm.Censored("x", pm.Normal.dist(), lower=-1, upper=1)
    pm.Normal("y", x, observed=0.5)


def spike_and_slab() -> None:
    parts = [pm.DiracDelta.dist(0.0), pm.Normal.dist()]
    with warnings.catch_warnings(category=MixtureTransformWarning, action="ignore"):
        x = pm.Mixture("x", w=[0.5, 0.5], comp_dists=parts)
    pm.Normal("y", x, observed=0.5)


def hurdle() -> None:
    with warnings.catch_warnings(category=MixtureTransformWarning, action="ignore"):
        pm.HurdleGamma("x", psi=0.5, alpha=2.0, beta=1.0)


def missing_and_censored() -> None:
    data = np.array([0.5, np.nan])
    with warnings.catch_warnings(category=ImputationWarning, action="ignore"):
        pm.Censored("y", pm.Normal.dist(pm.Normal("x")), lower=-1, upper=1, observed=data)


def by_formula(formula: Callable[[Any], Any]) -> None:
    """Its density is what PyMC derives of it."""
    normal = lambda mu, size: formula(pm.Normal.dist(mu, size=size))  # noqa: E731
    pm.CustomDist("x", pm.Normal("mu"), dist=normal)


def clipped(x: Any) -> Any:
    return pm.math.clip(x, -1.0, 1.0)


def censored_by_name() -> None:
    pmd.Censored("x", pmd.Normal.dist(), lower=-1.0, upper=1.0)


by_formulas = (
    *(
        partial(by_formula, formula)
        for formula in (clipped, pt.round, partial(pt.maximum, 0.0), partial(pt.minimum, 0.0))
    ),
    censored_by_name,
)


def extended(by: Callable[[Any], object]) -> Trigger:
    """The mistake is made after the step."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with pm.Model():
            x = pm.Normal("x")
            step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
            by(x)
            return sample(step)

    return trigger


def beside_floats(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model() as model:
        x = pm.Normal("x", pm.Poisson("k", 2.0))
        step = sampler([x], backend="jax", window=1)  # type: ignore[call-arg]
    return step.step({**model.initial_point(), "k": np.array(1.5)})


def of_a_nested_model(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
    with pm.Model():
        with pm.Model(name="inner"):
            x = pm.Normal("x")
            step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
        pm.Normal("y", x, observed=1.0)
        return sample(step)


def set_anew(values: np.ndarray) -> Trigger:
    """The mistake is in data that are given after the step is made."""

    def trigger(sampler: type[DeerStep], _: pytest.MonkeyPatch) -> object:
        with pm.Model():
            data = pm.Data("data", np.zeros(2))
            pm.Normal("y", pm.Normal("x"), observed=data)
            step = sampler(backend="jax", window=1)  # type: ignore[call-arg]
            pm.set_data({"data": values})
            return sample(step)

    return trigger


def of_one_name() -> None:
    pm.HalfNormal("theta")
    pm.Normal("theta_log__")


def impossible_data() -> None:
    pm.Gamma("y", pm.HalfNormal("x"), 1.0, observed=-1.0)


def nan_in_a_covariate() -> None:
    pm.Normal("y", pm.Normal("x") * np.array([1.0, np.nan]), observed=[1.0, 2.0])


def nan_in_a_prior() -> None:
    pm.Normal("y", 0.0, pm.HalfNormal("x", np.nan), observed=[1.0, 2.0])


CASES: dict[str, tuple[Trigger, ...] | Trigger] = {
    "a name that `DeerMALA` does not know": made(draws=100),
    "`DeerMALA` with an argument that `DeerHMC` alone has": (
        made(n_leapfrog=4),
        together(n_leapfrog=4, path_length=1.0),
    ),
    "unknown backend": each("backend", "Numba", "c", None, ["jax"]),
    "unknown rule": each("jacobian", "full", "Exact", None, 0),
    "`step_size`, `curvature` or `tol` not positive, not finite or not a number": tuple(
        made(**{name: value})
        for name in ("step_size", "curvature", "tol")
        for value in NOT_POSITIVE
    ),
    "`target_accept` outside (0, 1)": each("target_accept", 0.0, 1.0, float("nan"), "0.7", None),
    "`target_accept` beside `step_size`": made(target_accept=0.9, step_size=0.1),
    "`step_size_jitter` outside [0, 1)": each("step_size_jitter", 1.0, -0.1, "0.1", None),
    "`small_steps` outside [0, 1)": each("small_steps", 1.0, -0.1, "0.1", None),
    "`window` not an integer from 1 to 1048576": each("window", None, 2**20 + 1, *NOT_COUNTS),
    "`steps_per_draw` not an integer from 1 to 10000": each(
        "steps_per_draw", None, 10_001, *NOT_COUNTS
    ),
    "`DeerHMC`: `n_leapfrog` not an integer from 1 to 256": each(
        "n_leapfrog", None, 257, *NOT_COUNTS
    ),
    "`DeerHMC`: `path_length` not positive, not finite or not a number": each(
        "path_length", "auto", *NOT_POSITIVE
    ),
    "`DeerHMC`: `path_length` shorter than two of the `step_size` beside it": made(
        step_size=0.5, path_length=0.75
    ),
    "`DeerHMC`: both `n_leapfrog` and `path_length`": made(n_leapfrog=4, path_length=1.5),
    "`probes` not an integer from 1 to 64": each("probes", None, 65, "auto", *NOT_COUNTS),
    "`max_sweeps` not an integer from 1 to 1048576": each("max_sweeps", "auto", *NOT_COUNTS),
    "unknown `noise`": each("noise", "gpu", "Host", None, 0),
    '`noise="device"` on Numba': made(backend="numba", noise="device"),
    "unknown metric": each("metric", "full", "Dense", ""),
    "metric not an array of real numbers": each(
        "metric", None, {"x": 1.0}, ["a"], [1j], [[1.0], [1.0, 2.0]], object(), print
    ),
    "metric array of the wrong shape": each("metric", np.ones(2), np.ones((1, 2)), np.array(1.0)),
    "metric array with NaN or infinity": each("metric", np.array([np.nan]), np.array([[np.inf]])),
    "metric vector with a value not above 0": each("metric", np.zeros(1), np.array([-1.0])),
    "metric matrix not symmetric or not positive definite": each(
        "metric",
        np.ones((2, 2)),
        np.array([[1.0, 0.5], [0.0, 1.0]]),
        build=model_of(lambda: pm.Normal("x", shape=2)),
    ),
    '`metric="dense"` in more dimensions than memory has room for': dense_in_little_memory,
    "`hvp` not callable": each("hvp", "grad", 3, np.ones(2)),
    "`hvp` that fails, gives no vector, or depends on more": each(
        "hvp",
        lambda x: x,
        lambda x, v: 1.0,
        lambda x, v: pt.sum(v),
        lambda x, v: pytensor.shared(2.0) * v,
    ),
    '`jacobian="stochastic"` or `"exact"` where logp has no second derivative': each(
        "jacobian", "stochastic", "exact", window=8, build=model_of(no_second_derivative)
    ),
    "`compile_kwargs` not empty": each("compile_kwargs", {"mode": "JAX"}),
    "`vars` names something that is not a free variable "
    "(a Deterministic, an observed variable, a typing error)": each(
        "vars", "zz", ["double"], "y", 5, {"x": 1}
    ),
    "no model": outside_a_model,
    "`pm.sample(target_accept=0.9, step=DeerMALA())`": sampled(target_accept=0.9),
    "`pm.sample(step_size=0.1, step=DeerMALA())`, and likewise for the other options": sampled(
        step_size=0.1
    ),
    "`pm.sample(step=DeerMALA)`": step_class,
    "`initvals` of another number of axes, in `pm.sample`": sampled(initvals={"x": np.zeros(3)}),
    "`initvals` of another length, in `pm.sample`": steps_from_initvals,
    "`pm.sample(tune=...)` below 0": sampled(tune=-5),
    "unknown kernel": tuple(together(kernel=name) for name in ("nuts", "MALA", None, ["hmc"])),
    "`draws`, `chains` or `cores` below 1, `tune` below 0, or no integer": tuple(
        together(**{name: value})
        for name in ("draws", "chains", "cores", "tune")
        for value in (-1, 2.5, "10", True)
    ),
    "`devices` not None, an integer of at least 1, a sequence of devices or a mesh": (
        *(together(devices=value) for value in (0, -1, 2.0, True, "gpu", [], [0], {}, np.array(4))),
        on_devices(lambda device: [device, device]),
    ),
    "more `devices` than there are": together(devices=10_000),
    "a mesh with an axis of another name": (
        on_devices(lambda device: Mesh([device], ("chains",))),
        on_devices(lambda device: Mesh([[device]], ("data", "x"))),
    ),
    "a number of `devices` that divides neither chains, windows nor data": on_many_devices(3),
    "a mesh whose axis does not divide what it is named after": tuple(
        on_many_devices(3, axis) for axis in ("chain", "window", "data")
    ),
    '`devices` with `backend="numba"`': together(devices=1, backend="numba"),
    "several processes, and `devices` that some of them have no part of": of_other_processes,
    "several processes that see different numbers of devices": uneven_processes,
    "several processes without `random_seed`": in_processes(),
    'several processes with `window="auto"`, or with windows whose `jacobian` or `curvature` is '
    "left open": tuple(
        in_processes(random_seed=1, **(SETTLED | left))
        for left in ({"window": "auto"}, {"jacobian": "auto"}, {"curvature": None})
    ),
    "several processes with `store` or `resume`": (
        in_processes(random_seed=1, store="run"),
        in_processes(random_seed=1, resume="run"),
    ),
    "several processes with different data, arguments or models": in_processes_that_differ,
    "a name that `sample` does not know": (
        together(draw=100),
        together(resume="run", foo=4),
    ),
    "`rng` or `seed`": (together(rng=1), together(seed=1)),
    "an argument that only a step has": (
        together(vars=["x"]),
        together(blocked=False),
        together(initial_point={}),
    ),
    **{
        f"`{name}`": (together(**{name: None}), together(**{name: value}))
        for name, value in {
            **{"step": pm.Slice, "trace": "run", "callback": print, "nuts_sampler": "nutpie"},
            **{"compile_kwargs": {}, "mp_ctx": "fork", "blas_cores": 1},
            **{"return_inferencedata": False, "keep_warning_stat": True},
        }.items()
    },
    "`nuts` or `nuts_sampler_kwargs`": (
        together(nuts={"target_accept": 0.9}),
        together(nuts_sampler_kwargs={}),
    ),
    "`init`, `n_init` or `jitter_max_retries`": tuple(
        together(**{name: value})
        for name, value in {"init": "advi", "n_init": 10, "jitter_max_retries": 1}.items()
    ),
    "`model` that is none": tuple(together(model=value) for value in ("x", 5, pm.Model)),
    "`random_seed` that NumPy makes no generator of": tuple(
        together(random_seed=value) for value in ("a", -1, 1.5, [1, -2], {})
    ),
    "`initvals` that are neither a dict nor one for each chain": tuple(
        together(initvals=value, chains=2)
        for value in (5, "xx", [], [{"x": 1.0}], [1, 2], iter([None, None]), np.array(2))
    ),
    "`initvals` that are no numbers": tuple(
        together(initvals={"x": value})
        for value in ("foo", ["a"], [[1, 2], [3]], 1j, {}, DataArray(1.0))
    ),
    "`initvals` with a name that the model does not have": tuple(
        together(initvals=value, chains=2)
        for value in ({"z": 1.0}, {"x_log__": 1.0}, {5: 1.0}, [None, {"x": 1.0, "z": 2.0}])
    ),
    "`var_names` with a name that no unobserved variable of the model has": (
        together(var_names=["z"])
    ),
    "`var_names` that is no list, or an empty one": (
        *(
            together(var_names=value)
            for value in ("x", [], 3, [3], [None], [["x"]], iter(["x"]), [one_variable()["x"]])
        ),
        goes_on(var_names="x"),
    ),
    "a variable whose shape differs from draw to draw, and which is to be recorded": together(
        model=model_of(of_any_length)(), draws=50, quiet=True
    ),
    "discrete variables in the model, or ones with a step method of their own": together(
        model=model_of(lambda: pm.Normal("x", pm.Bernoulli("k", 0.5)))()
    ),
    "`resume` of something that is no step of ours, such as its class": (
        lambda sampler, _: pymc_deer.resume(sampler, halfway(sampler).sampling_state),
        lambda *_: pymc_deer.resume(cast(Any, None), None),
        lambda *_: pymc_deer.resume(CompoundStep([pm.Slice(model=one_variable())]), None),
    ),
    "`resume` of a stored run": (
        lambda *_: pymc_deer.resume(cast(Any, "run.zarr")),
        lambda *_: pymc_deer.resume(cast(Any, Path("run.zarr")), ONE_VARIABLE),
    ),
    "`resume` with something that is no state of such a step, such as one of the other sampler": (
        taken_up(lambda _: None),
        *(
            lambda _, patch, sampler=sampler: taken_up(state_of_the_other)(sampler, patch)
            for sampler in SAMPLERS
        ),
        taken_up(lambda sampler: vars(halfway(sampler).sampling_state)),
        taken_up(lambda sampler: CompoundStep([halfway(sampler)]).sampling_state),
        lambda sampler, _: pymc_deer.resume(
            CompoundStep([halfway(sampler), pm.Slice(model=one_variable())]),
            CompoundStep([halfway(sampler)]).sampling_state,
        ),
    ),
    "`resume` with a state of another kind of metric, list of variables, number of dimensions or "
    "precision": (
        taken_up(in_float32),
        taken_up(lambda sampler: halfway_in(sampler, metric="diag").sampling_state),
        taken_up(lambda sampler: halfway_in(sampler, model_of(two_elements)).sampling_state),
        taken_up(
            lambda sampler: halfway_in(sampler, model_of(lambda: pm.Normal("z"))).sampling_state
        ),
    ),
    "`resume` with a `point` of other variables, or constrained": tuple(
        taken_up(point=value) for value in (5, {}, {"x_log__": 1.0}, {"x": 1.0, "double": 2.0})
    ),
    "`resume` with a step that leaves variables of the model to others": resumed_in_part,
    "`resume` with a `point` of other shapes": taken_up(point={"x": np.ones(1)}),
    "`resume` with a state taken before the first draw": resumed(0),
    "`resume` with a state taken after the last draw": resumed(1),
    "`resume` without `point` beside other step methods": resumed_without_point,
    "`windows` not a sequence of integers from 1 to 1048576": tuple(
        profiled(windows=value)
        for value in (64, np.array(64), (), "16", [0], [1, 2.5], [True], [2**20 + 1])
    ),
    '`backends` with anything but `"numba"` and `"jax"`, or not a sequence': tuple(
        profiled(backends=value) for value in ("jax", (), ["auto"], [None], 1)
    ),
    "`profile` of a model without continuous free variables": profiled(
        model_of(lambda: pm.Bernoulli("k", 0.5))
    ),
    "`trace_sweeps` of no transitions, or no whole number of them": tuple(
        traced(n=value) for value in (0, -1, 2.5, "10", True)
    ),
    "`rng` that NumPy makes no generator of": tuple(made(rng=value) for value in ("a", -1, 1.5)),
    "`model` of a step that is none": (
        made(model=5),
        lambda sampler, _: sampler(model=cast(Any, "model")),
    ),
    "`model` of `profile` that is none": profiled(lambda: cast(Any, 5)),
    "`model` of `trace_sweeps` that is none": traced(lambda: cast(Any, 5)),
    "`random_seed` of `trace_sweeps` that NumPy makes no generator of": tuple(
        traced(random_seed=value) for value in ("a", -1, 1.5)
    ),
    "`trace_sweeps` with an unknown kernel": (
        traced(kernel="nuts"),
        traced(kernel=["hmc"]),
    ),
    "`trace_sweeps` of a model without continuous free variables": traced(
        model_of(lambda: pm.Bernoulli("k", 0.5))
    ),
    "`plot_sweeps` or `plot_guesses` of something else, such as draws": tuple(
        drawn(picture, DataTree) for picture in (plots.plot_sweeps, plots.plot_guesses)
    ),
    "`plot_sweeps` in something that is no axes": tuple(
        drawn(plots.plot_sweeps, small_trace, ax=value) for value in (5, np.array([None]))
    ),
    "`plot_guesses` after sweeps that the trace does not have": tuple(
        drawn(plots.plot_guesses, small_trace, sweeps=value)
        for value in ([], [-1], [1, 6], 1, [1.0], [True])
    ),
    "`plot_guesses` of a coordinate that the model does not have": tuple(
        drawn(plots.plot_guesses, small_trace, coordinate=value)
        for value in (-1, 1, "x", 0.0, False)
    ),
    "`plot_profile` of something else": drawn(plots.plot_profile, one_variable),
    "`plot_convergence` or `plot_tuning` of another sampler's draws, or without some of the "
    "statistics or dimensions": tuple(
        drawn(picture, of)
        for picture in (plots.plot_convergence, plots.plot_tuning)
        for of in (
            DataTree,
            one_variable,
            lambda: in_single_steps().isel(chain=0),
            without_windows,
        )
    ),
    "`plot_convergence` or `plot_tuning` of a run with several steps of ours": tuple(
        drawn(picture, by_two_steps) for picture in (plots.plot_convergence, plots.plot_tuning)
    ),
    "`plot_convergence` of chains that ran step by step, where no windows were tried": drawn(
        plots.plot_convergence, in_single_steps
    ),
    "`plot_tuning` of draws without warm-up": drawn(plots.plot_tuning, in_single_steps),
    "`sample` with an unknown `progressbar`": tuple(
        together(progressbar=value) for value in ("bars", None, 1)
    ),
    "`sample` with `idata_kwargs` that are no dict": tuple(
        together(idata_kwargs=value) for value in (True, "log_likelihood", ["log_prior"])
    ),
    "`sample` with `idata_kwargs` that ask for the log-likelihood or the log-prior of a variable "
    "that has none": (
        together(idata_kwargs={"log_likelihood": ["x"]}),
        together(idata_kwargs={"log_prior": "x"}),
    ),
    "`sample` with `idata_kwargs` that ask for either, and `var_names` without a free variable": (
        together(var_names=["double"], idata_kwargs={"log_prior": True}),
        together(
            model=like_one_variable(), var_names=["double"], idata_kwargs={"log_likelihood": ["y"]}
        ),
    ),
    "a Deterministic that draws random numbers, and which is to be recorded": (
        together(model=model_of(with_noise)()),
        together(model=model_of(with_noise)(), var_names=["noisy"]),
    ),
    "`sample` with `idata_kwargs` that PyMC or ArviZ refuse, before the draws are made": (
        together(idata_kwargs={"coord": {}}),
        together(idata_kwargs={"model": 3}),
        with_place(Path.exists, store="new", idata_kwargs={"coord": {}}),
    ),
    "`sample` with `idata_kwargs` that number the draws": together(
        idata_kwargs={"coords": {"draw": np.arange(1000)}}
    ),
    "`sample` of a model whose coordinates they refuse, such as tuples": together(
        model=model_of(of_pairs)()
    ),
    "`sample(store=...)` that is no path, or a URL": tuple(
        together(store=value)
        for value in (5, True, b"run", "s3://bucket/run", Path("s3://bucket"), "file:///run")
    ),
    "`sample(store=...)` where a run is already": with_place(checkpoint_of(b""), store=""),
    "`sample` of a model with a variable called `draw` or `chain`": (
        together(model=model_of(lambda: pm.Normal("draw"))()),
        together(model=model_of(lambda: pm.Deterministic("chain", pm.Normal("x")))()),
    ),
    "`sample` of a model with a variable called as PyMC calls values of transformed ones, such as "
    "`x_raw__`": (
        together(model=model_of(lambda: pm.Normal("x_raw__"))()),
        together(model=model_of(with_a_name_of_values)(), var_names=["x_raw__"]),
    ),
    "`sample` of a model with a variable called as an axis without a name of another, such as "
    "`x_dim_0` beside a vector `x`": tuple(
        together(model=model_of(build)())
        for build in (
            lambda: pm.Deterministic("x_dim_0", pm.Normal("x", shape=2).sum()),
            with_an_axis_without_a_name,
            lambda: (pm.Normal("x"), pm.Data("o", np.ones(2)), pm.Data("o_dim_0", np.ones(3))),
        )
    ),
    "`sample(store=...)` of a variable or dimension whose name can be no file's, such as one in "
    "LaTeX": tuple(
        with_place(Path.exists, store="new", model=model_of(build)())
        for build in (
            lambda: pm.Normal("\\beta"),
            lambda: pm.Normal("x" * 300),
            lambda: pm.Normal(".zgroup"),
            in_rows_of_another_file,
        )
    ),
    "`sample(store=...)` where no directory can be made": (
        with_place(lambda folder: (folder / "notes").touch(), store="notes/run"),
        with_place(Path.exists, store="n" * 300),
        with_place(Path.exists, store="new\0run"),
        without_room,
        not_to_be_written,
    ),
    "`sample(store=...)` that is a file, or a directory with other things": (
        with_place(lambda folder: (folder / "notes").touch(), store=""),
        with_place(lambda folder: (folder / "notes").touch(), store="notes"),
        with_place(lambda folder: (folder / "notes").symlink_to("nowhere"), store="notes"),
    ),
    "`sample(store=...)` and `idata_kwargs` for what is no part of a run": tuple(
        with_place(Path.exists, store="new", idata_kwargs={name: value})
        for name, value in (
            *((name, True) for name in ("log_likelihood", "log_prior", "save_warmup")),
            *((name, {}) for name in ("prior", "posterior_predictive", "predictions")),
        )
    ),
    "`sample` of a model with sparse `pm.Data`": together(model=model_of(with_sparse_data)()),
    "`sample(store=...)` of a variable that is not as long as a dimension of its, such as "
    "differences along time": with_place(
        Path.exists, store="new", model=model_of(with_differences)()
    ),
    "`sample(store=...)` of a model whose coordinates are of several types": with_place(
        Path.exists, store="new", model=model_of(of_several_types)()
    ),
    "`sample(resume=...)` that is no path": tuple(
        together(resume=value, **beside)
        for value, beside in ((True, {}), (False, {"store": "run"}), (5, {}), ("s3://run", {}))
    ),
    "`sample(resume=...)` of a run in a place that cannot be written to": not_to_be_locked,
    "`sample(resume=...)` where there is no run": with_place(Path.exists, resume=""),
    "`sample(resume=...)` of a damaged run, or one of another version": (
        with_place(checkpoint_of(b""), resume=""),
        with_place(checkpoint_of(packed({"format": 1, "checkpoint": None})), resume=""),
    ),
    "`sample(resume=...)` of a run that has not ended": with_place(held, resume=""),
    "`sample(resume=...)` with `store`, `initvals` or `idata_kwargs`": tuple(
        together(resume="run", **{name: {}}) for name in ("store", "initvals", "idata_kwargs")
    ),
    "`sample(resume=...)` with an argument that the run's kernel does not know": (
        lambda _, patch: goes_on(n_leapfrog=4)(pymc_deer.DeerMALA, patch)
    ),
    "`open_store` where no draws were written, or of what is no path": (
        lambda *_: open_store("/nowhere"),
        lambda *_: open_store(Path("/nowhere")),
        lambda *_: open_store(cast(Any, None)),
    ),
    "`sample(resume=...)` with other settings than those of the run": tuple(
        goes_on(**{name: value})
        for name, value in {
            **{"chains": 2, "tune": 3, "random_seed": 1, "var_names": ["x"]},
            **{"discard_tuned_samples": False, "window": 16, "metric": np.ones(1)},
        }.items()
    ),
    "`sample(resume=...)` with fewer `draws` than the run was to have": goes_on(draws=1),
    "`sample(resume=...)` with `hvp` that the run has not, or without the one it has": goes_on(
        hvp=lambda x, v: -v
    ),
    "a file of a store that is not there any more, when its draws are read, or when the run is to "
    "go on": (
        without_a_file(lambda path: open_store(path)["posterior"]["x"].values),
        without_a_file(goes_on_at),
        without_a_file(goes_on_at, ".zmetadata"),
    ),
    "a store that is another run's, when draws are read or the run goes on": with_another_run(
        lambda idata: idata["posterior"]["x"].values
    ),
    "a store that is not there any more, when draws are read or the run goes on": without_its_store,
    "a file of a store that is damaged": (
        without_a_file(goes_on_at, ".zmetadata", half_written),
        without_a_file(open_store, ".zmetadata", half_written),
    ),
    "`sample(resume=...)` with the model in another precision": in_float32_from_here,
    "`sample(resume=...)` with another model": (
        goes_on(model_of(lambda: pm.Normal("x", shape=2))),
        goes_on(partial(like_one_variable, observed=0.6)),
        goes_on(partial(like_one_variable, sd=2.1)),
        goes_on(partial(like_one_variable, times=3)),
    ),
    "no free variables, or `vars=[]`": (
        made(model_of(lambda: pm.Normal("y", observed=1.0))),
        made(vars=[]),
    ),
    "only discrete variables, or float16 ones": (
        made(model_of(lambda: pm.Bernoulli("k", 0.5))),
        made(model_of(float16)),
    ),
    "a discrete variable given to `DeerMALA`": made(
        model_of(lambda: pm.Bernoulli("k", pm.Beta("p", 1.0, 1.0))), vars=["p", "k"]
    ),
    "a float16 variable given to `DeerMALA`": made(model_of(float16), vars="x"),
    "variables without elements": made(model_of(lambda: pm.Normal("x", shape=0))),
    "logp does not depend on a variable": made(model_of(lambda: pm.Flat("idle"))),
    "logp is constant in some elements of a variable, such as those of a `pm.Flat` that no data "
    "speak of": made(model_of(no_data_for_two)),
    "logp has no gradient": made(with_potential(Opaque())),
    "NaN in data, such as a covariate, and logp NaN of it": made(model_of(nan_in_a_covariate)),
    "`pm.Minibatch`, or other random numbers in logp": made(model_of(some_of_the_data)),
    "NaN among the parameters of a prior": made(model_of(nan_in_a_prior)),
    "`pm.Simulator`": made(model_of(simulated)),
    "a free variable that is censored, clipped or rounded, or a mixture with a single value, as "
    "hurdles are": tuple(
        made(model_of(build))
        for build in (censored, spike_and_slab, hurdle, missing_and_censored, *by_formulas)
    ),
    "a variable or Potential that the model has come to have since the step was made, or that is "
    "not of the nested model in whose context it was": (
        of_a_nested_model,
        extended(lambda x: pm.Normal("z", x)),
        extended(lambda x: pm.Normal("z", x, observed=1.0)),
        extended(lambda x: pm.Potential("z", -(x**2))),
    ),
    "values that another step gives a variable, of a type that does not become the variable's, "
    "such as floats for counts": beside_floats,
    "NaN or masked values in `pm.set_data`": (
        set_anew(np.array([np.nan, 1.0])),
        set_anew(np.ma.masked_array([1.0, 2.0], mask=[True, False])),
    ),
    "an index of what is not there, written into the model": made(
        model_of(
            lambda: pm.Normal(
                "y", pm.Normal("x", shape=3)[np.array([1, 3, 2])], observed=np.ones(3)
            )
        )
    ),
    "an index of what is not there, in `pm.Data`": (
        made(model_of(with_groups)),
        with_another_group,
    ),
    "two variables whose unconstrained values have one name": made(model_of(of_one_name)),
    "NaN in `pm.Data`": made(model_of(lambda: pm.Data("d", np.array([1.0, np.nan])))),
    "`pm.Data` whose shapes do not fit each other, as when one of two was set anew": (
        made(half_set_anew),
        made(half_set_anew_by_name),
        together(model=half_set_anew()),
        together(model=half_set_anew("group")),
        profiled(half_set_anew),
    ),
    "data of another shape after `pm.set_data`": (
        data_of_another_shape,
        data_of_groups_with(5064),
        data_of_groups_with(56),
    ),
    "a dimension of another length after `pm.set_data`, where logp depends on the length "
    "itself": dimension_of_another_length,
    "sparse data set anew": other_sparse_data,
    "`initvals` of another shape than the variable's, where PyMC does not see it, or in "
    "`pymc_deer.sample`": (
        steps_from(with_dims, x_log__=np.zeros(2)),
        together(model=with_dims(), initvals={"x": np.ones(2)}),
        together(model=with_dims(), initvals={"x_log__": np.ones((3, 1))}),
        together(initvals={"x": np.zeros(3)}),
        together(chains=2, initvals=[None, {"x": [0.0]}]),
    ),
    "a start where logp is not finite": (
        steps_from(with_potential(lambda x: pt.switch(x < 1e6, -np.inf, 0.0))),
        steps_from(with_potential(lambda x: pt.log(x)), x=np.array(-100.0)),
    ),
    "a start where logp of observed data is not finite": (
        steps_from(model_of(impossible_data)),
        together(model=model_of(impossible_data)()),
    ),
    "a start outside of what the variable can be": (
        steps_from(one_variable, x=np.array(np.nan)),
        together(model=bounded(), initvals={"x": 5.0}),
        together(model=bounded(), initvals={"y": -1.0}),
    ),
    # At its minimum the root has a finite value and no slope.
    "a start where the gradient is not finite": steps_from(
        with_potential(lambda x: pt.sqrt(pt.abs(x - 1.0))), x=np.array(1.0)
    ),
    "backend not installed": (missing_backend("numba"), missing_backend("jax")),
    "JAX cannot run the model": made(with_potential(WithGradient())),
    "Numba cannot run the model": made(with_potential(WithGradient()), backend="numba"),
    "JAX with `cores > 1` in forked processes": forked,
    "scikit-learn missing (example models only)": without_scikit_learn,
    "zarr missing, for `sample(store=...)`, `sample(resume=...)` and `open_store`": (
        without_zarr(together(store="run")),
        without_zarr(lambda *_: open_store("run")),
    ),
    "zarr 3.0 to 3.1.2, for `sample(store=...)` and `sample(resume=...)`": tuple(
        with_zarr(version, arguments)
        for version in ("3.0.0", "3.0.10", "3.1.0", "3.1.2", "3.1.1.post1")
        for arguments in ({"store": "run"}, {"resume": "run"})
    ),
}


def test_every_row_has_a_case_and_every_case_a_row() -> None:
    assert CASES.keys() == rows().keys()


# Where none is named, what answers is the same for all: they make these mistakes in turns.
PAIRS = [
    (row, sampler)
    for number, row in enumerate(rows().values())
    for sampler in row.samplers or (SAMPLERS[number % len(SAMPLERS)],)
]


@pytest.mark.parametrize(
    ("row", "sampler"), PAIRS, ids=[f"{row.mistake}-{s.__name__}" for row, s in PAIRS]
)
def test_mistake_is_answered_as_documented(row: Row, sampler: type[DeerStep]) -> None:
    case = CASES[row.mistake]
    for trigger in case if isinstance(case, tuple) else (case,):
        message = row.pattern(sampler)
        with (
            pytest.MonkeyPatch.context() as patch,
            pytest.raises(Exception, match=message) as error,
        ):
            trigger(sampler, patch)
        assert type(error.value).__name__ == row.error


def test_every_argument_of_pm_sample_is_taken_or_answered() -> None:
    """Those that PyMC may add too."""
    assert [*OWN, "deer_options"] == list(signature(pymc_deer.sample).parameters)
    known = {*INSTEAD, *(f.name for f in fields(Options)), *signature(pymc_deer.sample).parameters}
    assert set(signature(pm.sample).parameters) - {"kwargs"} <= known
    assert not INSTEAD.keys() & set(signature(pymc_deer.sample).parameters)


def test_another_message_would_be_noticed() -> None:
    row = rows()["`target_accept` outside (0, 1)"]
    right = "DeerHMC(target_accept=2): target_accept must be 'auto' or between 0 and 1."
    assert re.search(row.pattern(DeerHMC), right)
    for other in (
        right.replace("HMC", "MALA"),
        right.replace("and 1", "and 2"),
        f"{right} More.",
    ):
        assert not re.search(row.pattern(DeerHMC), other)
