"""Where a solve is cut into calls leaves no trace in what it finds, to the last bit."""

from collections import defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import pymc_deer.backends.jax_programs
from pymc_deer.backends.base import Solver
from pymc_deer.backends.pace import Pace
from pymc_deer.backends.trajectory import SOLVED
from pymc_deer.jacobian import Rule
from pymc_deer.options import BackendName
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS, quick_xla

N = 200


class FixedPace(Pace):
    """Calls of so many pieces each, whatever they take."""

    def __init__(self, pieces: int) -> None:
        super().__init__()
        self.pieces, self.n_calls, self.done = pieces, 0, 0

    def allows(self, weight: float) -> int:
        self.n_calls += 1
        return self.pieces

    def took(self, pieces: int, weight: float) -> None:
        self.done += pieces


@cache
def solver_of(backend: BackendName, window: int, rule: Rule = "secant") -> Solver:
    return problem("eight_schools").solver(backend, window, rule)


def solved_in_calls(case: Problem, solver: Solver, pieces: int) -> tuple[Any, list[FixedPace]]:
    paces: Any = defaultdict(lambda: FixedPace(pieces))
    solver._paces = paces
    solved = case.run(solver, case.tape(N))
    return solved, list(paces.values())


def check_cuts(case: Problem, solver: Solver) -> None:
    """In one call, in calls of five pieces, and piece by piece: the same, and as many calls."""
    whole, paces = solved_in_calls(case, solver, 10**9)
    assert [pace.n_calls for pace in paces] == [1] * len(paces)
    for pieces in (5, 1):
        cut, paces = solved_in_calls(case, solver, pieces)
        done = sum(pace.done for pace in paces)
        assert done == (N if cut.n_sweeps == 0 else cut.n_sweeps + cut.n_fallback)
        assert sum(pace.n_calls for pace in paces) == sum(-(-p.done // pieces) for p in paces)
        assert (cut.n_sweeps, cut.n_fallback) == (whole.n_sweeps, whole.n_fallback)
        for name in SOLVED:
            np.testing.assert_array_equal(getattr(cut, name), getattr(whole, name))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kernel", ["mala", "hmc"])
def test_steps(backend, kernel):
    case = problem("eight_schools", kernel)
    check_cuts(case, case.solver(backend, 1))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rule", ["secant", pytest.param("stochastic", marks=pytest.mark.slow)])
def test_sweeps(single_threaded, backend, rule: Rule):
    """These rules remember: gradients from one sweep to the next, or a stream of probes."""
    check_cuts(problem("eight_schools"), solver_of(backend, 64, rule))


@pytest.mark.parametrize("backend", BACKENDS)
def test_sweeps_that_run_out(single_threaded, backend):
    solver = solver_of(backend, 64)
    starved = solver.with_plan(replace(solver.plan, max_sweeps=4))
    check_cuts(problem("eight_schools"), starved)


@pytest.mark.skipif("jax" not in BACKENDS, reason="the mutant is JAX's")
@pytest.mark.parametrize("forgotten", ["guess", "memory"])
def test_a_call_that_forgets_is_caught(single_threaded, monkeypatch, forgotten):
    loop = pymc_deer.backends.jax_programs.windowed_loop

    def forgetful(*arguments):
        *counts, guess, memory, start = loop(*arguments)
        if forgotten == "guess":
            guess = 0 * guess + start[:, None]
        else:
            memory = memory * np.nan
        return *counts, guess, memory, start

    monkeypatch.setattr(pymc_deer.backends.jax_programs, "windowed_loop", forgetful)
    case = problem("eight_schools")
    with quick_xla(), pytest.raises(AssertionError):
        check_cuts(case, case.new_solver("jax", 64, "secant"))
