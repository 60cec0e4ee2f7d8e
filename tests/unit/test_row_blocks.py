"""Arrays of a window's states and the data's rows in one kernel, as far as no GPU is needed.

Pallas interprets the kernel here, block by block as a GPU would run it.
"""

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor
import pytensor.tensor as pt
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from pytensor.graph.traversal import ancestors
from pytensor.tensor.math import Dot

import pymc_deer.backends.jax
from pymc_deer import examples
from pymc_deer.backends import make_solver
from pymc_deer.backends.first_that_runs import FirstThatRuns
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.jax_mode import JAX_KERNEL_MODE, JAX_MODE
from pymc_deer.backends.placement import ManyDevices, OneDevice
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.metric import identity_metric
from pymc_deer.ops import row_arithmetic, row_kernel
from pymc_deer.ops.pallas_kernels import kernel
from pymc_deer.ops.row_blocks import ROWS, STATES, RowBlocks, for_row_blocks
from pymc_deer.ops.row_blocks_jax import row_kernels_run
from pymc_deer.ops.row_kernel import RowKernel
from pymc_deer.ops.window_scan_kernel import chunk_length
from pymc_deer.sweep import Kernel, SweepSpec
from tests.support import interpret_kernels, quick_xla

PALLAS_CALL = row_kernel.pl.pallas_call
N, K = 5 * ROWS + 7, 5
MODES = JAX_KERNEL_MODE, "FAST_COMPILE"
RNG = np.random.default_rng(4)
COVARIATES = RNG.normal(size=(N, K)).astype("float32")
COUNTS = RNG.poisson(2.0, N)


@pytest.fixture(autouse=True)
def interpreted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """In float32, by Pallas's interpreter, which knows no instructions of a GPU."""
    interpret_kernels(monkeypatch)
    monkeypatch.setattr(row_arithmetic, "exp2", jax.numpy.exp2)
    monkeypatch.setattr(row_arithmetic, "reciprocal", jax.numpy.reciprocal)
    # The same numbers whichever tests ran before.
    monkeypatch.setitem(globals(), "RNG", np.random.default_rng(4))
    with pytensor.config.change_flags(floatX="float32"), jax.enable_x64(True), quick_xla():
        yield


def regression(likelihood: Callable[[Any], Any]) -> pm.Model:
    with pm.Model() as model:
        intercept = pm.Normal("intercept")
        slopes = pm.Normal("slopes", shape=K)
        likelihood(intercept + pt.dot(COVARIATES, slopes))
    return model


def of_unknown_spread(mean: Any) -> None:
    pm.Normal("y", mean, pm.HalfNormal("sigma"), observed=COVARIATES[:, 0] + 1)


MODELS: dict[str, Callable[[], pm.Model]] = {
    "logistic": lambda: regression(lambda x: pm.Bernoulli("y", logit_p=x, observed=COUNTS > 2)),
    "binomial": lambda: regression(lambda x: pm.Binomial("y", 9, logit_p=x, observed=COUNTS)),
    "normal": lambda: regression(of_unknown_spread),
    "horseshoe": examples.horseshoe,
}


def nodes_of(function: Any) -> list[Any]:
    return function.maker.fgraph.toposort()


def kernels_of(function: Any) -> list[RowBlocks]:
    return [node.op for node in nodes_of(function) if isinstance(node.op, RowBlocks)]


def compiled(model: pm.Model, width: int, mode: Any, prepared: bool = True) -> tuple[Any, Any]:
    """Logp and gradient of a window, and arguments for them."""
    density = build_density(model)
    density = for_row_blocks(density) if prepared else density
    x = pt.tensor("x", dtype=density.dtype, shape=(width, density.size))
    inputs, outputs = [x, *density.params], density.batch.both(x)
    function = pytensor.function(inputs, outputs, mode=mode, on_unused_input="ignore")
    states = 0.3 * np.random.default_rng(5).normal(size=(width, density.size))
    values = density.param_values(model.initial_point())
    return function, (states.astype(density.dtype), *values)


@pytest.mark.parametrize("name", MODELS)
def test_logp_and_gradient_are_those_without_a_kernel(name: str) -> None:
    width = 2 * STATES
    plain, arguments = compiled(MODELS[name](), width, JAX_MODE)
    blocked, _ = compiled(MODELS[name](), width, JAX_KERNEL_MODE)
    assert kernels_of(blocked)
    with jax.default_matmul_precision("highest"):
        for found, expected in zip(blocked(*arguments), plain(*arguments), strict=True):
            assert found.dtype == expected.dtype
            scale = np.abs(expected).max()
            assert_allclose(found, expected, rtol=1e-5, atol=1e-6 * scale)


def test_what_an_array_is_read_for_elsewhere_is_written() -> None:
    """And programs that share rows, of few states, add up what they find."""
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(N, K))
    offset, scale = pt.matrix("offset", shape=(STATES, N)), pt.matrix("scale", shape=(STATES, 1))
    mean = scale * pt.dot(x, rows.T) + offset
    outputs = [pt.dot(pt.exp(mean), rows), mean[:, ::2], pt.sum(mean, axis=1)]
    inputs = [x, rows, offset, scale]
    blocked, plain = (pytensor.function(inputs, outputs, mode=m) for m in MODES)
    [op] = kernels_of(blocked)
    assert len(op.output_types) == 3
    assert RowKernel(op.fgraph)._shares > 1
    values = [RNG.normal(size=v.type.shape).astype("float32") for v in inputs]
    for found, expected in zip(blocked(*values), plain(*values), strict=True):
        assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def logistic_terms() -> tuple[list[Any], list[Any]]:
    """Inputs, and outputs that are infinite or NaN where there are no rows."""
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(N, K))
    weight = pt.matrix("weight", shape=(1, N))
    terms = pt.softplus(pt.dot(x, rows.T)) / weight
    return [x, rows, weight], [pt.sum(terms, axis=1), pt.dot(terms, rows)]


def run_blocked(inputs: list[Any], outputs: list[Any]) -> tuple[Any, Any]:
    values = [1 + RNG.random(size=v.type.shape).astype("float32") for v in inputs]
    blocked, plain = (pytensor.function(inputs, outputs, mode=m) for m in MODES)
    assert kernels_of(blocked)
    return blocked(*values), plain(*values)


def test_there_is_nothing_beyond_the_last_row() -> None:
    for found, expected in zip(*run_blocked(*logistic_terms()), strict=True):
        assert_allclose(found, expected, rtol=1e-4)


def test_rows_that_there_are_not_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    made = row_kernel._Block.__init__

    def all_inside(block: Any, *arguments: Any) -> None:
        made(block, *arguments)
        block.inside = block.inside | True

    monkeypatch.setattr(row_kernel._Block, "__init__", all_inside)
    found, _ = run_blocked(*logistic_terms())
    assert not np.isfinite(found[0]).any()


def sums_of_zero_logits(monkeypatch: pytest.MonkeyPatch, group: int) -> np.ndarray:
    """One program's sums of so many rows that the product of their factors overflows."""
    monkeypatch.setattr(row_kernel, "_PROGRAMS", 1)
    monkeypatch.setattr(row_kernel, "_GROUP", group)
    n = 129 * ROWS
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(n, K))
    terms = pt.softplus(pt.dot(x, rows.T)).astype("float64")
    function = pytensor.function([x, rows], [pt.sum(terms, axis=1)], mode=JAX_KERNEL_MODE)
    [op] = kernels_of(function)
    kernel = RowKernel(op.fgraph)
    assert (kernel._shares, kernel._n_groups) == (1, -(-129 // group))
    return function(np.zeros((STATES, K), "float32"), np.ones((n, K), "float32"))[0] / n


def test_products_of_many_factors_are_cut_into_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    for group in (row_kernel._GROUP, 50):
        assert_allclose(sums_of_zero_logits(monkeypatch, group), np.log(2), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int64", "float64"])
def test_sums_of_whole_terms_are_no_sums_of_logistic_ones(dtype: str) -> None:
    """Of what a cast leaves of a softplus, and of the softplus of whole numbers."""
    # Far from where rounding would tell in the whole numbers.
    logits = pt.dot(X, ROW.T) + 0.5
    terms = [pt.cast(pt.softplus(logits), "int64"), pt.softplus(pt.cast(logits, "int32"))]
    outputs = [pt.sum(term.astype(dtype), axis=1) for term in terms]
    values = [RNG.integers(-2, 3, v.type.shape).astype("float32") for v in (X, ROW)]
    blocked, plain = (pytensor.function([X, ROW], outputs, mode=m) for m in MODES)
    assert kernels_of(blocked)
    for found, expected in zip(blocked(*values), plain(*values), strict=True):
        assert_allclose(found, expected, rtol=1e-5)


def test_what_is_read_transposed_is_no_factor_of_states() -> None:
    columns, rows = pt.matrix("x", shape=(K, STATES)), pt.matrix("rows", shape=(N, K))
    outputs = [pt.dot(pt.exp(pt.dot(columns.T, rows.T)), rows)]
    function = pytensor.function([columns, rows], outputs, mode=JAX_KERNEL_MODE)
    assert not kernels_of(function)
    values = [RNG.normal(size=v.type.shape).astype("float32") for v in (columns, rows)]
    assert np.isfinite(function(*values)[0]).all()


def test_products_that_overflow_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    assert np.isinf(sums_of_zero_logits(monkeypatch, 129)).all()


def test_pieces_of_numbers_make_up_for_them() -> None:
    values = (RNG.normal(size=1000) * 10.0 ** RNG.integers(-20, 20, 1000)).astype("float32")
    for half in (0, row_arithmetic.HALF):
        pieces = row_arithmetic.pieces_of(values, half)
        assert {piece.dtype.name for piece in pieces} == {"bfloat16"}
        assert_allclose(sum(np.asarray(p, "float64") for p in pieces), values, rtol=2.0**-24)


@pytest.mark.parametrize("bits", [0x7FFFFFFF, 0x7FC00000, 0xFFFFFFFF, 0x7F800000])
def test_what_is_not_finite_stays_so(bits: int) -> None:
    """A GPU's NaN has all bits set."""
    values = np.array([bits], "uint32").view("float32")
    for half in (0, row_arithmetic.HALF):
        assert not np.isfinite(sum(row_arithmetic.pieces_of(values, half)))


def test_products_are_as_precise_as_those_of_float32() -> None:
    """And are not with a piece less."""
    x, y = (RNG.normal(size=(64, 50)).astype("float32") for _ in range(2))
    exact = x.astype(float) @ y.astype(float).T
    pieces = row_arithmetic.pieces_of(x), row_arithmetic.pieces_of(y, row_arithmetic.HALF)

    def error(*factors: Any) -> float:
        return float(np.abs(np.asarray(row_arithmetic.product(*factors, 1, 1)) - exact).max())

    rounding = np.abs(x @ y.T - exact).max()
    assert error(*pieces) < 2 * rounding
    shorter = [[*of_one[:2], 0 * of_one[2]] for of_one in pieces]
    assert error(*shorter) > 4 * rounding


X = pt.matrix("x", shape=(STATES, K), dtype="float32")
ROW = pt.matrix("rows", shape=(N, K), dtype="float32")
WEIGHT = pt.matrix("weight", shape=(1, N), dtype="float32")
FLAG = pt.matrix("flag", shape=(1, N), dtype="bool")
FLAGS = pt.matrix("flags", shape=(STATES, N), dtype="bool")
LOGIT = pt.dot(X, ROW.T)
POSITIVE = pt.abs(LOGIT) + WEIGHT
FUNCTIONS: dict[str, Any] = {
    "difference": LOGIT - WEIGHT,
    "quotient": LOGIT / WEIGHT,
    "reciprocal": pt.reciprocal(POSITIVE),
    "square": pt.sqr(LOGIT),
    "root": pt.sqrt(POSITIVE),
    "exponential": pt.exp(LOGIT) - pt.expm1(WEIGHT),
    "logarithm": pt.log(POSITIVE) + pt.log1p(POSITIVE),
    "tanh": pt.tanh(LOGIT),
    "logistic": pt.sigmoid(40 * LOGIT) + pt.softplus(40 * LOGIT),
    "logistic of whole numbers": pt.sigmoid(pt.cast(LOGIT * 3, "int32"))
    + pt.softplus(pt.gt(LOGIT, 0)),
    "logistic in float64": pt.sigmoid(pt.cast(LOGIT, "float64")) * pt.softplus(WEIGHT),
    "power": POSITIVE**WEIGHT,
    "bounds": pt.clip(LOGIT, -1, 1) + pt.maximum(LOGIT, WEIGHT) - pt.minimum(LOGIT, 0.5),
    "choice": pt.switch(FLAG & (LOGIT > 0), LOGIT, pt.switch(~FLAG | (LOGIT <= -1), WEIGHT, 1)),
    "order": pt.switch(pt.eq(WEIGHT, 2) | (LOGIT >= WEIGHT) | pt.neq(FLAG, 0), LOGIT, -LOGIT),
    "not of what is read": pt.switch(~FLAGS, LOGIT, WEIGHT) + pt.switch(FLAGS, WEIGHT, 2 * LOGIT),
    "whole": pt.cast(LOGIT * 3, "int64") * LOGIT,
}


def test_elementwise_functions() -> None:
    """All of them in one kernel."""
    inputs = [X, ROW, WEIGHT, FLAG, FLAGS]
    outputs = [pt.sum(term.astype("float64"), axis=1) for term in FUNCTIONS.values()]
    outputs += [pt.dot(term.astype("float32"), ROW) for term in FUNCTIONS.values()]
    values = [RNG.normal(size=v.type.shape).astype("float32") for v in inputs[:2]]
    values += [1 + RNG.random((1, N)).astype("float32")]
    values += [RNG.random((n, N)) < 0.5 for n in (1, STATES)]
    blocked, plain = (
        pytensor.function(inputs, outputs, mode=m, on_unused_input="ignore") for m in MODES
    )
    [op] = kernels_of(blocked)
    assert not [n for n in nodes_of(blocked) if isinstance(n.op, Dot)]
    assert len(op.fgraph.outputs) == len(outputs)
    names = [*FUNCTIONS, *FUNCTIONS]
    for name, found, expected in zip(names, blocked(*values), plain(*values), strict=True):
        largest = np.abs(expected).max()
        assert_allclose(found, expected, rtol=2e-4, atol=1e-4 * largest, err_msg=name)


@pytest.mark.parametrize(
    ("width", "n", "columns", "dtype"),
    [
        (STATES + 1, N, K, "float32"),
        (STATES, ROWS, K, "float32"),
        (STATES, N, 500, "float32"),
        (STATES, N, K, "float64"),
    ],
)
def test_left_as_it_is(width: int, n: int, columns: int, dtype: str) -> None:
    """Windows that no blocks fill, few rows, many columns, float64."""
    x = pt.tensor("x", dtype=dtype, shape=(width, columns))
    rows = pt.tensor("rows", dtype=dtype, shape=(n, columns))
    product = pt.dot(pt.exp(pt.dot(x, rows.T)), rows)
    assert not kernels_of(pytensor.function([x, rows], product, mode=JAX_KERNEL_MODE))


def test_directions_of_an_unknown_number_are_left_as_they_are() -> None:
    """As those of a low-rank metric, whose products have the size of the states."""
    along = pt.tensor("along", dtype="float32", shape=(STATES, None))
    directions = pt.tensor("directions", dtype="float32", shape=(None, N))
    x = pt.tensor("x", dtype="float32", shape=(STATES, N))
    squared = pt.sum((x + pt.dot(along, directions)) ** 2, axis=1)
    function = pytensor.function([x, along, directions], squared, mode=JAX_KERNEL_MODE)
    assert not kernels_of(function)


def test_a_function_that_no_kernel_has_is_left_outside() -> None:
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(N, K))
    product = pt.dot(pt.gammaln(pt.dot(x, rows.T)), rows)
    assert not kernels_of(pytensor.function([x, rows], product, mode=JAX_KERNEL_MODE))


def test_functions_of_their_own_sums_are_left_as_they_are() -> None:
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(N, K))
    weights = pt.exp(pt.dot(x, rows.T))
    shares = weights / pt.sum(weights, axis=1, keepdims=True)
    blocked = pytensor.function([x, rows], pt.dot(shares, rows), mode=JAX_KERNEL_MODE)
    values = [RNG.normal(size=v.type.shape).astype("float32") for v in (x, rows)]
    expected = np.exp(values[0] @ values[1].T)
    expected = (expected / expected.sum(1, keepdims=True)) @ values[1]
    assert_allclose(blocked(*values), expected, rtol=1e-3, atol=1e-5)


def test_data_are_read_once_and_products_repeated() -> None:
    density = build_density(MODELS["logistic"]())
    prepared = for_row_blocks(density)
    matrices = [p for p in density.params if p.type.ndim == 2 and 1 not in p.type.shape]
    assert len(matrices) == 2
    used = set(ancestors([prepared.logp, prepared.dlogp]))
    assert [p for p in matrices if p in used] == [p for p in matrices if p.type.shape == (N, K)]
    assert len(density.parts) > 1
    assert prepared.parts == [prepared.x]


def test_constants_are_in_the_kernel() -> None:
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.constant(COVARIATES)
    counts = pt.constant(COUNTS[None].astype("float32"))
    outputs = [pt.dot(2.5 * pt.exp(pt.dot(x, rows.T)) - counts, rows)]
    blocked = pytensor.function([x], outputs, mode=JAX_KERNEL_MODE)
    assert kernels_of(blocked)
    value = RNG.normal(size=(STATES, K)).astype("float32")
    expected = (2.5 * np.exp(value @ COVARIATES.T) - COUNTS) @ COVARIATES
    assert_allclose(blocked(value)[0], expected, rtol=1e-4, atol=1e-2)


def test_stacks_of_matrices_are_left_as_they_are() -> None:
    """Functions of their transposes, as in gradients of Gaussian processes."""
    x = pt.tensor("x", dtype="float32", shape=(3, 4, 5))
    y = pt.exp(x)
    outputs = [y, y.dimshuffle(0, 2, 1)]
    value = np.random.default_rng(0).normal(size=(3, 4, 5)).astype("float32")
    with pytensor.config.change_flags(on_opt_error="raise"):
        function: Any = pytensor.function([x], outputs, mode=JAX_KERNEL_MODE)
    straight, transposed = function(value)
    assert_allclose(straight, np.exp(value), rtol=1e-6)
    assert_allclose(transposed, np.exp(value).transpose(0, 2, 1), rtol=1e-6)


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU with kernels of our own."""
    monkeypatch.setattr(OneDevice, "on_cpu", False)
    monkeypatch.setattr(OneDevice, "runs_kernels", True)
    monkeypatch.setattr("pymc_deer.backends.placement.gpu_options", lambda: None)


@pytest.fixture
def nothing_instead(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program without kernels, where that with them fails."""
    graphs = JaxSolver._window_graphs
    monkeypatch.setattr(JaxSolver, "_window_graphs", lambda solver: graphs(solver)[:1])


@pytest.fixture
def grids(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """Of all kernels that are made."""
    made: list[tuple[int, ...]] = []
    call = row_kernel.pl.pallas_call

    def noted(*arguments: Any, **options: Any) -> Any:
        made.append(options["grid"])
        return call(*arguments, **options)

    monkeypatch.setattr(row_kernel.pl, "pallas_call", noted)
    return made


@pytest.mark.usefixtures("on_a_gpu", "nothing_instead")
@pytest.mark.parametrize(("kernel", "chains"), [("mala", 1), ("hmc", 2)])
def test_windows_have_the_states_of_single_steps(
    kernel: Kernel, chains: int, grids: list[tuple[int, ...]]
) -> None:
    """Of the programs that a GPU would get, for one chain and for a batch."""
    density = build_density(MODELS["logistic"]())
    params = density.param_values({})
    spec = SweepSpec("dense", "secant", kernel=kernel, noise="device")
    n, metric = 2 * STATES, identity_metric("dense", density.size)
    tuning = Tuning(0.03, 1.0, metric, lengths=(1, 3) if kernel == "hmc" else (1, 1))
    solver = make_solver("jax", density, spec, WindowPlan(STATES, None, 1e-4, n))
    assert isinstance(solver, JaxSolver)
    solutions = []
    for window in (1, STATES):
        planned = solver.with_plan(replace(solver.plan, window=window))
        requests = [
            pymc_deer.backends.request.TapedRequest(
                np.zeros(density.size),
                Streams.spawn(np.random.default_rng(c)).tape(
                    n, density.size, tuning, planned.draw_momenta
                ),
                tuning,
                np.random.default_rng(c),
            )
            for c in range(chains)
        ]
        solutions.append(planned.solve_together(requests, params, n))
    # Of rows, and along the window.
    length = chunk_length(STATES)
    assert {grid[0] for grid in grids} == {1, STATES // length}
    for stepwise, windowed in zip(*solutions, strict=True):
        assert windowed.n_fallback == 0
        assert_allclose(windowed.z, stepwise.z, atol=1e-3)
        assert len(np.unique(stepwise.z[:, 0])) > n / 2


def solved_in_a_window() -> None:
    density = build_density(MODELS["logistic"]())
    params, spec = density.param_values({}), SweepSpec("diag", "secant")
    solver = make_solver("jax", density, spec, WindowPlan(STATES, None, 1e-4, STATES))
    tuning = Tuning(0.1, 1.0, identity_metric("diag", density.size))
    rng = np.random.default_rng(0)
    tape = Streams.spawn(rng).tape(STATES, density.size, tuning)
    for _ in range(2):
        found = solver.solve(np.zeros(density.size), tape, tuning, params, rng)
        assert (len(found), found.n_fallback) == (STATES, 0)


@pytest.mark.usefixtures("on_a_gpu")
def test_kernels_that_do_not_compile_are_left_out(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Here none does: Pallas has no compiler for a CPU."""
    monkeypatch.setattr(row_kernel.pl, "pallas_call", PALLAS_CALL)
    solved_in_a_window()
    # Those along rows, and those along the window.
    assert len(caplog.records) == 2


def test_a_program_in_another_form_runs_only_where_the_first_has_not() -> None:
    built: list[str] = []

    def refused() -> Any:
        built.append("refused")
        return failing

    def failing(x: Any) -> Any:
        raise NotImplementedError

    def missing() -> Any:
        raise ImportError

    def doubling() -> Any:
        built.append("doubling")
        return lambda x: 2 * x

    left_out: list[Exception] = []
    program = FirstThatRuns([missing, refused, doubling, refused], left_out.append)
    assert [program(2), program(3)] == [4, 6]
    assert built == ["refused", "doubling"]
    assert [type(error) for error in left_out] == [NotImplementedError]
    with pytest.raises(NotImplementedError):
        FirstThatRuns([refused, refused], left_out.append)(1)
    assert len(left_out) == 2

    def used_up(x: jax.Array) -> None:
        x.delete()
        raise RuntimeError("It ran.")

    with pytest.raises(RuntimeError, match="It ran"):
        FirstThatRuns([lambda: used_up, doubling], left_out.append)(jax.numpy.zeros(2))
    assert len(left_out) == 2


def test_a_form_that_memory_had_no_room_for_is_tried_again() -> None:
    room = [False, True]

    def tripling(x: Any) -> Any:
        if not room.pop(0):
            raise RuntimeError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 9 bytes")
        return 3 * x

    left_out: list[Exception] = []
    program = FirstThatRuns([lambda: tripling, lambda: lambda x: 2 * x], left_out.append)
    with pytest.raises(RuntimeError, match="Out of memory"):
        program(2)
    assert program(2) == 6
    assert not left_out


def test_a_cpu_has_xla_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.undo()
    assert not row_kernels_run.__wrapped__(None)
    [record] = caplog.records
    assert "Only interpret mode is supported on CPU backend" in record.getMessage()
    assert not OneDevice().runs_kernels
    assert len(caplog.records) == 1


def test_that_jax_means_to_give_up_triton_does_not_matter_yet() -> None:
    """Its warning, which the tests make an error, would leave out all kernels."""

    def warn() -> None:
        message = "The Pallas Triton backend is deprecated and will be removed in a future version"
        warnings.warn(message, DeprecationWarning, stacklevel=2)

    with pytest.raises(DeprecationWarning):
        warn()
    kernel(print, out_shape=())
    warn()
    with pytest.raises(DeprecationWarning):
        warnings.warn("Another backend is deprecated", DeprecationWarning, stacklevel=2)


@pytest.mark.usefixtures("on_a_gpu")
def test_kernels_along_rows_need_not_run_for_those_along_the_window(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    grids: list[tuple[int, ...]],
) -> None:
    def too_large(kernel: RowKernel, *arrays: Any) -> Any:
        raise NotImplementedError

    monkeypatch.setattr(RowKernel, "__call__", too_large)
    solved_in_a_window()
    assert {grid[0] for grid in grids} == {STATES // chunk_length(STATES)}
    assert not caplog.records


@pytest.mark.usefixtures("on_a_gpu")
def test_memory_is_not_asked_for_what_kernels_leave_out() -> None:
    def needed(n_rows: int) -> int:
        density = build_density(examples.correlated_logistic(n_rows, 5))
        spec, plan = SweepSpec("diag", "secant"), WindowPlan(STATES, None, 1e-4, STATES)
        return make_solver("jax", density, spec, plan).bytes_per_state()

    assert needed(20_000) < 1.1 * needed(1000) < 10_000
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OneDevice, "runs_kernels", False)
        assert needed(20_000) > 20_000 * 4


def test_chains_of_a_batch_share_the_programs_of_a_gpu() -> None:
    """Each has what it has alone."""
    x, rows = pt.matrix("x", shape=(STATES, K)), pt.matrix("rows", shape=(N, K))
    outputs = [pt.sum(pt.exp(pt.dot(x, rows.T)), axis=1)]
    function: Any = pytensor.function([x, rows], outputs, mode=JAX_KERNEL_MODE)
    [op] = kernels_of(function)
    assert RowKernel(op.fgraph)._shares > RowKernel(op.fgraph, 128)._shares > 1
    assert RowKernel(op.fgraph, 10**6)._shares == 1
    chains = 0.3 * RNG.normal(size=(128, STATES, K)).astype("float32")
    together = jax.vmap(lambda own: function.vm.jit_fn(own, COVARIATES)[0])(chains)
    for i in (0, 127):
        assert_allclose(together[i], function(chains[i], COVARIATES)[0], rtol=1e-5)


def test_without_a_gpu_pallas_is_not_imported() -> None:
    """It takes longer than all of JAX."""
    code = (
        "import sys, pymc, pymc_deer\n"
        "with pymc.Model(): pymc.Normal('x'); step = pymc_deer.DeerMALA(backend='jax')\n"
        "assert step.backend == 'jax'\n"
        "assert 'jax' in sys.modules\n"
        "print([name for name in sys.modules if name.startswith('jax.experimental.pallas')])"
    )
    command = [sys.executable, "-c", code]
    found = subprocess.run(command, check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "[]"


def test_devices_that_share_have_xla_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ManyDevices, "on_cpu", False)
    mesh = jax.sharding.Mesh(
        np.array(jax.devices()[:1]).reshape(1, 1, 1), ("chain", "window", "data")
    )
    assert not ManyDevices(mesh, 0).runs_kernels


def test_logistic_functions_hold_at_their_ends() -> None:
    values = np.array([0.0, -0.0, 1e-9, 30.0, -30.0, 800.0, -800.0], "float32")
    exact = np.logaddexp(0, values.astype(float))
    assert_allclose(row_arithmetic.softplus(values), exact, rtol=1e-6, atol=1e-7)
    exact = 1 / (1 + np.exp(-values.astype(float).clip(-80)))
    # The argument of an exponential to base 2 is rounded, 43 of it for 30.
    assert_allclose(row_arithmetic.sigmoid(values), exact, rtol=3e-6, atol=1e-30)
    assert np.isnan(row_arithmetic.sigmoid(np.float32("nan")))
    assert_array_equal(np.isnan(row_arithmetic.softplus(np.float32("nan"))), True)
