"""What a profile says, from counts and costs known by hand; nothing is compiled or timed."""

from dataclasses import replace
from math import isnan
from typing import Any, cast

import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from pytensor.compile.builders import OpFromGraph

from pymc_deer.chains.trials import Trial, Trials
from pymc_deer.density import build_density
from pymc_deer.options import profiled_backends, profiled_windows
from pymc_deer.profiling.cost_shares import (
    FUNCTION_COST,
    Work,
    count_constants,
    count_gradient,
    count_unequal,
    count_work,
)
from pymc_deer.profiling.cost_shares import libraries as libraries_of
from pymc_deer.profiling.profile import window_cost
from pymc_deer.profiling.recommendation import WindowCost, recommend
from pymc_deer.profiling.report import Profile, _bytes_shown
from pymc_deer.status import BackendError
from tests.support import Opaque

N, D, W = 100, 3, 7


def array(name: str, *shape: int | None, dtype: str = "float64") -> Any:
    return pt.tensor(name, dtype=dtype, shape=shape)


X, MATRIX, BATCH = array("x", D), array("a", N, D), array("b", W, D)
SQUARE, GROUP = array("s", D, D), array("g", N, dtype="int64")


def decayed() -> Any:
    return pytensor.scan(lambda s: s * s + 1.0, outputs_info=X, n_steps=5, return_updates=False)


# Multiplications and additions of a product: twice its numbers times the axis summed over.
COUNTED = {
    "matrix-vector": (lambda: MATRIX @ X, Work(matrix=2 * N * D)),
    "matrix-matrix": (lambda: MATRIX @ BATCH.T, Work(matrix=2 * N * W * D)),
    "batched": (lambda: pt.matmul(array("c", W, N, D), SQUARE), Work(matrix=2 * W * N * D * D)),
    "cholesky": (lambda: pt.linalg.cholesky(SQUARE), Work(matrix=D**3)),
    "triangular": (
        lambda: pt.linalg.solve_triangular(SQUARE, X, lower=True, b_ndim=1),
        Work(matrix=D**2),
    ),
    "twice triangular": (
        lambda: pt.linalg.cho_solve((SQUARE, True), X, b_ndim=1),
        Work(matrix=2 * D**2),
    ),
    "sum": (lambda: pt.sum(MATRIX), Work(elementwise=N * D)),
    "product and sum of three": (lambda: MATRIX * MATRIX + 1.0, Work(elementwise=2 * N * D)),
    "exponential": (lambda: pt.exp(X), Work(elementwise=FUNCTION_COST * D)),
    "gather": (lambda: X[GROUP], Work(indexing=N)),
    "scatter": (lambda: pt.inc_subtensor(X[GROUP], array("y", N)), Work(indexing=N)),
    "views": (lambda: BATCH[1:, 0].reshape((2, 3)).T, Work()),
    "loop": (decayed, Work(elementwise=5 * 2 * D)),
    "unknown": (lambda: Opaque()(MATRIX), Work(other=N * D)),
}


@pytest.mark.parametrize("name", COUNTED)
def test_operations_are_counted_by_kind(name: str) -> None:
    build, expected = COUNTED[name]
    counted = count_work([build()])
    if name == "loop":
        # What starts and ends it copies its states.
        assert counted.elementwise == expected.elementwise
        assert counted.matrix == counted.other == 0
    else:
        assert counted == expected


def test_a_length_that_follows_from_static_ones_is_found() -> None:
    made = pt.exp(X[0] * pt.arange(MATRIX.shape[0]))
    assert made.type.shape == (None,)
    assert count_work([made]) == Work(elementwise=N * (1 + FUNCTION_COST))
    assert count_work([pt.exp(array("y", None))]) == Work(elementwise=FUNCTION_COST)


def test_inside_an_op_arrays_are_as_long_as_those_that_it_is_given() -> None:
    def functions(x: Any) -> float:
        return count_work([pt.special.softmax(x)]).elementwise - count_work([x]).elementwise

    static = functions(array("v", N))
    assert static > N * FUNCTION_COST
    made = X[0] * pt.arange(MATRIX.shape[0])
    assert made.type.shape == (None,)
    assert functions(made) == static
    assert functions(array("u", None)) == static / N


def test_inside_an_op_lengths_that_are_not_known_contradict_none_that_are() -> None:
    u, a, b = array("u", N, None), array("a", N, None), array("b", D, N)
    product = OpFromGraph([a, b], [pt.dot(b, pt.exp(a))])
    assert count_work([product(u, b)]) == Work(matrix=2 * D * N, elementwise=N * FUNCTION_COST)
    v, w = array("v", None), array("w", None)
    joined = OpFromGraph([v, w], [pt.dot(v, w)])
    assert count_work([joined(array("y", None), X)]).matrix > 0


def test_a_loop_over_arrays_of_unknown_length_is_followed_into() -> None:
    def step(s: Any) -> Any:
        return pt.exp(2 * s)[: s.shape[0]]

    start = array("u", None)
    states = pytensor.scan(step, outputs_info=start, n_steps=5, return_updates=False)
    assert count_work([states]).elementwise >= 5 * FUNCTION_COST


def test_shared_nodes_are_counted_once() -> None:
    product = MATRIX @ X
    assert count_work([product, pt.exp(product)]).matrix == 2 * N * D


def test_shares_sum_to_one() -> None:
    work = count_work([pt.exp(MATRIX @ X)]) + Work(indexing=10.0).times(2)
    assert sum(work.shares.values()) == pytest.approx(1.0)
    assert work.shares["indexing"] == pytest.approx(20 / work.total)
    assert set(Work().shares.values()) == {0.0}


def test_a_regression_reads_its_data_in_products() -> None:
    data = np.random.default_rng(0).normal(size=(N, D))
    with pm.Model() as model:
        beta = pm.Normal("beta", shape=D)
        pm.Normal("y", pt.dot(data, beta), observed=np.zeros(N))
    density = build_density(model)
    # One product for logp and one for the gradient.
    assert count_gradient(density).matrix == 2 * 2 * N * D
    assert count_constants(density) < N


def test_each_device_has_its_libraries() -> None:
    assert libraries_of("numba", "cpu").matrix.startswith("BLAS (")
    assert "Eigen" in libraries_of("jax", "cpu").matrix
    assert "cuBLAS" in libraries_of("jax", "NVIDIA H200").matrix
    assert libraries_of("jax", "NVIDIA H200").device == "NVIDIA H200"


SMALL, LARGE = 2.0, 200.0
PRODUCTS, ELEMENTWISE = Work(matrix=9.0, elementwise=1.0), Work(elementwise=1.0)


def single(backend: str = "numba", device: str = "cpu", us: float = LARGE) -> WindowCost:
    return WindowCost(backend, device, 1, us, 0.0, transitions_per_second=1e6 / us)


def wide(speed: float, backend: str = "jax", device: str = "cpu", window: int = 64) -> WindowCost:
    return WindowCost(backend, device, window, 1.0, 100.0, 50.0, speed)


def test_the_chain_step_by_step_goes_to_the_fastest_backend() -> None:
    text = recommend([single(us=SMALL), single("jax", us=3.0), wide(5e3)], ELEMENTWISE, "float64")
    assert text.startswith("Take pymc_deer.sample(backend='numba', window=1) on cpu")
    assert "in Python for each draw, where a gradient takes 2." in text
    assert "The best window, 64 on jax (cpu), makes 5,000" in text
    # A sweep of it may take as long as 10 transitions on a GPU: 100 for 1000 transitions.
    assert "128 gradients in one batch, takes less than 20 microseconds" in text


@pytest.mark.parametrize("us", [SMALL, LARGE])
def test_others_stay_step_by_step_where_no_window_pays(us: float) -> None:
    costs = [single(us=2 * us), single("jax", us=us), wide(1e3)]
    text = recommend(costs, ELEMENTWISE, "float64")
    assert text.startswith("Take pymc_deer.sample(backend='jax', window=1) on cpu")
    assert "try plain NUTS, pm.sample(): it finds" in text
    assert ("spends in Python" in text) == (us == SMALL)


def test_numba_alone_is_taken_step_by_step() -> None:
    text = recommend([single(), wide(1.0, "numba")], ELEMENTWISE, "float64")
    assert text.startswith("Take pymc_deer.sample(backend='numba', window=1) on cpu")


@pytest.mark.parametrize(("gain", "chosen"), [(1.05, "window=1"), (1.2, "window=64")])
def test_a_window_must_beat_the_clocks_noise(gain: float, chosen: str) -> None:
    text = recommend([single(), wide(gain * 1e6 / LARGE)], ELEMENTWISE, "float64")
    assert chosen in text.split(": ")[0]
    assert "pymc_deer.sample(backend='jax') on" not in text, "which has no windows on a CPU"


def test_windows_on_a_gpu_are_taken_where_they_are_fastest() -> None:
    gpu = "NVIDIA H200"
    costs = [single(), single("jax", gpu, 300.0)]
    costs += [wide(50e3, device=gpu), wide(40e3, device=gpu, window=256)]
    text = recommend(costs, PRODUCTS, "float64")
    assert text.startswith("Take pymc_deer.sample(backend='jax') on NVIDIA H200, which measures")
    assert "DeerMALA(backend='jax', window=64) makes 50,000 transitions a second" in text
    assert "10 times those of the fastest chain step by step (numba on cpu)" in text
    assert "floatX = 'float32'" in text
    assert "widest" not in text
    assert "GPU was measured" not in text
    assert "floatX" not in recommend(costs, ELEMENTWISE, "float64")
    assert "widest that was measured: try windows=(64, 256)" in recommend(
        costs[:3], PRODUCTS, "float64"
    )


def test_a_model_in_single_precision_stays_so() -> None:
    text = recommend([single(device="GPU")], PRODUCTS, "float32")
    assert "float32, as the model has it" in text


def test_beside_other_steps_there_are_no_windows() -> None:
    text = recommend([single(), wide(1e9)], ELEMENTWISE, "float64", discrete=["k", "m"])
    assert text.startswith("Take DeerMALA(backend='numba', window=1) on cpu beside")
    assert "k, m" in text


def test_no_backend_runs_the_model() -> None:
    costs = [WindowCost(name, "cpu", 1, note="No.") for name in ("numba", "jax")]
    text = recommend(costs, ELEMENTWISE, "float64")
    assert text.startswith("No backend runs this model")
    for measured, left_out in (costs, reversed(costs)):
        text = recommend([measured], ELEMENTWISE, "float64")
        assert text.startswith("No backend that was measured runs this model")
        assert f"{left_out.backend} was left out: try profile(" in text


class ScriptedTrials:
    """Trials whose outcome is given: 10 microseconds step by step, sweeps of 100."""

    sequential_seconds, n_transitions = 1e-5, 1000

    def __init__(self, *, fits: bool = True, compiles: bool = True, needs: float = 20.0) -> None:
        self.room, self.compiles, self.needs = fits, compiles, needs

    def fits(self, window: int) -> bool:
        return self.room

    def warm_up(self, window: int, rule: str) -> None:
        if not self.compiles:
            raise BackendError("The sweep does not compile.")

    def sweep_seconds(self, window: int, rule: str) -> float:
        return 1e-4

    def run(self, window: int, rule: str, max_sweeps: int | None) -> Trial:
        """It needs so many sweeps for each window; in a chain one takes 50 microseconds."""
        assert max_sweeps is not None
        if self.needs > max_sweeps:
            return Trial(window, "secant", 1.5, max_sweeps, np.inf, np.inf)
        sweeps = 1000 * self.needs / window
        return Trial(window, "secant", 1.5, max_sweeps, sweeps, 50e-3 * sweeps)


def measured(window: int = 64, **script: Any) -> WindowCost:
    return window_cost(WindowCost("jax", "cpu", window), cast(Any, ScriptedTrials(**script)))


def test_a_windows_cost_is_that_of_its_sweeps_in_a_chain() -> None:
    cost = measured()
    assert cost.sweeps_per_1000 == 1000 * 20 / 64
    assert cost.gradient_us == pytest.approx(50 / 128)
    assert cost.pays_below == pytest.approx(1000 * 10 / 50)
    assert cost.transitions_per_second == pytest.approx(64e6 / (20 * 50))
    assert not cost.note


def test_a_window_that_needs_too_many_sweeps_says_how_many() -> None:
    cost = measured(needs=1e9)
    assert cost.note == "more than 1000 sweeps for 1000 transitions, given up."
    assert not cost.is_measured
    # Its sweeps were timed all the same.
    assert cost.gradient_us == pytest.approx(100 / 128)


@pytest.mark.parametrize(
    ("script", "note"),
    [({"fits": False}, "not tried"), ({"compiles": False}, "The sweep does not compile.")],
)
def test_a_window_that_was_not_measured_says_why(script: dict[str, bool], note: str) -> None:
    cost = measured(**script)
    assert cost.note.startswith(note)
    assert not cost.is_measured
    assert isnan(cost.gradient_us)


def test_trials_is_what_the_script_stands_for() -> None:
    for name in ("sequential_seconds", "n_transitions", "fits", "warm_up", "sweep_seconds", "run"):
        assert hasattr(Trials, name)


REASON = "JAX cannot compile <this> model"
REPORT = Profile(
    n_dim=3,
    dtype="float64",
    n_data=2000,
    data_bytes=16_000,
    metric="dense",
    work=PRODUCTS,
    libraries={"numba": libraries_of("numba", "cpu"), "jax": libraries_of("jax", "<GPU>")},
    costs=(
        replace(single(), memory_bytes=5e6, compile_seconds=1.5),
        *(WindowCost("jax", "cpu", width, note=REASON) for width in (1, 64)),
    ),
)


@pytest.mark.parametrize(
    ("n", "shown"),
    [(12.0, "12 B"), (999.4, "999 B"), (999_900.0, "1 MB"), (5e6, "5 MB"), (5e12, "5 TB")],
)
def test_bytes_are_shown_in_the_unit_that_they_round_to(n: float, shown: str) -> None:
    assert _bytes_shown(n) == shown


def test_a_profile_prints_facts_costs_notes_and_advice() -> None:
    text = str(REPORT)
    for part in ("D = 3, float64", "2,000 numbers, 16 kB", "90% matrix products", "5 MB"):
        assert part in text
    assert f"jax, window 1, 64: {REASON}" in text
    assert text.count(REASON) == 1
    assert "Take pymc_deer.sample(backend='numba', window=1)" in text


def test_a_notebook_shows_the_same() -> None:
    html = REPORT._repr_html_()
    assert html.count("<table>") == 2
    assert html.count("<tr>") == (1 + 2) + (1 + 3)
    assert "<td>&lt;GPU&gt;</td>" in html
    assert "JAX cannot compile &lt;this&gt; model" in html
    assert "sample(backend=&#x27;numba&#x27;, window=1)" in html


def test_the_dataframe_has_a_row_for_each_backend_and_width() -> None:
    frame = REPORT.to_dataframe()
    assert frame.columns.tolist() == [
        *("backend", "device", "window", "gradient_us", "sweeps_per_1000", "pays_below"),
        *("transitions_per_second", "memory_bytes", "compile_seconds", "note"),
    ]
    assert frame["window"].tolist() == [1, 1, 64]
    assert frame["gradient_us"][0] == LARGE
    assert isnan(frame["transitions_per_second"][1])


def test_the_chain_step_by_step_is_always_measured() -> None:
    assert profiled_windows(np.array([64, 16, 16])) == (1, 16, 64)
    assert profiled_windows(range(1, 3)) == (1, 2)


def test_backends_are_both_or_those_named() -> None:
    assert profiled_backends(None) == ("numba", "jax")
    assert profiled_backends({"jax": 1}) == ("jax",)
    assert profiled_backends(["jax", "jax", "numba"]) == ("jax", "numba")


def test_numbers_are_indexed_by_arrays_alone() -> None:
    """Slices and joins are copied as a whole, on every backend."""
    with pm.Model() as model:
        group = pm.Normal("group", shape=4)
        both = pt.concatenate([group[np.arange(100) % 4], group[1:]])
        pm.Normal("y", both, observed=np.ones(103))
    # Gathered, and their gradients scattered.
    assert count_unequal(build_density(model)).indexed == 200


def test_counting_leaves_the_gradient_as_it_was() -> None:
    """Compiled later, it is the one that is compiled where nothing was counted."""
    with pm.Model() as model:
        mu, s = pm.Normal("mu"), pm.HalfNormal("s")
        pm.Normal("y", mu, s, observed=np.linspace(-1.0, 2.0, 20))
    density = build_density(model)
    outputs = [density.logp, density.dlogp]
    before = pytensor.dprint(outputs, file="str")
    count_unequal(density)
    assert pytensor.dprint(outputs, file="str") == before


def test_functions_are_counted_for_each_number() -> None:
    with pm.Model() as model:
        group = pm.Normal("group", shape=4)
        pm.Potential("sum", -pt.exp(group[np.arange(100) % 4]).sum())
    # The gradient's exponentials are those of logp.
    assert count_unequal(build_density(model)) == (200, 100, 0)


def test_factorizations_and_solves_are_counted_alone() -> None:
    """The product of the covariance with itself is none of them."""
    with pm.Model() as model:
        scale = pm.HalfNormal("scale")
        covariance = scale * pt.eye(30) + 1.0
        pm.MvNormal("y", np.zeros(30), cov=covariance @ covariance, observed=np.ones(30))
    factored = count_unequal(build_density(model)).factored
    # The factor, a vector's solve with it, and of the gradient two solves with a matrix at most.
    assert 30**3 < factored <= 4 * 30**3
