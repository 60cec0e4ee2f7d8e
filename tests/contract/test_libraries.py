"""Models as other libraries write them, through `pymc_deer.sample` with what it chooses itself."""

import time
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose
from pymc.logprob.utils import CheckParameterValue
from pymc.step_methods import STEP_METHODS
from pymc.step_methods.compound import Competence
from pytensor.graph.basic import Apply
from pytensor.sparse import as_sparse, structured_dot
from scipy import sparse
from xarray import DataTree

import pymc_deer
from pymc_deer.backends.numba import NumbaSolver
from pymc_deer.metric import identity_metric
from pymc_deer.status import ModelError, StartError
from tests.support import BACKENDS, SEED, SLOW_ON_NUMBA, Parabola, sample

BOTH = pytest.mark.parametrize("backend", BACKENDS)


def run(model: pm.Model, backend: str, **changes: Any) -> DataTree:
    """A short, silent run."""
    options: dict[str, Any] = {
        "draws": 20,
        "tune": 30,
        "chains": 2,
        "random_seed": SEED,
        "progressbar": False,
        "compute_convergence_checks": False,
    }
    return pymc_deer.sample(model=model, backend=backend, **(options | changes))


SPARSE = sparse.random(60, 3, density=0.4, random_state=0, format="csr")


def draws_of_regression(product: Callable[[Any], Any], backend: str, window: int) -> np.ndarray:
    """Draws of the coefficients, given their product with the features."""
    with pm.Model() as model:
        mean = product(pm.Normal("beta", shape=3))
        pm.Normal("y", mean, 1.0, observed=np.linspace(-1.0, 1.0, 60))
    options: dict[str, Any] = {"kernel": "mala", "window": window, "jacobian": "secant"}
    return run(model, backend, **options)["posterior"]["beta"].to_numpy()


@pytest.mark.parametrize(
    ("backend", "window"),
    [
        (BACKENDS[0], 1),
        (BACKENDS[-1], 8),
        *([pytest.param("numba", 8, marks=pytest.mark.slow)] if "numba" in BACKENDS else []),
    ],
)
def test_sparse_data(backend: str, window: int) -> None:
    """The same draws as with the matrix that they are."""
    found = draws_of_regression(
        lambda b: structured_dot(as_sparse(SPARSE), b[:, None])[:, 0], backend, window
    )
    expected = draws_of_regression(lambda b: SPARSE.toarray() @ b, BACKENDS[-1], window)
    assert_allclose(found, expected, rtol=1e-6)


@BOTH
def test_sparse_data_of_the_model(backend: str) -> None:
    """In `pm.Data`, which may not be set anew: no program takes such data as an input."""
    other = SPARSE.copy()
    other.data[0] += 1.0
    with pm.Model() as model:
        features: Any = pm.Data("features", SPARSE)
        mean = structured_dot(features, pm.Normal("beta", shape=3)[:, None])[:, 0]
        pm.Normal("y", mean, 1.0, observed=np.linspace(-1.0, 1.0, 60))
        step = pymc_deer.DeerMALA(backend=backend, window=1, metric="diag")
        found, expected = step.solver, model.compile_logp()
        x = np.array([0.1, -0.3, 0.2])
        pm.set_data({"features": SPARSE.copy()})
        params = step.density.param_values({})
        logp, _ = found.evaluate(x, identity_metric("diag", 3), params)
        assert_allclose(logp, expected({"beta": x}), rtol=1e-12)
        pm.set_data({"features": other})
        with pytest.raises(ModelError, match=r"^features: sparse data that changed"):
            step.density.param_values({})


@pytest.mark.filterwarnings("ignore:Loop fusion failed:UserWarning")
@pytest.mark.parametrize("backend", [pytest.param(b, marks=SLOW_ON_NUMBA[b]) for b in BACKENDS])
def test_more_data_and_terms_than_a_call_names_arguments(backend: str) -> None:
    """Python unpacks more than 30 arguments from a list."""
    rng, mean = np.random.default_rng(0), 0.0
    with pm.Model() as model:
        for i in range(32):
            data = pm.Data(f"data_{i}", rng.normal(size=3))
            mean += data * pm.Gumbel(f"x_{i}", 0.0, 1.0)
        pm.Normal("y", mean, 1.0, observed=np.ones(3))
    idata = run(model, backend)
    assert len(idata["posterior"]) == 32
    assert all(np.isfinite(values).all() for values in idata["posterior"].values())


def checked(start: float) -> pm.Model:
    """A library's check, which PyMC makes no minus infinity of: it raises."""
    share_of_one = CheckParameterValue("0 < alpha <= 1")
    with pm.Model() as model:
        alpha = pm.Normal("alpha", initval=start)
        inside = pt.gt(alpha, 0.0) & pt.le(alpha, 1.0)
        pm.Normal("y", share_of_one(alpha, inside), 1.0, observed=[0.2, 0.8])
    return model


@BOTH
def test_proposals_that_fail_a_check_are_rejected_and_counted(backend: str) -> None:
    idata = run(checked(0.5), backend, draws=200)
    alpha = idata["posterior"]["alpha"].values
    assert 0 < alpha.min() < 0.1
    assert 0.9 < alpha.max() <= 1
    assert idata["sample_stats"]["diverging"].sum() > 0


@BOTH
def test_a_start_that_fails_a_check_names_its_term(backend: str) -> None:
    with pytest.raises(StartError, match="logp of y is -inf"):
        run(checked(0.5), backend, initvals={"alpha": -20.0})


@BOTH
def test_a_check_that_fails_inside_a_loop_rejects(backend: str) -> None:
    """Where alpha is negative a step of the loop has no density, though its formula is finite."""

    def term(now: Any, before: Any, total: Any, alpha: Any) -> Any:
        return total + before + pm.logp(pm.Gamma.dist(alpha, 1.0), now)

    y = {"input": pt.as_tensor(np.array([0.1, 0.4, 0.2])), "taps": [0, -1]}
    with pm.Model() as model:
        alpha = pm.Normal("alpha")
        zero = pt.constant(0.0, dtype="float64")
        loop: Any = pytensor.scan(term, y, zero, [alpha], return_updates=False)
        pm.Potential("steps", loop[-1])
    step = pymc_deer.DeerMALA(model=model, backend=backend, window=1, metric="diag")
    evaluate = partial(step.solver.evaluate, metric=identity_metric("diag", 1), params=())
    assert np.isfinite(evaluate(np.ones(1))[0])
    assert not np.isfinite(evaluate(np.full(1, -0.5))[0])


class Alone(Parabola):
    """Through what a second call at the same time would spoil: a solver's memory, say."""

    n_inside = most_inside = 0

    def perform(self, node: Apply, inputs: Any, output_storage: Any) -> None:
        cls = type(self)
        cls.n_inside += 1
        cls.most_inside = max(cls.most_inside, cls.n_inside)
        time.sleep(1e-4)
        super().perform(node, inputs, output_storage)
        cls.n_inside -= 1


@cache
def of_python() -> pm.Model:
    with pm.Model() as model:
        term = pm.Deterministic("term", Alone()(pm.Normal("x")))
        pm.Potential("likelihood", term)
    return model


def most_at_once(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> int:
    """Calls of Python code at the same time, in chains and in recording them draw by draw."""
    monkeypatch.setattr(Alone, "most_inside", 0)
    monkeypatch.setattr("pymc_deer.chains.ensemble._MOST_NUMBERS", 1)
    monkeypatch.setattr("pymc_deer.chains.plan._LONGEST_CALL", 1)
    monkeypatch.setattr("pymc_deer.sampling.recorder._BLOCK_BYTES", 1)
    options: dict[str, Any] = {"kernel": "mala", "window": 1, "steps_per_draw": 20, "tune": 50}
    run(of_python(), "numba", cores=2, **(options | changes))
    return Alone.most_inside


NUMBA = pytest.mark.skipif("numba" not in BACKENDS, reason="Numba runs Python, JAX does not")
ONE_STEP = pytest.mark.usefixtures("steps_made_once")
OBJECT_MODE = pytest.mark.filterwarnings("ignore:Numba will use object mode:UserWarning")


@NUMBA
@OBJECT_MODE
@ONE_STEP
def test_python_code_is_called_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    assert most_at_once(monkeypatch) == 1


@NUMBA
@OBJECT_MODE
@ONE_STEP
def test_chains_in_threads_would_call_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NumbaSolver, "calls_python", False)
    assert most_at_once(monkeypatch, var_names=["x"]) == 2


@NUMBA
@OBJECT_MODE
@ONE_STEP
def test_a_recording_beside_the_chains_would_call_it_at_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("pymc_deer.sampling.recorder.calls_python", lambda outputs: False)
    assert most_at_once(monkeypatch) == 2


class StepForTrees(pm.Metropolis):
    """A library's, for its own kind of variable: here, by name."""

    @staticmethod
    def competence(var: Any, has_grad: bool) -> Any:
        return Competence.IDEAL if var.name == "trees" else Competence.INCOMPATIBLE


def test_variables_with_a_step_of_their_own_keep_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pymc.sampling.mcmc.STEP_METHODS", [*STEP_METHODS, StepForTrees])
    monkeypatch.setattr("pymc_deer.variables.STEP_METHODS", [*STEP_METHODS, StepForTrees])
    with pm.Model() as model:
        pm.Normal("y", pm.Normal("trees") + pm.Normal("x"), 1.0, observed=1.0)
        step = pymc_deer.DeerHMC(backend=BACKENDS[-1], window=1)
    assert [v.name for v in step.vars] == ["x"]
    idata = sample(step)
    assert "accepted" in idata["sample_stats"], "Metropolis has moved the trees"
    assert idata["posterior"]["trees"].std() > 0
    with pytest.raises(ModelError, match=r"^trees: pymc_deer\.sample moves"):
        run(model, BACKENDS[-1])
