"""What a window is expected to need and to gain, before anything is measured."""

import numpy as np

from pymc_deer.backends import make_solver
from pymc_deer.backends.base import WindowPlan
from pymc_deer.density import build_density
from pymc_deer.examples import correlated_logistic
from pymc_deer.options import BackendName
from pymc_deer.sweep import SweepSpec


def solver_of(backend: BackendName, n_observations: int, n_features: int = 5):
    model = correlated_logistic(n_observations, n_features)
    density = build_density(model)
    plan = WindowPlan(1, None, tol=1e-6, capacity=8)
    params = density.param_values(model.initial_point())
    return make_solver(backend, density, SweepSpec("diag"), plan), params


def test_jax_counts_what_a_state_of_more_data_takes() -> None:
    small, large = (solver_of("jax", n)[0].bytes_per_state() for n in (100, 10_000))
    assert 8 * 100 <= small < large
    assert 8 * 10_000 <= large <= 100 * 8 * 10_000


def test_numba_needs_the_same_for_any_data() -> None:
    small, large = (solver_of("numba", n)[0].bytes_per_state() for n in (100, 10_000))
    assert small == large > 0


def test_matrices_beyond_the_cache_promise_more_and_threads_nothing() -> None:
    """Chains in worker processes have no threads to spare, whatever this process has."""
    small, params = solver_of("numba", 100)
    assert small.batch_gain_bound(params) == 2
    large, params = solver_of("numba", 40_000)
    assert large.batch_gain_bound(params) == 8
    on_jax, params = solver_of("jax", 100)
    assert on_jax.batch_gain_bound(params) == np.inf


def test_some_memory_is_free() -> None:
    for backend in ("numba", "jax"):
        assert solver_of(backend, 100)[0].free_memory() > 2**20
