"""Make ``reference.json``, the posterior moments that the statistical tests compare with.

``uv run python -m tests.statistical.reference`` runs NUTS (nutpie) for a long time on each model,
requires convergence, and stores the mean and sd of every scalar of the free variables, each with
its Monte Carlo standard error.
"""

import datetime
import importlib.metadata
import json
import platform
from typing import Any

import numpy as np
import pandas as pd
import pymc as pm

from pymc_deer import examples
from tests.statistical.checks import (
    MOMENT_COLUMNS,
    REFERENCE_FILE,
    check_converged,
    check_moments,
    summarise,
)

MODELS = {
    "eight_schools": examples.eight_schools,
    "breast_cancer": examples.breast_cancer,
    "radon": examples.radon,
    "correlated_gaussian": examples.correlated_gaussian,
}
"""The models compared, by their names in the file."""

SETTINGS = {
    "nuts_sampler": "nutpie",
    "chains": 4,
    "tune": 2000,
    "draws": 20_000,
    "target_accept": 0.95,
    "random_seed": 20_250_101,
}


def exact_gaussian(labels: pd.Index) -> pd.DataFrame:
    """Known moments of `examples.correlated_gaussian`, without Monte Carlo error."""
    sd = np.geomspace(0.1, 10.0, len(labels))
    return pd.DataFrame({"mean": 0.0, "sd": sd, "mcse_mean": 0.0, "mcse_sd": 0.0}, index=labels)


def run_nuts(name: str) -> dict[str, Any]:
    """Long run of one model, reduced to what is stored.

    Returns
    -------
    dict
        ``max_r_hat``, ``min_ess_bulk``, ``min_ess_tail``, ``divergences`` and ``scalars``: for
        every scalar the values of `MOMENT_COLUMNS`.
    """
    model = MODELS[name]()
    idata = pm.sample(model=model, progressbar=False, **SETTINGS)
    summary = summarise(idata, model)
    check_converged(summary)
    if name == "correlated_gaussian":
        check_moments(summary, exact_gaussian(summary.index))
    return {
        "max_r_hat": round(float(summary["r_hat"].to_numpy().max()), 5),
        "min_ess_bulk": round(summary["ess_bulk"].to_numpy().min()),
        "min_ess_tail": round(summary["ess_tail"].to_numpy().min()),
        "divergences": int(idata["sample_stats"]["diverging"].sum()),
        "scalars": {
            label: [float(f"{value:.6g}") for value in row]
            for label, row in zip(
                summary.index, summary[list(MOMENT_COLUMNS)].to_numpy(), strict=True
            )
        },
    }


def main() -> None:
    """Run every model and write the file."""
    packages = ("pymc", "pytensor", "nutpie", "arviz", "numpy", "scikit-learn")
    reference = {
        "made_by": "python -m tests.statistical.reference",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "versions": {
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in packages},
        },
        "settings": SETTINGS,
        "columns": MOMENT_COLUMNS,
        "models": {},
    }
    for name in MODELS:
        result = run_nuts(name)
        print(name, {key: value for key, value in result.items() if key != "scalars"}, flush=True)
        reference["models"][name] = result
    REFERENCE_FILE.write_text(json.dumps(reference, indent=1) + "\n")


if __name__ == "__main__":
    main()
