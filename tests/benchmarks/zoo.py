"""Beside NUTS: ``uv run python -m tests.benchmarks.zoo [MODEL ...] [--samplers NAME ...]``.

Every model is run, or those named, with DeerMALA and DeerHMC on both backends and with nutpie, or
with those named: four chains of 1000 draws, one after the other, with the samplers' defaults. A
gradient is the common unit of cost; ``seconds`` are those of `pm.sample`, compilation included, and
``seconds_sampling`` those that it says sampling took. The rows made replace those of the same model
and sampler in ``docs/benchmarks/zoo.json``; its date is that of the last one.
"""

import argparse
import itertools
import json
import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pymc as pm

from pymc_deer import DeerHMC, DeerMALA
from tests.benchmarks.measure import RESULTS, write
from tests.statistical.checks import deviations, load_reference, summarise
from tests.zoo import MODELS

SAMPLERS: dict[str, Callable[[], dict[str, Any]]] = {
    "mala, numba": lambda: {"step": DeerMALA(backend="numba")},
    "mala, jax": lambda: {"step": DeerMALA(backend="jax")},
    "hmc, numba": lambda: {"step": DeerHMC(backend="numba")},
    "hmc, jax": lambda: {"step": DeerHMC(backend="jax")},
    "nutpie": lambda: {"nuts_sampler": "nutpie"},
}
"""What `pm.sample` is given, in the context of the model."""

DRAWS = {
    "draws": 1000,
    "chains": 4,
    "cores": 1,
    "random_seed": 20_250_103,
    "progressbar": False,
    "discard_tuned_samples": False,
}


class Warnings(logging.Handler):
    """Collects the first sentences of warnings, as one of which PyMC's on R-hat is not logged."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        if record.levelno >= logging.WARNING or "rhat" in message:
            self.messages.append(message.split(". ")[0])


def measure(name: str, sampler: str) -> dict[str, object]:
    """Run one model with one of `SAMPLERS`.

    Returns
    -------
    dict
        One row of the table.
    """
    model = MODELS[name]()
    warnings = Warnings()
    logger = logging.getLogger("pymc")
    logger.addHandler(warnings)
    start = time.perf_counter()
    try:
        with model:
            idata: Any = pm.sample(**DRAWS, **SAMPLERS[sampler]())
    finally:
        logger.removeHandler(warnings)
    seconds = time.perf_counter() - start
    run = summarise(idata, model)
    gradients = int(idata["sample_stats"]["n_steps"].sum())
    ess = run["ess_bulk"].to_numpy().min()
    return {
        "model": name,
        "sampler": sampler,
        "dimension": sum(value.size for value in model.initial_point().values()),
        "max_r_hat": round(float(run["r_hat"].to_numpy().max()), 4),
        "min_ess_bulk": round(float(ess), 1),
        **largest_deviations(run, name),
        "seconds": round(seconds, 1),
        "seconds_sampling": round(idata["posterior"].attrs["sampling_time"], 1),
        "gradients_warmup": int(idata["warmup_sample_stats"]["n_steps"].sum()),
        "gradients": gradients,
        "ess_per_1000_gradients": float(f"{1000 * ess / gradients:.3g}"),
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
        "warnings": warnings.messages,
    }


def largest_deviations(run: Any, name: str) -> dict[str, float]:
    """Largest difference of a mean and of an sd from the reference, in MCSE."""
    reference = load_reference(name)
    deviation = deviations(run.reindex(reference.index), reference).abs()
    return {
        f"largest_deviation_{moment}": round(float(np.max(deviation[moment])), 2)
        for moment in ("mean", "sd")
    }


def stored_rows() -> list[dict[str, object]]:
    """Rows that the file has."""
    file = RESULTS / "zoo.json"
    return json.loads(file.read_text())["rows"] if file.exists() else []


def merge(*rows: dict[str, object]) -> list[dict[str, object]]:
    """The last row of every model and sampler, in the order of the zoo."""
    last = {(row["model"], row["sampler"]): row for row in rows}
    return [last[key] for key in itertools.product(MODELS, SAMPLERS) if key in last]


def table(rows: list[dict[str, Any]]) -> str:
    """The results in Markdown."""
    columns = {
        "model": "model",
        "D": "dimension",
        "sampler": "sampler",
        "R-hat": "max_r_hat",
        "min bulk ESS": "min_ess_bulk",
        "mean, MCSE": "largest_deviation_mean",
        "sd, MCSE": "largest_deviation_sd",
        "ESS per 1000 gradients": "ess_per_1000_gradients",
        "seconds": "seconds_sampling",
        "divergences": "divergences",
    }
    lines = [" | ".join(columns), " | ".join("---" for _ in columns)]
    lines += [" | ".join(str(row[field]) for field in columns.values()) for row in rows]
    body = "\n".join(f"| {line} |" for line in lines)
    return f"<!-- made by python -m tests.benchmarks.zoo -->\n\n{body}\n"


def main() -> None:
    """Run what the command line names, and write the table after every run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", metavar="MODEL", help=f"of {', '.join(MODELS)}")
    parser.add_argument("--samplers", nargs="+", choices=SAMPLERS, default=list(SAMPLERS))
    arguments = parser.parse_args()
    for name in arguments.models or MODELS:
        for sampler in arguments.samplers:
            old = stored_rows()
            rows = merge(*old, measure(name, sampler))
            write("zoo", rows, old)
            (RESULTS / "zoo.md").write_text(table(rows))


if __name__ == "__main__":
    main()
