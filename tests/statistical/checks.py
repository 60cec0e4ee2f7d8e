"""Whether a run has converged, and whether its moments agree with the reference.

A run is a table with a row for every scalar of the free variables, labelled as arviz does
(``eta[A]``), and arviz's columns: ``mean``, ``sd``, ``mcse_mean``, ``mcse_sd``, ``r_hat``,
``ess_bulk``, ``ess_tail``. A reference needs only the first four.
"""

import json
from pathlib import Path
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm

REFERENCE_FILE = Path(__file__).with_name("reference.json")
MOMENT_COLUMNS = ("mean", "sd", "mcse_mean", "mcse_sd")

MAX_R_HAT = 1.01
"""Bound of Vehtari et al. (2021), "Rank-normalization, folding, and localization"."""

MAX_DEVIATION = 4.0
"""Bound on a difference in combined Monte Carlo standard errors: normal errors exceed it once in
16,000 comparisons, and there are about 350 of them a backend."""


def summarise(idata: Any, model: pm.Model) -> pd.DataFrame:
    """Moments, their Monte Carlo errors and diagnostics of every scalar of the free variables.

    Parameters
    ----------
    idata
        What `pm.sample` returned.
    model
        The model of that run, on the constrained scale of which the moments are.
    """
    names = [rv.name for rv in model.free_RVs]
    summary: Any = az.summary(idata, var_names=names, round_to="none")
    return summary[[*MOMENT_COLUMNS, "r_hat", "ess_bulk", "ess_tail"]]


def load_reference(name: str) -> pd.DataFrame:
    """Moments of the long NUTS run of one model, made by ``tests/statistical/reference.py``."""
    stored = json.loads(REFERENCE_FILE.read_text())["models"][name]["scalars"]
    return pd.DataFrame.from_dict(stored, orient="index", columns=list(MOMENT_COLUMNS))


def deviations(run: pd.DataFrame, reference: pd.DataFrame) -> pd.DataFrame:
    """Differences of means and sds, in combined Monte Carlo standard errors.

    Returns
    -------
    pandas.DataFrame
        Columns ``mean`` and ``sd``, a row for every scalar. A scalar that only one side has is
        NaN, which no bound admits.
    """
    ours, theirs = run.align(reference, join="outer", axis=0)
    return pd.DataFrame(
        {
            moment: (ours[moment] - theirs[moment])
            / np.hypot(ours[f"mcse_{moment}"], theirs[f"mcse_{moment}"])
            for moment in ("mean", "sd")
        }
    )


def check_moments(run: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Require all means and sds within `MAX_DEVIATION` of the reference."""
    deviation = deviations(run, reference)
    # Negated, so that a NaN is outside as well.
    outside = deviation[~(deviation.abs() <= MAX_DEVIATION).all(axis=1)]
    assert outside.empty, f"Further than {MAX_DEVIATION} MCSE from the reference:\n{outside}"


def check_converged(run: pd.DataFrame) -> None:
    """Require R-hat below `MAX_R_HAT` for every scalar."""
    outside = run.loc[~(run["r_hat"] < MAX_R_HAT), ["r_hat", "ess_bulk"]]
    assert outside.empty, f"R-hat not below {MAX_R_HAT}:\n{outside}"
