"""Make ``reference.json``, the posterior moments that the statistical tests compare with.

``uv run python -m tests.statistical.reference [NAME ...]`` runs NUTS (nutpie) for a long time on
each model named, or on all of them, requires convergence, and stores the mean and sd of every
scalar of the free variables, each with its Monte Carlo standard error. Moments known in closed form
take the place of the runs that are beyond NUTS.
"""

import datetime
import importlib.metadata
import json
import platform
import re
import sys
import time
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm
from threadpoolctl import threadpool_limits

from tests.statistical.checks import (
    MOMENT_COLUMNS,
    REFERENCE_FILE,
    check_converged,
    check_moments,
    summarise,
)
from tests.zoo import MODELS, rotated_covariance

SETTINGS = {
    "nuts_sampler": "nutpie",
    "chains": 4,
    "tune": 2000,
    "draws": 20_000,
    "target_accept": 0.95,
    "random_seed": 20_250_101,
}

OVERRIDES: dict[str, dict[str, Any]] = {
    "horseshoe": {"draws": 4000},
    "latent_gp": {"draws": 5000},
    "stochastic_volatility": {"target_accept": 0.99},
}
"""Other settings, for models that are slow or diverge."""

PACKAGES = ("pymc", "pytensor", "nutpie", "arviz", "numpy", "scikit-learn")


def exact(labels: list[str], mean: Any, sd: Any) -> pd.DataFrame:
    """Known moments, without Monte Carlo error."""
    return pd.DataFrame({"mean": mean, "sd": sd, "mcse_mean": 0.0, "mcse_sd": 0.0}, index=labels)


def exact_gaussian(covariance: np.ndarray) -> pd.DataFrame:
    """Known moments of the variable x ~ N(0, covariance)."""
    return exact([f"x[{i}]" for i in range(len(covariance))], 0.0, np.sqrt(np.diag(covariance)))


EXACT: dict[str, pd.DataFrame] = {
    "rotated_gaussian": exact_gaussian(rotated_covariance()),
    # Only v: the x have a kurtosis of 24,000, so that not even independent draws estimate their sd.
    "funnel": exact(["v"], 0.0, 3.0),
    # For x ~ N(1, 10), x**2 has mean 11 and variance 2 * 10**2 + 4 * 10 = 240.
    "rosenbrock": exact(["x", "y"], [1.0, 11.0], np.sqrt([10.0, 240.1])),
}
"""Moments known in closed form, for models on which NUTS takes too long or does not converge.
Scalars left out are not compared."""


def run_nuts(name: str) -> dict[str, Any]:
    """Long run of one model, reduced to what is stored.

    Returns
    -------
    dict
        Settings, versions, date, ``max_r_hat``, ``min_ess_bulk``, ``min_ess_tail``,
        ``divergences``, ``seconds`` and ``scalars``: for every scalar the values of
        `MOMENT_COLUMNS`.
    """
    model = MODELS[name]()
    settings = SETTINGS | OVERRIDES.get(name, {})
    start = time.perf_counter()
    # Chains run in threads: those of BLAS would only compete with them.
    with threadpool_limits(1):
        idata = pm.sample(model=model, progressbar=False, **settings)
    seconds = round(time.perf_counter() - start)
    summary = summarise(idata, model)
    report = {
        "max_r_hat": round(float(summary["r_hat"].to_numpy().max()), 5),
        "min_ess_bulk": round(summary["ess_bulk"].to_numpy().min()),
        "min_ess_tail": round(summary["ess_tail"].to_numpy().min()),
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
        "seconds": seconds,
    }
    print(name, report, flush=True)
    check_converged(summary)
    if name == "correlated_gaussian":
        sd = np.geomspace(0.1, 10.0, len(summary))
        check_moments(summary, exact_gaussian(np.diag(sd**2)))
    return {**provenance(), "settings": settings, **report, "scalars": rows(summary)}


def rows(summary: pd.DataFrame) -> dict[str, list[float]]:
    """What is stored of every scalar: `MOMENT_COLUMNS` in six digits."""
    table = summary[list(MOMENT_COLUMNS)]
    return {
        str(label): [float(f"{value:.6g}") for value in row]
        for label, row in zip(table.index, table.to_numpy(), strict=True)
    }


def provenance() -> dict[str, Any]:
    """Date and versions."""
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    return {
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {"python": platform.python_version(), **versions},
    }


def store(name: str, entry: dict[str, Any]) -> None:
    """Put one model's entry into the file, the others as they are, a line for every scalar."""
    reference = json.loads(REFERENCE_FILE.read_text())
    entries = reference["models"] | {name: entry}
    reference["models"] = {name: entries[name] for name in MODELS if name in entries}
    text = json.dumps(reference, indent=1)
    REFERENCE_FILE.write_text(re.sub(r"\s+(?=[^\[\]]*\])", " ", text) + "\n")


def main() -> None:
    """Run the models named and merge their entries into the file."""
    for name in sys.argv[1:] or MODELS:
        store(name, {"scalars": rows(EXACT[name])} if name in EXACT else run_nuts(name))


if __name__ == "__main__":
    main()
