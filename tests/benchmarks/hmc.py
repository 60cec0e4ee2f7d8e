"""`pymc_deer.sample` with HMC beside nutpie: ``uv run python -m tests.benchmarks.hmc [NAME ...]``.

Each model four chains of 1000 draws on two cores with the samplers' defaults, the two samplers in
turn; medians of the repeats. ``sampling`` counts the draws kept alone: for `pymc_deer.sample` from
its own clock, what it takes to record all draws included; for nutpie the time of all its draws
shared out by gradients. Conversion to InferenceData is in neither. ``all`` is everything from the
model to the draws, compilation included, in a process of its own with an empty compilation cache.
The rows made replace those of the same model in ``docs/benchmarks/hmc.json``.
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

import pymc_deer
from pymc_deer.examples import correlated_logistic
from tests.benchmarks.measure import RESULTS, write
from tests.benchmarks.samplers import sampled_by_nutpie
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
CHAINS, CORES, DRAWS = 4, 2, 1000
REPEATS = 3


@dataclass(frozen=True)
class Measured:
    """One run of one sampler: seconds, gradients, and how good its draws are."""

    compiling: float
    tuning: float
    sampling: float
    ess: float
    tail_ess: float
    r_hat: float
    gradients: int
    divergences: int


def deer(model: pm.Model, seed: int) -> Measured:
    """`pymc_deer.sample`, each chain in a thread."""
    idata: Any = pymc_deer.sample(
        DRAWS,
        kernel="hmc",
        model=model,
        chains=CHAINS,
        cores=CORES,
        random_seed=seed,
        progressbar=False,
        compute_convergence_checks=False,
        quiet=True,
    )
    stats = idata["sample_stats"]
    seconds = {
        phase: stats.attrs[f"deer_seconds_{phase}"]
        for phase in ("compile", "warmup", "sampling", "recording")
    }
    return Measured(
        seconds["compile"],
        seconds["warmup"],
        seconds["sampling"] + seconds["recording"],
        **quality(idata, model),
        gradients=int(stats["n_steps"].sum()),
        divergences=int(stats["diverging"].sum()),
    )


def nuts(model: pm.Model, seed: int) -> Measured:
    """nutpie, compiled by PyTensor to Numba too."""
    start = time.perf_counter()
    compiled: Any = nutpie.compile_pymc_model(model)
    compiling = time.perf_counter() - start
    trace, seconds = sampled_by_nutpie(compiled, draws=DRAWS, chains=CHAINS, cores=CORES, seed=seed)
    warmup, kept = (
        int(trace[group]["n_steps"].sum()) for group in ("warmup_sample_stats", "sample_stats")
    )
    return Measured(
        compiling,
        seconds * warmup / (warmup + kept),
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
    ratios = [(one.ess / one.sampling) / (other.ess / other.sampling) for one, other in pairs]
    seconds = {sampler: cold(name, sampler) for sampler in SAMPLERS}
    per_second = {sampler: median[sampler]["ess"] / seconds[sampler] for sampler in SAMPLERS}
    row: dict[str, object] = {
        "model": name,
        "ratio_sampling": round(float(np.median(ratios)), 2),
        "ratios_sampling": [round(r, 2) for r in ratios],
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
    for column in ("ratio_sampling", "ratio_all"):
        ratios = [row[column] for row in rows.values()]
        print(f"{column}: geometric mean of {len(ratios)} {np.exp(np.mean(np.log(ratios))):.2f}")


if __name__ == "__main__":
    main()
