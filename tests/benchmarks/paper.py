"""Beside the paper's own code: ``uv run python -m tests.benchmarks.paper --code DIRECTORY``.

The directory is a clone of https://github.com/lindermanlab/parallel-mcmc, the code of Zoltowski et
al. (2025); the packages ``tfp-nightly`` and ``jaxtyping``, which it needs, must be installed
besides (``uv run --with tfp-nightly --with jaxtyping python -m ...``).

The problem is that of its German credit example: a logistic regression with N = 1000, D = 25 and
N(0, 1) priors (on generated data, since nothing is downloaded here), one chain of 2048 transitions,
no whitening, step size 0.0015 in Langevin's convention, which is a leapfrog step of sqrt(0.003),
and sweeps in the basis of the Hessian at a state of the chain.

Both solve all transitions as one window, from the same start and with the same random numbers:
those that the paper's code draws, of which a tape is made. Differences are those of each one's
states, in the model's coordinates, from the ones that the paper's code finds step by step. Theirs
stops at its own tolerance, 1e-7 (float32: 1e-4) beside 1e-4 (1e-3) of each state, or after
``--sweeps``; ours commits what is exact to 1e-6 (1e-4), and goes on until all is. There is a row
with the paper's rule for the Jacobian, ``stochastic``, and one with ours, ``secant``, which needs
no Hessian-vector products. It asks for coordinates whose curvatures are about 1: those of the paper
times one number, which leaves the chain what it is. Products of float32 matrices have all digits
for both, on GPUs too. Times are medians over pairs. The rows go to ``docs/benchmarks/paper.json``,
or another ``--name``. Target on a GPU: 5 times as fast.
"""

import argparse
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import jax
import jax.numpy as jnp
import numpy as np
import pytensor

from pymc_deer.acceptance import acceptance_rates
from pymc_deer.backends import make_solver
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.density import Density, build_density
from pymc_deer.examples import correlated_logistic, correlated_logistic_data
from pymc_deer.jacobian import Rule
from pymc_deer.metric import Metric
from pymc_deer.noise import Tape
from pymc_deer.sweep import SweepSpec
from tests.benchmarks.measure import paired_ratio, write

STEP_SIZE = 0.0015
"""Of the drift; the proposal's variance is twice as much."""

CORRELATION = 0.1
"""Of the features: with much more, no proposal of that size is accepted."""

RULES: tuple[Rule, ...] = ("stochastic", "secant")
SCALES: Mapping[Rule, Callable[[float], float]] = {
    "stochastic": lambda curvature: 1.0,
    "secant": lambda curvature: float(curvature**-0.5),
}
CURVATURES: Mapping[Rule, float] = {"stochastic": 1.0, "secant": 1.5}
"""For each rule: of a coordinate, by the mean curvature, and the bound that it is given."""

TOLERANCE = {"float64": 1e-6, "float32": 1e-4}
BEHIND = 5
"""Transitions behind which the Hessian is taken, as in the example."""


@dataclass(frozen=True)
class Theirs:
    """The paper's sampler, with what it begins from.

    Attributes
    ----------
    sequential, parallel
        States (n, D) step by step, and states with the number of sweeps.
    start
        Shape (D,).
    basis
        Orthonormal columns (D, D), in which it sweeps.
    curvature
        Of minus logp, the mean over all directions, at the same state as the basis.
    tape
        The noise that it draws, in the model's coordinates.
    """

    sequential: Callable[[], Any]
    parallel: Callable[[], Any]
    start: np.ndarray
    basis: np.ndarray
    curvature: float
    tape: Tape


def theirs(code: Path, n: int, max_sweeps: int, seed: int) -> Theirs:
    """The paper's sampler for n transitions."""
    sys.path.insert(0, str(code.resolve()))
    samplers = importlib.import_module("src.samplers")
    data = correlated_logistic_data(correlation=CORRELATION)
    features, y = (jnp.asarray(array) for array in data)
    size = features.shape[1]
    distributions = samplers.tfd

    def logp(beta: jax.Array, target: Any) -> jax.Array:
        prior = distributions.Normal(0.0, 1.0).log_prob(beta).sum()
        return prior + distributions.Bernoulli(logits=features @ beta).log_prob(y).sum()

    start_key, chain_key, probe_key = jax.random.split(jax.random.key(seed), 3)
    start = 0.1 * jax.random.normal(start_key, (size,))
    sampler = samplers.ParallelMALA(
        logp, size, n, max_sweeps, basis_transformation=True, window_size=n
    )
    step_size = jnp.asarray(STEP_SIZE, start.dtype)
    params = {"step_size": step_size, "key": probe_key, "target_params": None}
    sequential = compiled(sampler.run_sequential_mala, chain_key, start, params)
    hessian = jax.hessian(logp)(sequential()[BEHIND], None)
    basis = jnp.linalg.svd(jnp.eye(size) + STEP_SIZE * hessian)[0]
    guess = jnp.broadcast_to(start, (n, size))
    in_basis = {**params, "basis": basis}
    parallel = compiled(sampler.run_parallel_mala, chain_key, start, guess, in_basis)
    tape = _tape(jax.random.split(chain_key, (n,)), size)
    curvature = -float(jnp.trace(hessian)) / size
    return Theirs(sequential, parallel, np.asarray(start), np.asarray(basis), curvature, tape)


def compiled(function: Callable[..., Any], *arguments: Any) -> Callable[[], Any]:
    """The function of these arguments, compiled once and for all."""
    program = jax.jit(function).lower(*arguments).compile()
    return lambda: jax.block_until_ready(program(*arguments))


def by_their_names(a: Any, a_min: Any = None, a_max: Any = None) -> jax.Array:
    """``jnp.clip`` with the names that its bounds had in the JAX that the paper's code is for."""
    return jnp.minimum(jnp.maximum(a, a_min), a_max)


def _tape(drivers: jax.Array, size: int) -> Tape:
    """What the paper's transitions draw of their keys."""

    def draw(driver: jax.Array) -> tuple[jax.Array, jax.Array]:
        _, normal, uniform = jax.random.split(driver, 3)
        return jax.random.normal(normal, (size,)), jnp.log(jax.random.uniform(uniform))

    return Tape(*(np.asarray(array) for array in jax.vmap(draw)(drivers)))


def rows(
    code: Path, precision: str, lengths: Sequence[int], max_sweeps: int, repeats: int, seed: int
) -> Iterator[dict[str, object]]:
    """A row for every number of transitions."""
    with pytensor.config.change_flags(floatX=precision):
        density = build_density(correlated_logistic(correlation=CORRELATION))
    for n in lengths:
        with (
            jax.enable_x64(precision == "float64"),
            jax.default_matmul_precision("highest"),
            patch.object(jnp, "clip", by_their_names),
        ):
            them = theirs(code, n, max_sweeps, seed)
        for rule in RULES:
            yield {
                "device": jax.devices()[0].device_kind,
                "their_commit": commit(code),
                "precision": precision,
                "transitions": n,
                "rule": rule,
                **compared(them, density, rule, TOLERANCE[precision], repeats),
            }


def commit(code: Path) -> str:
    """Which version of the paper's code it is, where it is a clone of its own."""

    def ask(what: str) -> str:
        asked = ["git", "-C", str(code), "rev-parse", what, "HEAD"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout

    lies_deeper = ask("--show-prefix").splitlines()[0]
    return "unknown" if lies_deeper else ask("--short").strip()


def compared(
    them: Theirs, density: Density, rule: Rule, tol: float, repeats: int
) -> dict[str, object]:
    """Sweeps, times and differences of both."""
    n, scale = len(them.tape), SCALES[rule](them.curvature)
    metric = Metric(np.zeros(density.size), scale * them.basis)
    # With x = s P z for an orthonormal P a transition stays what it is if the noise turns with it,
    # and the step is that of z.
    chain = TapedRequest(
        them.start @ them.basis / scale,
        Tape(them.tape.xi @ them.basis, them.tape.log_u),
        Tuning(float(np.sqrt(2 * STEP_SIZE)) / scale, CURVATURES[rule], metric),
        np.random.default_rng(0),
    )
    tol = tol / scale
    whole, single = (WindowPlan(window, None, tol, capacity=n) for window in (n, 1))
    solver = make_solver("jax", density, SweepSpec("dense", rule), whole)
    params = density.param_values({})
    ours = partial(solver.run, chain, params)
    one_by_one = partial(solver.with_plan(single).run, chain, params)
    ratio, *seconds = paired_ratio(them.parallel, ours, repeats)
    ratio_one_by_one, *seconds_one_by_one = paired_ratio(them.sequential, one_by_one, repeats)
    found, expected = ours(), them.sequential()
    states, sweeps = them.parallel()
    return {
        "acceptance": round(float(acceptance_rates(found.log_alpha).mean()), 3),
        "sweeps_theirs": int(sweeps),
        "sweeps": found.n_sweeps,
        "ms_theirs": round(1e3 * seconds[0], 2),
        "ms": round(1e3 * seconds[1], 2),
        "times_as_fast": float(f"{ratio:.3g}"),
        "difference_theirs": _largest(states - expected),
        "difference": _largest(metric.to_x(found.z) - expected),
        "one_by_one_ms_theirs": round(1e3 * seconds_one_by_one[0], 2),
        "one_by_one_ms": round(1e3 * seconds_one_by_one[1], 2),
        "one_by_one_times_as_fast": float(f"{ratio_one_by_one:.3g}"),
    }


def _largest(difference: Any) -> float:
    return float(f"{np.abs(np.asarray(difference)).max():.1e}")


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--code", type=Path, required=True, help="a clone of the paper's code")
    parser.add_argument("--precisions", nargs="+", choices=TOLERANCE, default=list(TOLERANCE))
    parser.add_argument("--transitions", type=int, nargs="+", default=[2048])
    parser.add_argument("--sweeps", type=int, default=40, help="most of theirs")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--name", default="paper", help="of the file with the rows")
    given = parser.parse_args()
    write(
        given.name,
        (
            row
            for precision in given.precisions
            for row in rows(
                *(given.code, precision, given.transitions, given.sweeps),
                *(given.repeats, given.seed),
            )
        ),
    )


if __name__ == "__main__":
    main()
