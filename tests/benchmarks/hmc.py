"""DeerHMC beside nutpie: ``uv run python -m tests.benchmarks.hmc [NAME ...]``.

Each model four chains of 1000 draws with the samplers' defaults, one chain after the other on one
core, the two samplers in turn; medians of the repeats. ``sampling`` counts the draws kept alone:
for DeerHMC from a clock in `pm.sample`'s callback, for nutpie its total time shared out by
gradients. ``engine`` is DeerHMC's compiled loop alone, without what `pm.sample` does for each draw:
as many gradients as the draws took, timed in one call. ``all`` is everything from the model to the
draws, compilation included, in a process of its own with an empty compilation cache. The rows made
replace those of the same model in ``docs/benchmarks/hmc.json``.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import nutpie
import pymc as pm

from pymc_deer import DeerHMC
from pymc_deer.backends.base import Run
from pymc_deer.examples import correlated_logistic
from pymc_deer.stretch import Streams
from tests.benchmarks.measure import RESULTS, write
from tests.statistical.checks import summarise
from tests.zoo import MODELS

NAMES = (
    "eight_schools",
    "correlated_logistic",
    "breast_cancer",
    "horseshoe",
    "radon",
    "hierarchical_logistic",
    "stochastic_volatility",
)
CASES: dict[str, Callable[[], pm.Model]] = MODELS | {"correlated_logistic": correlated_logistic}
CHAINS, DRAWS = 4, 1000
REPEATS = 3
ENGINE_STEPS = 2048


@dataclass(frozen=True)
class Measured:
    """One run of one sampler: seconds, gradients, and how good its draws are."""

    compiling: float
    tuning: float
    sampling: float
    engine: float
    ess: float
    tail_ess: float
    r_hat: float
    gradients: int
    divergences: int


class Clock:
    """A callback of `pm.sample` that knows how long each chain's draws took."""

    def __init__(self) -> None:
        self.last = time.perf_counter()
        self.seconds = {True: 0.0, False: 0.0}

    def __call__(self, trace: Any, draw: Any) -> None:
        now = time.perf_counter()
        self.seconds[draw.tuning] += now - self.last
        self.last = now


def deer(model: pm.Model, seed: int) -> Measured:
    """DeerHMC through `pm.sample`."""
    start = time.perf_counter()
    with model:
        step = DeerHMC()
        compiling = time.perf_counter() - start
        clock = Clock()
        idata: Any = pm.sample(
            DRAWS,
            step=step,
            chains=CHAINS,
            cores=1,
            random_seed=seed,
            callback=clock,
            progressbar=False,
            compute_convergence_checks=False,
        )
    stats = idata["sample_stats"]
    gradients = int(stats["n_steps"].sum())
    return Measured(
        compiling,
        clock.seconds[True],
        clock.seconds[False],
        gradients * seconds_per_gradient(step, model),
        **quality(idata, model),
        gradients=gradients,
        divergences=int(stats["diverging"].sum()),
    )


def seconds_per_gradient(step: Any, model: pm.Model) -> float:
    """Of the compiled loop, going on from where the last chain stands."""
    record = step.record
    tuning, solver = record.warmup.tuning, step.solver
    params = step.density.param_values(model.initial_point())
    tape = Streams.spawn(np.random.default_rng(0)).tape(ENGINE_STEPS, step.density.size, tuning)
    start = time.perf_counter()
    solver.run(Run(tuning.metric.to_z(record.x), tape, tuning, np.random.default_rng(0)), params)
    return (time.perf_counter() - start) / int(tape.lengths.sum())


def nuts(model: pm.Model, seed: int) -> Measured:
    """nutpie, compiled by PyTensor to Numba too."""
    start = time.perf_counter()
    compiled: Any = nutpie.compile_pymc_model(model)
    compiling = time.perf_counter() - start
    start = time.perf_counter()
    trace: Any = nutpie.sample(
        compiled, draws=DRAWS, chains=CHAINS, cores=1, seed=seed, progress_bar=False
    )
    seconds = time.perf_counter() - start
    warmup, kept = (
        int(trace[group]["n_steps"].sum()) for group in ("warmup_sample_stats", "sample_stats")
    )
    return Measured(
        compiling,
        seconds * warmup / (warmup + kept),
        seconds * kept / (warmup + kept),
        seconds * kept / (warmup + kept),
        **quality(trace, model),
        gradients=kept,
        divergences=int(trace["sample_stats"]["diverging"].sum()),
    )


def quality(idata: Any, model: pm.Model) -> dict[str, float]:
    """Least effective sample sizes and largest R-hat of the free variables."""
    run = summarise(idata, model)
    return {
        "ess": float(run["ess_bulk"].to_numpy().min()),
        "tail_ess": float(run["ess_tail"].to_numpy().min()),
        "r_hat": float(run["r_hat"].to_numpy().max()),
    }


SAMPLERS: dict[str, Callable[[pm.Model, int], Measured]] = {"deer": deer, "nutpie": nuts}


def cold(name: str, sampler: str) -> float:
    """Seconds from the model to the draws, in a process whose compilation cache is empty."""
    with tempfile.TemporaryDirectory() as cache:
        flags = f"base_compiledir={cache}"
        result = subprocess.run(
            [sys.executable, "-m", "tests.benchmarks.hmc", name, "--only", sampler],
            env=os.environ | {"PYTENSOR_FLAGS": flags, "NUMBA_CACHE_DIR": cache},
            stdout=subprocess.PIPE,
            check=True,
            text=True,
        )
    return float(result.stdout.split()[-1])


def measure(name: str) -> dict[str, object]:
    """One row: both samplers, and the ratios of DeerHMC to nutpie."""
    runs: dict[str, list[Measured]] = {sampler: [] for sampler in SAMPLERS}
    model = CASES[name]()
    for sampler in SAMPLERS.values():
        sampler(model, 0)
    for seed in range(1, REPEATS + 1):
        for sampler, run in SAMPLERS.items():
            runs[sampler].append(run(model, seed))
    median = {
        sampler: {k: float(np.median([asdict(r)[k] for r in found])) for k in asdict(found[0])}
        for sampler, found in runs.items()
    }
    pairs = list(zip(runs["deer"], runs["nutpie"], strict=True))
    through_pymc, engine = (
        [
            (ours.ess / getattr(ours, clock)) / (theirs.ess / getattr(theirs, clock))
            for ours, theirs in pairs
        ]
        for clock in ("sampling", "engine")
    )
    seconds = {sampler: cold(name, sampler) for sampler in SAMPLERS}
    per_second = {sampler: median[sampler]["ess"] / seconds[sampler] for sampler in SAMPLERS}
    row: dict[str, object] = {
        "model": name,
        "ratio_sampling": round(float(np.median(through_pymc)), 2),
        "ratios_sampling": [round(r, 2) for r in through_pymc],
        "ratio_engine": round(float(np.median(engine)), 2),
        "ratio_all": round(per_second["deer"] / per_second["nutpie"], 2),
    }
    for sampler in SAMPLERS:
        found = median[sampler]
        row |= {f"{sampler}_{k}": float(f"{v:.4g}") for k, v in found.items()}
        row[f"{sampler}_cold_seconds"] = round(seconds[sampler], 1)
    return row


def main() -> None:
    """Measure the models named, or all; or run one sampler once and print its seconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--only", choices=tuple(SAMPLERS))
    arguments = parser.parse_args()
    if arguments.only:
        start = time.perf_counter()
        SAMPLERS[arguments.only](CASES[arguments.names[0]](), 1)
        print(time.perf_counter() - start)
        return
    file, rows = RESULTS / "hmc.json", {}
    for name in arguments.names or NAMES:
        old = json.loads(file.read_text())["rows"] if file.exists() else []
        rows = {row["model"]: row for row in [*old, measure(name)]}
        write("hmc", [rows[n] for n in rows if n in CASES], old)
    for column in ("ratio_sampling", "ratio_engine", "ratio_all"):
        ratios = [row[column] for row in rows.values()]
        print(f"{column}: geometric mean of {len(ratios)} {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
