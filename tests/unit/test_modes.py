"""Modes that compile in one thread without a word to the others."""

from typing import Any

import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor import config
from pytensor.compile.mode import Mode
from pytensor.configparser import ConfigParam
from pytensor.graph.rewriting.basic import GraphRewriter

import pymc_deer
from pymc_deer.modes import OwnMode
from tests.support import BACKENDS


class Watch(GraphRewriter):
    """Writes down which mode the process is in, and which one the graph, and rewrites nothing."""

    def __init__(self) -> None:
        self.of_process: list[Any] = []
        self.of_graph: list[Any] = []

    def apply(self, fgraph: Any, *args: Any, **kwargs: Any) -> None:
        self.of_process.append(config.mode)
        self.of_graph.append(fgraph._compile_mode)


def compiled_in(kind: type[Mode]) -> Watch:
    """What is seen while a function is compiled in a mode of that kind."""
    watch, x = Watch(), pt.vector("x")
    theirs = OwnMode.of("FAST_COMPILE")
    mode = kind(theirs.linker, theirs.provided_optimizer).register((watch, 1.0))
    function: Any = pytensor.function([x], [x + 1], mode=mode)
    [found] = function([1.0, 2.0])
    assert found.tolist() == [2.0, 3.0]
    assert watch.of_graph == [mode]
    return watch


def test_other_threads_stay_in_the_mode_that_they_are_in() -> None:
    assert compiled_in(OwnMode).of_process == [config.mode]


def test_with_pytensors_own_they_would_not() -> None:
    watch = compiled_in(Mode)
    assert watch.of_process == watch.of_graph


def test_a_mode_that_is_made_of_one_is_one() -> None:
    mode = OwnMode.of("NUMBA").excluding("fusion").including("local_add_mul_fusion")
    assert isinstance(mode, OwnMode)


@pytest.mark.parametrize(
    ("backend", "step"),
    [c for c in [("jax", pymc_deer.DeerMALA), ("numba", None)] if c[0] in BACKENDS],
)
def test_runs_put_the_process_in_no_mode_of_their_own(
    backend: str, step: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it is put in are the ones of the model's own functions, by PyMC."""
    modes: list[Any] = []
    put = ConfigParam.__set__

    def watched(param: ConfigParam, owner: Any, value: Any) -> None:
        if param.name == "mode":
            modes.append(value)
        put(param, owner, value)

    # One that no backend has, for what PyMC compiles.
    monkeypatch.setattr(config, "mode", "FAST_COMPILE")
    monkeypatch.setattr(ConfigParam, "__set__", watched)
    with pm.Model() as model:
        x = pm.Normal("x", shape=3)
        pm.Deterministic("y", pm.math.sum(x))
    point = model.initial_point()
    model.compile_logp()(point)
    theirs = {_described(mode) for mode in modes}
    assert theirs
    modes.clear()
    with model:
        if step is None:
            pymc_deer.sample(
                5, kernel="mala", tune=5, chains=1, backend=backend, window=4, quiet=True
            )
        else:
            pm.sample(draws=5, tune=5, chains=1, step=step(backend=backend, window=4))
    assert {_described(mode) for mode in modes} <= theirs


def _described(mode: Any) -> Any:
    """What distinguishes modes, or their name: clones of one another are equal."""
    if isinstance(mode, str):
        return mode
    return type(mode.linker), len(mode.provided_optimizer.extra_rewrites)
