"""DEER's states equal those of sequential MALA and HMC, and of the NumPy oracle, on one tape."""

from dataclasses import replace
from itertools import product
from typing import Any

import numba
import numpy as np
import pytest

from pymc_deer import reference
from pymc_deer.backends.forecast import from_rest, on_standard_normal
from pymc_deer.backends.numba import NumbaSolver
from pymc_deer.jacobian import RULES, Rule
from pymc_deer.ops.batch import Batching
from pymc_deer.ops.scan import chain_states
from pymc_deer.options import BackendName
from tests.equivalence.problems import KERNELS, MODELS, Problem, problem
from tests.support import BACKENDS

WINDOWS = (16, 64, 512)
WINDOW = 64
TOLERANCES = (1e-6, 1e-9)

CHEAP: tuple[Rule, ...] = ("preconditioned", "secant", "stochastic")

# Cheap rules, and with paths all of them, on the smallest model; on a larger one, of matrix
# products, that with tangents, which evaluates gradients too. Random models have sums by group.
MALA_QUICK: dict[BackendName, list[tuple[str, Rule]]] = {
    "jax": [("eight_schools", rule) for rule in CHEAP],
    "numba": [("eight_schools", "secant")],
}

# All rules are one graph to both backends, which are compared in test_backends: on Numba one that
# remembers, and one that does not.
HMC_QUICK: dict[BackendName, list[tuple[str, Rule]]] = {
    "jax": [*(("eight_schools", rule) for rule in RULES), ("breast_cancer", "stochastic")],
    "numba": [("eight_schools", "preconditioned")],
}
MALA_SLOW: dict[BackendName, list[tuple[str, Rule]]] = {
    "jax": list(product(("correlated_gaussian", "horseshoe"), CHEAP)),
    "numba": [
        *(("eight_schools", rule) for rule in ("stochastic", "exact")),
        ("breast_cancer", "secant"),
    ],
}
HMC_SLOW: dict[BackendName, list[tuple[str, Rule]]] = {
    "jax": [*product(("radon", "horseshoe"), CHEAP), ("breast_cancer", "secant")],
    "numba": [("eight_schools", "stochastic")],
}


QUICK_CASES = {"mala": MALA_QUICK, "hmc": HMC_QUICK}
SLOW_CASES = {"mala": MALA_SLOW, "hmc": HMC_SLOW}


def _cases() -> list[Any]:
    """Slow where it takes long to compile. On Numba, which runs the same graph, not all rules."""
    cases = []
    for kernel, name, rule, backend in product(KERNELS, MODELS, RULES, BACKENDS):
        quick = (name, rule) in QUICK_CASES[kernel][backend]
        if not quick and (name, rule) not in SLOW_CASES[kernel][backend]:
            continue
        marks = [] if quick else [pytest.mark.slow]
        case = f"{kernel}-{name}-{rule}-{backend}"
        cases.append(pytest.param(kernel, name, rule, backend, marks=marks, id=case))
    return cases


@pytest.mark.timeout(1800)
@pytest.mark.parametrize(("kernel", "name", "rule", "backend"), _cases())
def test_windowed_states_equal_sequential(single_threaded, backend, kernel, name, rule):
    # JAX compiles anew for each width: all of them for the rule that remembers of each step.
    all_widths = backend == "numba" or (kernel, name, rule) == ("mala", "eight_schools", "secant")
    windows = WINDOWS if all_widths else (WINDOW,)
    for window in windows:
        check_window(problem(name, kernel), backend, rule, window)


def check_window(case: Problem, backend: BackendName, rule: Rule, window: int) -> None:
    """The states of 512 transitions, solved to each tolerance, are the sequential ones."""
    tape = case.tape(512)
    exact = case.run(case.solver(backend, 1), tape)
    accepted = exact.log_alpha > tape.log_u
    assert accepted.mean() > 0.2, "the tape must see acceptances"
    assert np.count_nonzero(~accepted) >= 5, "and rejections"

    solver = case.solver(backend, window, rule)
    for tol in TOLERANCES:
        solver.plan = replace(solver.plan, tol=tol)
        solved = case.run(solver, tape)
        assert solved.n_fallback == 0
        assert 0 < solved.n_sweeps <= 512
        assert np.abs(solved.z - exact.z).max() <= 100 * tol
        assert np.abs(solved.energy - exact.energy).max() <= 1e4 * tol
        moved = np.abs(solved.dlogp - exact.dlogp) <= 1e4 * tol * (1 + np.abs(exact.dlogp))
        assert moved.all()
        np.testing.assert_array_equal(solved.log_alpha > tape.log_u, accepted)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("kernel", "name"),
    [("mala", "eight_schools"), ("mala", "breast_cancer"), ("hmc", "eight_schools")],
)
def test_sequential_chain_equals_the_oracle(backend, name, kernel):
    case = problem(name, kernel)
    tape = case.tape(200, seed=1)
    solved = case.run(case.solver(backend, 1), tape)
    states, ratios = case.oracle(tape)
    assert np.abs(solved.z - states).max() < 1e-9
    assert np.abs(solved.log_alpha - ratios).max() < 1e-8
    starts = np.vstack([case.start, states[:-1]])
    potential = -np.array([case.whitened_logp_dlogp(z)[0] for z in starts])
    np.testing.assert_allclose(solved.energy, potential + (tape.xi**2).sum(axis=1) / 2, rtol=1e-9)


@pytest.mark.parametrize("standardized", [False, True], ids=["still", "forecast"])
def test_window_loop_equals_the_oracle_sweep_by_sweep(single_threaded, standardized):
    """The compiled loop makes the same sweeps as the plain one, not only the same states.

    With paths of one step and more: those of one step are MALA, sweep by sweep too.
    """
    case = problem("eight_schools", "hmc")
    tape = case.tape(100, seed=2)
    paths = tape.step_sizes(case.tuning.step_size), tape.lengths
    linear = on_standard_normal(np, *paths)
    ahead = chain_states(*from_rest(np, case.start, tape.xi, tape.log_u, *linear))
    states, sweeps = reference.windowed(
        case.whitened_logp_dlogp,
        case.start,
        tape.xi,
        tape.log_u,
        tape.step_sizes(case.tuning.step_size),
        window=16,
        curvature=case.tuning.curvature,
        tol=1e-6,
        n_leapfrog=tape.lengths,
        ahead=ahead if standardized else None,
        bend=linear.bend if standardized else 0.0,
    )
    guessing = replace(case, tuning=replace(case.tuning, standardized=standardized))
    for backend in BACKENDS:
        solved = guessing.run(case.solver(backend, 16), tape)
        # The first of JAX's guesses may be others, since decisions are guessed in few rounds.
        assert np.abs(solved.z - states).max() < (1e-9 if not standardized else 1e-5)
        # JAX keeps its last window full with noise that is thrown away, and may need one less.
        assert abs(solved.n_sweeps - sweeps) <= 1


@pytest.mark.parametrize(
    ("window", "backend"), [*((1, name) for name in BACKENDS), (64, BACKENDS[-1])]
)
def test_paths_of_one_step_are_mala(single_threaded, backend, window):
    """The loop over a path's steps, run once, and the step without a loop: one map.

    Of windows, one backend's: on each they give the states of single steps.
    """
    mala, hmc = (problem("eight_schools", kernel) for kernel in KERNELS)
    tape = mala.tape(256, seed=8)
    one, other = (
        replace(case, tuning=mala.tuning).run(case.solver(backend, window), tape)
        for case in (mala, hmc)
    )
    assert one.n_sweeps == other.n_sweeps
    assert (one.n_sweeps > 0) == (window > 1)
    for field in ("z", "logp", "dlogp", "log_alpha", "energy"):
        np.testing.assert_allclose(getattr(other, field), getattr(one, field), atol=1e-8)
    np.testing.assert_array_equal(other.n_leapfrog, np.ones(256))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("kernel", "rule"), [("mala", "secant"), ("hmc", "preconditioned")])
def test_sweeps_that_run_out_fall_back_to_exact_steps(single_threaded, backend, kernel, rule):
    case = problem("eight_schools", kernel)
    tape = case.tape(512)
    exact = case.run(case.solver(backend, 1), tape)
    solved = case.run(case.solver(backend, 64, rule, max_sweeps=1), tape)
    assert 0 < solved.n_fallback < 512
    assert solved.n_sweeps == 8
    assert np.abs(solved.z - exact.z).max() <= 1e-4


@pytest.mark.slow
@pytest.mark.skipif("numba" not in BACKENDS, reason="JAX's are in test_sweep_trace")
def test_states_that_numba_cannot_take_together_are_taken_one_by_one(single_threaded, monkeypatch):
    compile_windowed = NumbaSolver._compile_windowed

    def refused(solver: NumbaSolver, batching: Batching, threaded: bool) -> Any:
        if batching == "vectorized":
            raise NotImplementedError("a graph that fails when it is compiled")
        return compile_windowed(solver, batching, threaded)

    monkeypatch.setattr(NumbaSolver, "_compile_windowed", refused)
    case = problem("eight_schools")
    tape, solver = case.tape(128), case.new_solver("numba", 16, "secant")
    found, exact = case.run(solver, tape), case.run(case.solver("numba", 1), tape)
    assert solver.batching == "mapped"
    assert found.n_sweeps > 0
    assert found.n_fallback == 0
    assert np.abs(found.z - exact.z).max() <= 1e-4


@pytest.mark.slow
@pytest.mark.skipif("numba" not in BACKENDS, reason="threads are the Numba backend's")
def test_threads_change_nothing(monkeypatch):
    # Paths, which have a loop within that over blocks of states.
    case = problem("breast_cancer", "hmc")
    tape = case.tape(256)
    exact = case.run(case.solver("numba", 1), tape)
    solver = case.new_solver("numba", 128)
    monkeypatch.setattr("pymc_deer.backends.numba.available_threads", lambda: 2)
    monkeypatch.setattr(solver, "blas_threads", lambda: 2)
    set_threads, told = numba.set_num_threads, []
    monkeypatch.setattr(numba, "set_num_threads", lambda n: (told.append(n), set_threads(n)))
    n_threads = numba.get_num_threads()
    solved = case.run(solver, tape)
    assert told == [min(2, n_threads), n_threads], "as many as asked for, and given back"
    ran = [key for key in solver._programs if key != "sequential"]
    assert ran == [("preconditioned", True)], "the threaded loop must be the one that ran"
    assert np.abs(solved.z - exact.z).max() <= 1e-4
