"""Which backend `pymc_deer.sample` takes where the user leaves it open."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pymc as pm
import pytensor.tensor as pt
import pytest

import pymc_deer.step
from pymc_deer.sampling.hardware import Hardware
from pymc_deer.sampling.settings import Settings
from pymc_deer.sampling.shared_step import make_step
from pymc_deer.status import BackendError, DeerError, ForkError
from pymc_deer.step import DeerStep


def intercepts(n: int) -> pm.Model:
    """A model whose gradient gathers and scatters 2 n numbers."""
    with pm.Model() as model:
        group = pm.Normal("group", shape=4)
        pm.Normal("y", group[np.arange(n) % 4], observed=np.zeros(n))
    return model


def taken(
    monkeypatch: pytest.MonkeyPatch,
    model: pm.Model,
    failures: dict[str, DeerError] | None = None,
    auto: str = "numba",
    **options: Any,
) -> tuple[str, Sequence[str]]:
    """The backend of the step, and those tried; steps compile nothing, and may fail.

    On a GPU, `auto` is JAX.
    """
    tried: list[str] = []

    def compiled(step: DeerStep) -> None:
        tried.append(step.backend)
        if failures and step.backend in failures:
            raise failures[step.backend]

    def resolved(name: str) -> str:
        return auto if name == "auto" else name

    monkeypatch.setattr(DeerStep, "_compile", compiled)
    monkeypatch.setattr(pymc_deer.step, "resolve_backend", resolved)
    monkeypatch.setattr(pymc_deer.sampling.shared_step, "resolve_backend", resolved)
    step = make_step(Settings(options=options), model, Hardware())
    return step.backend, tried


def test_jax_runs_chains_that_are_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(monkeypatch, intercepts(30_000)) == ("jax", ["jax"])


def test_numba_runs_what_gathers_and_scatters_much(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before anything is compiled for JAX."""
    assert taken(monkeypatch, intercepts(40_000)) == ("numba", ["numba"])


def test_numba_factors_large_matrices(monkeypatch: pytest.MonkeyPatch) -> None:
    for n, expected in ((60, "jax"), (120, "numba")):
        with pm.Model() as model:
            covariance = pm.HalfNormal("scale") * np.ones((n, n)) + np.eye(n)
            pm.Potential("y", pt.dot(pt.linalg.cholesky(covariance), pm.Normal("z", shape=n)).sum())
        assert taken(monkeypatch, model) == (expected, [expected])


def test_jax_evaluates_functions_faster_than_it_scatters(monkeypatch: pytest.MonkeyPatch) -> None:
    with pm.Model() as model:
        group = pm.Normal("group", shape=4)
        pm.Bernoulli("y", logit_p=group[np.arange(40_000) % 4], observed=np.zeros(40_000))
    assert taken(monkeypatch, model) == ("jax", ["jax"])


def test_a_function_counts_as_much_as_several_numbers_that_are_scattered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with intercepts(40_000) as model:
        pm.Potential("functions", -pm.math.exp(pm.Normal("x", shape=15_000)).sum())
    assert taken(monkeypatch, model) == ("jax", ["jax"])


def test_on_a_gpu_there_is_nothing_but_jax(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(monkeypatch, intercepts(40_000), auto="jax") == ("jax", ["jax"])
    failures: dict[str, DeerError] = {"jax": BackendError("JAX cannot.")}
    with pytest.raises(BackendError, match="JAX cannot"):
        taken(monkeypatch, intercepts(8), failures, auto="jax")


@pytest.mark.parametrize("error", [BackendError("JAX cannot."), ForkError("JAX cannot here.")])
def test_numba_runs_what_jax_cannot(monkeypatch: pytest.MonkeyPatch, error: DeerError) -> None:
    assert taken(monkeypatch, intercepts(8), {"jax": error}) == ("numba", ["jax", "numba"])


def test_what_neither_can_run_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: dict[str, DeerError] = {
        "jax": BackendError("JAX cannot."),
        "numba": BackendError("Numba cannot."),
    }
    with pytest.raises(BackendError, match="Numba cannot") as error:
        taken(monkeypatch, intercepts(8), failures)
    assert "JAX cannot" in str(error.value.__context__)


def test_the_user_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    assert taken(monkeypatch, intercepts(8), backend="numba") == ("numba", ["numba"])
    assert taken(monkeypatch, intercepts(40_000), backend="jax") == ("jax", ["jax"])
    with pytest.raises(BackendError, match="JAX cannot"):
        taken(monkeypatch, intercepts(8), {"jax": BackendError("JAX cannot.")}, backend="jax")
    assert taken(monkeypatch, intercepts(40_000), backend="auto")[0] == "numba"
