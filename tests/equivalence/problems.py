"""Models with a whitening and a starting state, ready for tapes to be run on them."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import get_args

import numpy as np
import pymc as pm
import pytensor

from pymc_deer import DeerMALA, examples, reference
from pymc_deer.backends import make_solver
from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.chain import ChainRecord
from pymc_deer.density import Density, build_density
from pymc_deer.jacobian import Rule
from pymc_deer.noise import Tape, draw_tape
from pymc_deer.options import BackendName
from pymc_deer.sweep import Kernel, SweepSpec
from tests.support import BACKENDS

MODELS: dict[str, tuple[Callable[[], pm.Model], float]] = {
    "eight_schools": (examples.eight_schools, 0.8),
    "breast_cancer": (examples.breast_cancer, 0.75),
    "radon": (examples.radon, 0.6),
    "correlated_gaussian": (examples.correlated_gaussian, 0.7),
    "horseshoe": (examples.horseshoe, 0.1),
}
"""Each model with a step size of usual acceptance in its adapted whitening. The horseshoe has a
smaller one: at larger ones its chain itself drives neighbouring states apart, a thousandfold within
a tape, and no tolerance on a state says much about the next hundred."""

CURVATURE = 1.5

KERNELS: tuple[Kernel, ...] = get_args(Kernel)

JITTER = 0.2
MOST_STEPS = 6
SHORTER = 0.6
"""How step sizes vary along an HMC tape, the most leapfrog steps on it, and the share of MALA's
step size at which such paths do not drive neighbouring states apart."""


@dataclass(frozen=True)
class Problem:
    """A chain to run: density, whitening, step size, start, and the noise tapes.

    The whitening is what warm-up finds, so that the runs are like those of users.
    """

    model: pm.Model
    density: Density
    tuning: Tuning
    start: np.ndarray
    kernel: Kernel = "mala"

    @cached_property
    def params(self) -> tuple[np.ndarray, ...]:
        return self.density.param_values(self.model.initial_point())

    def tape(self, n: int, seed: int = 0) -> Tape:
        """Noise of n transitions; HMC's differ in their step sizes and numbers of steps."""
        rngs = [np.random.default_rng([seed, i]) for i in range(4)]
        tape = draw_tape(*rngs[:2], n, self.density.size)
        if self.kernel == "mala":
            return tape
        scale = 1 + JITTER * rngs[2].uniform(-1, 1, n)
        return replace(tape, scale=scale, n_leapfrog=rngs[3].integers(1, MOST_STEPS + 1, n))

    def solver(
        self,
        backend: BackendName,
        window: int,
        rule: Rule = "preconditioned",
        *,
        tol: float = 1e-6,
        max_sweeps: int | None = None,
    ) -> Solver:
        """A solver that never falls back unless `max_sweeps` says so.

        All solvers of a problem and backend share what they compile: see :meth:`new_solver`.
        """
        plan = WindowPlan(window, max_sweeps or window, tol, capacity=512)
        if backend not in self._compiled:
            self._compiled[backend] = self.new_solver(backend, window, rule)
        return self._compiled[backend].with_rule(rule).with_plan(plan)

    @cached_property
    def _compiled(self) -> dict[BackendName, Solver]:
        return {}

    def new_solver(
        self, backend: BackendName, window: int, rule: Rule = "preconditioned"
    ) -> Solver:
        """The same with nothing compiled yet, for code that a test has changed."""
        spec = SweepSpec(self.tuning.metric.kind, rule, kernel=self.kernel)
        plan = WindowPlan(window, window, 1e-6, capacity=512)
        return make_solver(backend, self.density, spec, plan)

    def run(self, solver: Solver, tape: Tape):
        """The trajectory of `tape` from the start."""
        rng = np.random.default_rng(7)
        return solver.solve(self.start, tape, self.tuning, self.params, rng)

    def oracle(self, tape: Tape) -> tuple[np.ndarray, np.ndarray]:
        """The chain by plain NumPy: states (n, D) and log Metropolis ratios (n,)."""
        sizes = tape.step_sizes(self.tuning.step_size)
        return reference.sequential(
            self.whitened_logp_dlogp, self.start, tape.xi, tape.log_u, sizes, tape.lengths
        )

    @cached_property
    def whitened_logp_dlogp(self) -> Callable[[np.ndarray], tuple[float, np.ndarray]]:
        """Logp and gradient of one whitened state by PyTensor's own Python linker."""
        density, metric = self.density, self.tuning.metric
        compiled = pytensor.function(
            [density.x, *density.params], [density.logp, density.dlogp], mode="FAST_COMPILE"
        )

        def function(z: np.ndarray) -> tuple[float, np.ndarray]:
            logp, dlogp = compiled(metric.to_x(z), *self.params)
            pulled = dlogp * metric.factor if metric.kind == "diag" else dlogp @ metric.factor
            return float(logp), pulled

        return function


@cache
def problem(name: str, kernel: Kernel = "mala") -> Problem:
    """The named model after a short warm-up, on the backend that compiles it sooner."""
    if kernel != "mala":
        case = problem(name)
        shorter = replace(case.tuning, step_size=SHORTER * case.tuning.step_size)
        return replace(case, tuning=shorter, kernel=kernel)
    build, step_size = MODELS[name]
    with build() as model:
        # The others are compiled for Numba anyway.
        backend = BACKENDS[-1] if name == "correlated_gaussian" else BACKENDS[0]
        step = DeerMALA(backend=backend, window=1)
        step.setup_chain(np.random.default_rng(11), 300, 1)
        point = model.initial_point()
        for _ in range(300):
            point, _ = step.step(point)
    record = step.record
    assert isinstance(record, ChainRecord)
    warm = record.warmup.tuning
    x = step.density.layout.ravel(point, step.density.dtype)
    tuning = Tuning(step_size, CURVATURE, warm.metric)
    return Problem(model, build_density(model), tuning, warm.metric.to_z(x))
