"""Momenta made on the device: the same chain as from a tape that holds them."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import scipy.stats
from numpy.testing import assert_allclose

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.noise import Tape, draw_keys
from pymc_deer.sweep import Kernel
from tests.equivalence.problems import Problem, problem
from tests.support import BACKENDS

pytestmark = pytest.mark.skipif("jax" not in BACKENDS, reason="Numba has no device but the host")

N = 120


def keyed(tape: Tape) -> Tape:
    """The tape with keys in place of momenta."""
    return replace(tape, xi=draw_keys(np.random.default_rng(3), len(tape), 0))


def unlocked(tape: Tape, case: Problem) -> Tape:
    """A tape of keys with the momenta that they stand for."""
    import jax

    from pymc_deer.backends.jax_loops import momenta_of_keys

    with jax.enable_x64(True):
        xi = momenta_of_keys(jax.numpy.asarray(tape.xi), case.density.size, case.density.dtype)
        return replace(tape, xi=np.asarray(xi))


@cache
def solver_on_device(kernel: Kernel, window: int) -> Solver:
    case = problem("eight_schools", kernel)
    host = case.solver("jax", window, "secant")
    return make_solver("jax", case.density, replace(host.spec, noise="device"), host.plan)


@pytest.mark.parametrize(("window", "kernel"), [(1, "mala"), (64, "hmc")])
def test_the_states_are_those_of_a_tape_with_the_same_momenta(window: int, kernel: Kernel) -> None:
    case = problem("eight_schools", kernel)
    tape = keyed(case.tape(N))
    found = case.run(solver_on_device(kernel, window), tape)
    z, log_alpha = case.oracle(unlocked(tape, case))
    assert_allclose(found.z, z, atol=1e-5)
    # Of states that are as near, where logp is steep.
    assert_allclose(found.log_alpha, log_alpha, rtol=1e-4, atol=1e-4)


def test_other_keys_give_other_states() -> None:
    case = problem("eight_schools")
    tape = keyed(case.tape(N))
    other = replace(tape, xi=tape.xi ^ np.uint64(2**40))
    solver = solver_on_device("mala", 1)
    assert np.abs(case.run(solver, tape).z - case.run(solver, other).z).max() > 0.1


def test_momenta_are_standard_normal_whichever_bits_of_the_keys_differ() -> None:
    case = problem("eight_schools")
    for keys in (np.arange(4000), np.arange(4000) << 32):
        tape = Tape(keys.astype(np.uint64), np.zeros(4000))
        xi = unlocked(tape, case).xi
        assert len(np.unique(xi)) == xi.size
        assert_allclose(xi.mean(axis=0), 0.0, atol=5 / np.sqrt(4000))
        assert_allclose(xi.std(axis=0), 1.0, atol=5 / np.sqrt(8000))
        # Of all of them, to 2%, tails included.
        assert_allclose(xi.std(), 1.0, atol=5 / np.sqrt(2 * xi.size))
        assert scipy.stats.kstest(xi.ravel(), "norm").pvalue > 1e-3
        assert np.abs(xi).max() > 3.9
        assert np.abs(np.corrcoef(xi[1:].ravel(), xi[:-1].ravel())[0, 1]) < 5 / np.sqrt(xi.size)
