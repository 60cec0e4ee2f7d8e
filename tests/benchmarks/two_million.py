"""Two million parameters: ``uv run python -m tests.benchmarks.two_million``.

A hierarchical logistic regression in float32 whose intercepts and slopes vary by group: K = 20
covariates, G = 100,000 groups, ten observations of each. Each backend's run is a process of its
own, whose peak resident memory the system tells when it has ended. Of each draw only the
hyperparameters are stored. A row tells when these converged, from the model on: R-hat below 1.01
and 400 effective draws. With ``--minutes`` it ends after so many, with the draws that there are.
The rows go to ``docs/benchmarks/two_million.json``, or another ``--name``. To convergence, on a
GPU: ``--backends jax --kernel hmc --tune 400 --draws 600 --minutes 8 --name two_million_gpu``; what
that takes, told from fewer groups: ``--groups 500 2000 8000 --backends numba --kernel hmc --tune
400 --draws 600 --name fewer_groups``.
"""

import argparse
import json
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pymc as pm
import pytensor

import pymc_deer
from tests.benchmarks.figures import Run, quality, scalars, seconds_to_converge
from tests.benchmarks.measure import write

K, PER_GROUP = 20, 10
HYPERPARAMETERS = ["alpha", "beta", "sigma_alpha", "sigma_gamma"]


def hierarchical_logistic(n_groups: int) -> tuple[pm.Model, dict[str, Any]]:
    """The model, with data simulated from its prior, and the values they were simulated with.

    Non-centred intercepts and slopes of each group, in PyMC's precision.
    """
    rng = np.random.default_rng(20_251_121)
    dtype, n_observations = pytensor.config.floatX, PER_GROUP * n_groups
    truth = {
        "alpha": 0.5,
        "beta": rng.normal(0.0, 0.5, K),
        "sigma_alpha": 0.8,
        "sigma_gamma": np.abs(rng.normal(0.0, 0.5, K)),
    }
    group = rng.integers(0, n_groups, n_observations)
    x = rng.standard_normal((n_observations, K), dtype="float32").astype(dtype)
    slopes = truth["beta"] + truth["sigma_gamma"] * rng.standard_normal((n_groups, K))
    eta = truth["alpha"] + truth["sigma_alpha"] * rng.standard_normal(n_groups)[group]
    eta += np.einsum("nk,nk->n", x, slopes[group])
    y = rng.random(n_observations) < 1 / (1 + np.exp(-eta))
    with pm.Model() as model:
        alpha = pm.Normal("alpha", 0.0, 1.5)
        beta = pm.Normal("beta", 0.0, 1.0, shape=K)
        sigma_alpha = pm.HalfNormal("sigma_alpha", 1.0)
        sigma_gamma = pm.HalfNormal("sigma_gamma", 0.5, shape=K)
        z_alpha = pm.Normal("z_alpha", shape=n_groups)
        z_gamma = pm.Normal("z_gamma", shape=(n_groups, K))
        slope = beta + (sigma_gamma * z_gamma)[group]
        eta = alpha + (sigma_alpha * z_alpha)[group] + (x * slope).sum(axis=-1)
        pm.Bernoulli("y", logit_p=eta, observed=y.astype("int8"))
    return model, truth


def child(given: argparse.Namespace) -> None:
    """One run; prints what it took as JSON."""
    begun = time.perf_counter()
    with pytensor.config.change_flags(floatX="float32"):
        model, truth = hierarchical_logistic(given.groups)
        data = time.perf_counter()
        with interrupted_after(given.minutes):
            idata = pymc_deer.sample(
                given.draws,
                tune=given.tune,
                chains=given.chains,
                kernel=given.kernel,
                model=model,
                backend=given.backend,
                var_names=HYPERPARAMETERS,
                random_seed=20_251_121,
                progressbar=False,
                compute_convergence_checks=False,
            )
    seconds = time.perf_counter() - data
    posterior, stats = idata["posterior"].dataset, idata["sample_stats"].dataset
    attrs = idata["sample_stats"].attrs
    phases = [attrs[f"deer_seconds_{phase}"] for phase in ("compile", "warmup", "sampling")]
    kept = {name: posterior[name].to_numpy() for name in HYPERPARAMETERS}
    gradients = int(stats["n_steps"].sum())
    draws = scalars(kept)
    r_hat, ess = quality(draws)
    converged = seconds_to_converge(Run(*phases, seconds, kept, gradients, 0), draws)
    errors = [np.abs(posterior[name].mean(("chain", "draw")) - truth[name]) for name in truth]
    row = {
        "parameters": sum(v.size for v in model.initial_point().values()),
        "peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2),
        "seconds_data": round(data - begun, 1),
        "seconds": round(seconds, 1),
        **{f"seconds_{k}": round(v, 1) for k, v in zip(PHASES, phases, strict=True)},
        # A chain that stood still has no R-hat.
        "seconds_to_converge": round(converged, 1) if np.isfinite(converged) else None,
        "gradients_sampling": gradients,
        "steps_per_draw": attrs["deer_steps_per_draw"],
        "n_leapfrog": attrs["deer_n_leapfrog"],
        "draws_made": posterior.sizes["draw"],
        "acceptance_rate": round(float(stats["acceptance_rate"].mean()), 2),
        "max_r_hat": round(r_hat, 3) if np.isfinite(r_hat) else None,
        "min_ess_bulk": round(ess) if np.isfinite(ess) else None,
        "gradients_per_ess": round(gradients / ess) if np.isfinite(ess) else None,
        "window": attrs["deer_window"],
        "device": attrs["deer_device"],
        "mean_error": round(float(np.mean(np.concatenate([np.ravel(e) for e in errors]))), 3),
    }
    print(json.dumps(row))


@contextmanager
def interrupted_after(minutes: float | None) -> Iterator[None]:
    """Interrupt what runs within, as the keyboard does, after so many minutes."""

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    if minutes is None:
        yield
        return
    signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 60 * minutes)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def rows(given: argparse.Namespace) -> Iterator[dict[str, object]]:
    """The run of each number of groups on each backend, in a fresh process."""
    asked = {name: getattr(given, name) for name in SHOWN}
    for asked["groups"], asked["backend"] in product(given.groups, given.backends):
        limit = {} if given.minutes is None else {"minutes": given.minutes}
        arguments = [f"--{name}={value}" for name, value in (asked | limit).items()]
        command = [sys.executable, "-m", __spec__.name, "--child", *arguments]
        output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        yield {**asked, **json.loads(output.splitlines()[-1])}


SHOWN = ("groups", "chains", "kernel", "tune", "draws")
PHASES = ("compile", "warmup", "sampling")


def main() -> None:
    """Run on every backend named, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--groups", type=int, nargs="+", default=[100_000])
    parser.add_argument("--chains", type=int, default=2)
    parser.add_argument("--kernel", default="mala")
    parser.add_argument("--tune", type=int, default=20)
    parser.add_argument("--draws", type=int, default=10)
    parser.add_argument("--minutes", type=float, help="end then, with the draws that there are")
    parser.add_argument("--backends", nargs="+", default=["numba", "jax"])
    parser.add_argument("--name", default="two_million", help="of the file with the rows")
    parser.add_argument("--backend", help="used by the benchmark itself")
    parser.add_argument("--child", action="store_true", help="used by the benchmark itself")
    arguments = parser.parse_args()
    if arguments.child:
        [arguments.groups] = arguments.groups
        child(arguments)
    else:
        write(arguments.name, rows(arguments))


if __name__ == "__main__":
    main()
