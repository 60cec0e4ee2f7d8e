"""Beside the paper's code: ``uv run python -m tests.benchmarks.paper CHECKOUT``.

CHECKOUT is a clone of ``https://github.com/lindermanlab/parallel-mcmc``, the code of Zoltowski et
al. (2025). It runs unmodified on the configuration of its German credit example: 2 chains of 2048
MALA transitions in one window, step size 0.0015, no metric, one probe, states turned into the basis
of a Hessian, at most 40 sweeps, float32. The data are generated, of the same size, as nothing is
downloaded. Of TensorFlow Probability, which it imports for one density, that density is given here
where the package is not installed.

Ours runs the same chains: from the same starts, on the numbers that the other code draws from its
keys, with features turned into the same basis. Rows tell seconds, sweeps, and the largest
difference from the states that the other code finds one after the other. They go to
``docs/benchmarks/paper.json``.
"""

import argparse
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from pymc_deer.jacobian import Rule
from tests.benchmarks.measure import write
from tests.benchmarks.worker import Task, Worker

CHAINS, TRANSITIONS, STEP = 2, 2048, 0.0015
MAX_SWEEPS, BASIS_FROM, SEED = 40, 5, 13
OBSERVATIONS, FEATURES, CORRELATION = 1000, 24, 0.3
RULES: tuple[Rule, ...] = ("stochastic", "secant")
TOLERANCE = 1e-4
REPEATS = 7
_LIMIT_SECONDS = 500.0

Solution = tuple[np.ndarray, int]
"""States (C, n, D), and the sweeps of the chain that took most."""


def data() -> tuple[np.ndarray, np.ndarray]:
    """Features of mean 0 and variance 1 and an intercept, (N, 25), and labels, (N,)."""
    rng = np.random.default_rng(SEED)
    common = rng.normal(size=(OBSERVATIONS, 1))
    own = rng.normal(size=(OBSERVATIONS, FEATURES))
    features = np.sqrt(CORRELATION) * common + np.sqrt(1 - CORRELATION) * own
    features = (features - features.mean(axis=0)) / features.std(axis=0)
    features = np.column_stack([features, np.ones(OBSERVATIONS)]).astype(np.float32)
    logits = features @ (0.4 * rng.normal(size=features.shape[1]))
    return features, rng.binomial(1, 1 / (1 + np.exp(-logits))).astype(np.int32)


@dataclass(frozen=True)
class Theirs:
    """The paper's code on its example; in JAX's own precision, which our backend changes."""

    samplers: Any

    def make(self) -> None:
        """Have all that is made once."""
        self.sequential()
        self.parallel()
        self.noise  # noqa: B018

    @cached_property
    def _logp(self) -> Callable[..., Any]:
        import jax
        import jax.numpy as jnp

        features, y = map(jnp.asarray, data())

        def logp(beta: Any, params: Any) -> Any:
            logits = features @ beta
            # As TensorFlow Probability has it: of y = 1, and of y = 0.
            of_data = jnp.sum(y * logits - jax.nn.softplus(logits))
            return of_data + jax.scipy.stats.norm.logpdf(beta, 0.0, params["ridge_coef"]).sum()

        return logp

    @cached_property
    def _sampler(self) -> Any:
        return self.samplers.ParallelMALA(
            *(self._logp, data()[0].shape[1], TRANSITIONS, MAX_SWEEPS),
            basis_transformation=True,
            window_size=TRANSITIONS,
        )

    @cached_property
    def _keys(self) -> Any:
        import jax

        return jax.random.split(jax.random.key(SEED, impl="threefry2x32"), 3)

    @cached_property
    def start(self) -> Any:
        """States before the first transition, (C, D)."""
        import jax

        return 0.1 * jax.random.normal(self._keys[0], (CHAINS, data()[0].shape[1]))

    @cached_property
    def chain_keys(self) -> Any:
        """A key for each chain."""
        import jax

        return jax.random.split(self._keys[1], CHAINS)

    def _params(self, basis: Any) -> dict[str, Any]:
        import jax.numpy as jnp

        return {
            "step_size": STEP,
            "key": self._keys[2],
            "basis": jnp.asarray(basis),
            "target_params": {"ridge_coef": jnp.float32(1.0)},
        }

    @cached_property
    def sequential(self) -> Callable[[], Solution]:
        """Its chains, transition by transition."""
        import jax

        params = self._params(np.eye(self.start.shape[1], dtype=np.float32))
        run = jax.jit(jax.vmap(self._sampler.run_sequential_mala, in_axes=(0, 0, None)))

        def solve() -> Solution:
            with jax.enable_x64(False):
                return np.asarray(run(self.chain_keys, self.start, params)), 0

        return solve

    @cached_property
    def basis(self) -> np.ndarray:
        """Left singular vectors of a transition's mean Jacobian, (D, D)."""
        import jax
        import jax.numpy as jnp

        states, _ = self.sequential()
        at = jnp.asarray(states[:, BASIS_FROM].mean(axis=0))
        hessian = jax.hessian(self._logp)(at, {"ridge_coef": jnp.float32(1.0)})
        return np.asarray(jnp.linalg.svd(jnp.eye(len(at)) + STEP * hessian)[0])

    @cached_property
    def parallel(self) -> Callable[[], Solution]:
        """Its chains, all transitions at once."""
        import jax
        import jax.numpy as jnp

        params = self._params(self.basis)
        run = jax.jit(jax.vmap(self._sampler.run_parallel_mala, in_axes=(0, 0, 0, None)))
        guess = self.start[:, None] * jnp.ones((CHAINS, TRANSITIONS, self.start.shape[1]))

        def solve() -> Solution:
            with jax.enable_x64(False):
                states, sweeps = run(self.chain_keys, self.start, guess, params)
                return np.asarray(states), int(np.max(sweeps))

        return solve

    @cached_property
    def noise(self) -> list[tuple[np.ndarray, np.ndarray]]:
        """What it draws for each chain: momenta (n, D) and logarithms of uniform numbers (n,)."""
        import jax
        import jax.numpy as jnp

        size = self.start.shape[1]

        def drawn(key: Any) -> tuple[Any, Any]:
            _, normal, uniform = jax.random.split(key, 3)
            return jax.random.normal(normal, (size,)), jnp.log(jax.random.uniform(uniform))

        of_chains = [jax.vmap(drawn)(jax.random.split(k, TRANSITIONS)) for k in self.chain_keys]
        return [(np.asarray(xi, float), np.asarray(log_u, float)) for xi, log_u in of_chains]


def ours(theirs: Theirs, rule: Rule | None) -> Callable[[], Solution]:
    """The same chains by the solver, in one window; step by step for no rule."""
    import pymc as pm
    import pytensor.tensor as pt

    from pymc_deer.backends import make_solver
    from pymc_deer.backends.base import Request, Tuning, WindowPlan
    from pymc_deer.density import build_density
    from pymc_deer.metric import identity_metric
    from pymc_deer.noise import Tape
    from pymc_deer.sweep import SweepSpec

    features, y = data()
    basis = theirs.basis
    size = len(basis)
    with pm.Model() as model:
        # In their basis, where the prior is the same.
        beta = pm.Normal("beta", 0.0, 1.0, shape=size)
        pm.Bernoulli("y", logit_p=pt.dot(features @ basis, beta), observed=y)
    density = build_density(model)
    params = density.param_values(model.initial_point())
    # Langevin steps of h are leapfrog steps of sqrt(2 h).
    tuning = Tuning(float(np.sqrt(2 * STEP)), 1.0, identity_metric("diag", size))
    window = 1 if rule is None else TRANSITIONS
    spec = SweepSpec("diag", rule or "secant")
    solver = make_solver("jax", density, spec, WindowPlan(window, None, TOLERANCE, TRANSITIONS))
    starts = np.asarray(theirs.start) @ basis
    tapes = [Tape(xi @ basis, log_u) for xi, log_u in theirs.noise]

    def solve() -> Solution:
        requests = [
            Request(start, tape, tuning, np.random.default_rng(SEED))
            for start, tape in zip(starts, tapes, strict=True)
        ]
        found = solver.run_together(requests, params, TRANSITIONS)
        states = np.stack([one.z for one in found]) @ basis.T
        return states, max(one.n_sweeps for one in found)

    return solve


def prepare(checkout: str) -> Callable[[None], dict[str, Any]]:
    """In a process of its own: what answers with all rows."""
    sys.path.insert(0, checkout)
    _provide_density()
    samplers = __import__("src.samplers", fromlist=["samplers"])
    import jax

    with jax.enable_x64(False):
        theirs = Theirs(samplers)
        theirs.make()
    return lambda _: {"rows": list(rows(theirs))}


def rows(theirs: Theirs) -> Iterator[dict[str, Any]]:
    """Each way, timed in turns."""
    import jax

    ways: dict[str, Callable[[], Solution]] = {
        "the paper's, sequential": theirs.sequential,
        "the paper's, parallel": theirs.parallel,
        "ours, sequential": ours(theirs, None),
        **{f"ours, {rule}": ours(theirs, rule) for rule in RULES},
    }
    solved = {name: way() for name, way in ways.items()}
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, way in ways.items():
            begun = time.perf_counter()
            way()
            seconds[name].append(time.perf_counter() - begun)
    reference, _ = solved["the paper's, sequential"]
    of_theirs = np.array(seconds["the paper's, parallel"])
    moved = np.any(np.diff(reference, axis=1) != 0, axis=2)
    for name, (states, sweeps) in solved.items():
        yield {
            "code": name,
            "seconds": float(f"{np.median(seconds[name]):.4g}"),
            "times as fast as the paper's, parallel": float(
                f"{np.median(of_theirs / np.array(seconds[name])):.3g}"
            ),
            "sweeps": sweeps or None,
            "largest difference": float(f"{np.abs(states - reference).max():.2g}"),
            "acceptance": round(float(moved.mean()), 3),
            "device": jax.devices()[0].device_kind,
        }


def _provide_density() -> None:
    """What the other code takes of TensorFlow Probability, where that is not installed."""
    try:
        import tensorflow_probability.substrates.jax  # noqa: F401
    except ModuleNotFoundError:
        names = ("tensorflow_probability", "substrates", "jax", "distributions")
        parent = None
        for i, name in enumerate(names):
            full = ".".join(names[: i + 1])
            module = sys.modules[full] = ModuleType(full)
            if parent is not None:
                setattr(parent, name, module)
            parent = module
        assert parent is not None
        parent.MultivariateNormalDiag = _IndependentNormal  # type: ignore[attr-defined]


@dataclass(frozen=True)
class _IndependentNormal:
    loc: Any
    scale_diag: Any

    def log_prob(self, x: Any) -> Any:
        import jax

        return jax.scipy.stats.norm.logpdf(x, self.loc, self.scale_diag).sum(axis=-1)


def main() -> None:
    """Measure, and write the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkout", type=Path)
    given = parser.parse_args()
    cores = min(2, os.cpu_count() or 1)
    task = Task(
        "tests.benchmarks.paper",
        {"checkout": str(given.checkout)},
        {"PYTENSOR_FLAGS": "floatX=float32"},
        cores,
    )
    with Worker(task) as worker:
        for answer in (worker.wait(), worker.ask(None, _LIMIT_SECONDS)):
            if "rows" in answer:
                write("paper", answer["rows"])
            elif answer["status"] != "ready":
                raise SystemExit(answer["status"])


if __name__ == "__main__":
    main()
