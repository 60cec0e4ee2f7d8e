"""A random model sampled in windows, which must give the states of single steps on one tape."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import pytensor

from pymc_deer.backends.base import Solver
from pymc_deer.backends.request import TapedRequest
from pymc_deer.backends.trajectory import Trajectory
from pymc_deer.chains.chain import Streams
from pymc_deer.options import BackendName
from tests.random_models.models import random_model
from tests.support import SAMPLERS

WINDOW = 16
N_TUNE, N_DRAWS = 30, 5
N_TRANSITIONS = 64
_DISTURBED_AT = range(0, N_TRANSITIONS, 8)
TOL = 1e-9

SLACK = 100
"""As in ``tests/equivalence``: what a sum of residuals below the tolerance may come to in a state,
in units of the sensitivity."""

MOST_ROUNDING = 1e4
"""What the rounding of a batch may come to, in the same units: 1e-5 where nothing grows."""


@dataclass(frozen=True)
class Outcome:
    """What was run, and how far windows and single steps are apart, in whitened units.

    Attributes
    ----------
    sensitivity
        What an error of one tolerance comes to on the tape, from wherever on it that is most; or,
        where it is more, the rounding of a batch against that of a single state, since windows of
        tolerance 0 take no step from a guess that is not exact.
    """

    seed: int
    description: str
    dimension: int
    n_sweeps: int
    difference: float
    sensitivity: float

    @property
    def passed(self) -> bool:
        return self.difference <= SLACK * self.sensitivity

    def __str__(self) -> str:
        return (
            f"model {self.seed} (D = {self.dimension}; {self.description}): {self.n_sweeps} sweeps "
            f"for {N_TRANSITIONS} transitions, difference {self.difference:.1e}, sensitivity "
            f"{self.sensitivity:.1e}"
        )


@contextmanager
def quick_compilation() -> Iterator[None]:
    """PyMC's own functions are left as they are, and no graph remembers where it was made."""
    with pytensor.config.change_flags(mode="FAST_COMPILE", cxx="", traceback__limit=0):
        yield


def check(seed: int, backend: BackendName, window_tol: float = TOL) -> Outcome:
    """Sample a model; then one tape from where the chain stands, in windows and step by step."""
    with quick_compilation():
        model, description = random_model(seed)
        with model:
            step = SAMPLERS[seed % len(SAMPLERS)](
                backend=backend, window=WINDOW, jacobian="secant", curvature=1.5, tol=TOL
            )
        description = f"{type(step).__name__}, {description}"
        rng = np.random.default_rng([seed, 1])
        step.setup_chain(rng, N_TUNE, N_DRAWS)
        point = model.initial_point()
        for i in range(N_TUNE + N_DRAWS):
            if i == N_TUNE:
                step.stop_tuning()
            point, [stats] = step.step(point)
            assert all(np.isfinite(value).all() for value in point.values()), description
            assert np.isfinite(stats["model_logp"]), description
        assert step.record is not None
        tuning, density = step.record.warmup.tuning, step.density
        z = tuning.metric.to_z(density.layout.ravel(point, density.dtype))
        tape = Streams.spawn(rng).tape(N_TRANSITIONS, density.size, tuning)
        # With as many sweeps as it takes: steps by themselves would tell nothing of windows.
        plan = replace(step.solver.plan, max_sweeps=WINDOW)
        params = density.param_values(point)
        windows = step.solver.with_plan(replace(plan, tol=window_tol))
        single = step.solver.with_plan(replace(plan, window=1))
        rounded = step.solver.with_plan(replace(plan, tol=0.0))

        def run(solver: Solver, start: np.ndarray, first: int = 0) -> Trajectory:
            chain = TapedRequest(start, tape[first:], tuning, np.random.default_rng(0))
            return solver.run(chain, params)

        solved = run(windows, z)
        exact, batched = run(single, z).z, run(rounded, z).z
        before = np.vstack([z, exact])
        # Windows err anywhere, and chains may drive neighbours apart in one place alone.
        disturbed = [run(single, before[t] + TOL, t).z - exact[t:] for t in _DISTURBED_AT]
    assert np.isfinite(exact).all(), description
    assert solved.n_fallback == 0, description
    difference, rounding = (float(np.abs(z - exact).max()) for z in (solved.z, batched))
    sensitivity = max(TOL, *(float(np.abs(error).max()) for error in disturbed))
    # Functions that lose half their digits, and not another density.
    assert rounding <= MOST_ROUNDING * sensitivity, description
    sensitivity = max(sensitivity, rounding)
    return Outcome(seed, description, density.size, solved.n_sweeps, difference, sensitivity)
