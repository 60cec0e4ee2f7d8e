"""Paths that compute logp at their ends: ``uv run python -m tests.benchmarks.logp_at_ends``.

A chain step by step, of paths of four leapfrog steps, with logp at the end of each path alone, over
the same with logp at every step; and, on JAX, with logistic terms summed by logarithms of products,
over the same with a logarithm for each, for DeerHMC and for DeerMALA, which needs logp at every
step. In turns, one thread, nothing but what is compiled; medians of ratios. The rows go to
``docs/benchmarks/logp_at_ends.json``.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from unittest.mock import PropertyMock, patch

import numpy as np
from threadpoolctl import threadpool_limits

from pymc_deer.backends import make_solver
from pymc_deer.backends.jax import JaxSolver
from pymc_deer.backends.jax_mode import JAX_MODE
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density, build_density
from pymc_deer.graphs.gradient_first import GradientFirst
from pymc_deer.metric import identity_metric
from pymc_deer.noise import Tape
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel, SweepSpec
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import paired_ratio, take_no_options, write

MODELS = (
    *("eight_schools", "german_credit", "radon", "horseshoe", "stochastic_volatility"),
    *("hierarchical_100", "logistic_10k"),
)
PATH = 4
REPEATS = 15


def logp_everywhere(density: Density) -> AbstractContextManager[object]:
    """Have paths of programs compiled meanwhile compute logp at every step."""
    both = GradientFirst.of_both(density.single.both)
    return patch.object(Density, "single", PropertyMock(return_value=both))


def each_logarithm() -> AbstractContextManager[object]:
    """Have JAX take the logarithms one by one."""
    return patch.object(JaxSolver, "_mode", PropertyMock(return_value=JAX_MODE))


def chain(backend: BackendName, kernel: Kernel, density: Density, n: int) -> Callable[[], object]:
    """A chain of n transitions, compiled."""
    spec, plan = SweepSpec("diag", kernel=kernel), WindowPlan(1, None, 1.0, capacity=n)
    solver = make_solver(backend, density, spec, plan)
    rng = np.random.default_rng(1)
    lengths = np.full(n, PATH if kernel == "hmc" else 1)
    tape = Tape(rng.normal(size=(n, density.size)), -rng.exponential(size=n), None, lengths)
    tuning = Tuning(1e-3, 1.0, identity_metric("diag", density.size))
    request = TapedRequest(0.1 * rng.normal(size=density.size), tape, tuning, rng)
    params = density.param_values(density.initial_point)

    def run() -> object:
        return solver.run(request, params)

    # Compiled here, where what is patched is.
    run()
    return run


def rows() -> Iterator[dict[str, object]]:
    """Each model and backend."""
    for name in MODELS:
        model = CASES[name].build()
        for backend in ("jax", "numba"):
            density = build_density(model)
            n = 64 if name == "logistic_10k" else 2048
            ours = chain(backend, "hmc", density, n)
            with logp_everywhere(density):
                everywhere = chain(backend, "hmc", density, n)
            ratio, seconds, _ = paired_ratio(ours, everywhere, REPEATS)
            row: dict[str, object] = {"model": name, "backend": backend}
            row |= {"us": _short(1e6 * seconds / (n * PATH)), "at_ends": _short(ratio)}
            if backend == "jax":
                for kernel in ("hmc", "mala"):
                    products = chain(backend, kernel, density, n)
                    with each_logarithm():
                        one_by_one = chain(backend, kernel, density, n)
                    ratio, *_ = paired_ratio(products, one_by_one, REPEATS)
                    row[f"products_{kernel}"] = _short(ratio)
            yield row


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def main() -> None:
    """Measure every model on both backends."""
    take_no_options(__doc__)
    with threadpool_limits(1):
        write("logp_at_ends", rows())


if __name__ == "__main__":
    main()
