"""Compilers run without the garbage collector, and nothing else does."""

import gc

import pymc as pm
import pytest

from pymc_deer import DeerHMC
from pymc_deer.backends.base import Solver
from pymc_deer.garbage import uncollected


def test_the_collector_is_back_whatever_happens() -> None:
    with uncollected():
        assert not gc.isenabled()
        with uncollected():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="within"), uncollected():
        raise ValueError("within")
    assert gc.isenabled()


def test_a_collector_that_the_user_has_stopped_stays_so() -> None:
    gc.disable()
    try:
        with uncollected():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_steps_are_compiled_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    evaluate, seen = Solver.evaluate, []

    def noted(solver: Solver, *arguments: object) -> object:
        seen.append(gc.isenabled())
        return evaluate(solver, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Solver, "evaluate", noted)
    with pm.Model():
        pm.Normal("x")
        DeerHMC(backend="jax", window=1)
    assert set(seen) == {False}
    assert gc.isenabled()
