"""Whether a run has converged, and whether its moments agree with the reference.

A run is a table with a row for every scalar of the free variables, labelled as arviz does
(``eta[A]``), and arviz's columns: ``mean``, ``sd``, ``mcse_mean``, ``mcse_sd``, ``r_hat``,
``ess_bulk``, ``ess_tail``. A reference needs only the first four.
"""

import json
from pathlib import Path
from statistics import NormalDist
from typing import Any

import arviz as az
import numpy as np
import pandas as pd
import pymc as pm

REFERENCE_FILE = Path(__file__).with_name("reference.json")
MOMENT_COLUMNS = ("mean", "sd", "mcse_mean", "mcse_sd")

MAX_R_HAT = 1.01
"""Bound of Vehtari et al. (2021), "Rank-normalization, folding, and localization"."""

MIN_ESS = 400
"""Bound of the same authors on the bulk effective sample size, 100 for each of four chains."""

MAX_DEVIATION = 4.0
"""Bound on one difference in combined Monte Carlo standard errors: normal errors exceed it once in
16,000 comparisons."""

FALSE_ALARMS = 1e-4
"""Share of correct runs of which one of all differences may be outside. XLA rounds otherwise on
other processors, and a chain that does is another draw from the posterior: a seed that passes on
one machine is chance on the next."""

WARNINGS = ("rhat statistic is larger", "effective sample size per chain")
"""What PyMC says of a run that did not converge, at its own bounds, which are those above. A count
of divergences would not do: some models that converge report a few."""


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


def max_deviation(n: int) -> float:
    """Bound on each of n differences: Bonferroni's, and no less than `MAX_DEVIATION`."""
    return max(MAX_DEVIATION, NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * n)))


def check_moments(run: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Require all means and sds within `max_deviation` of the reference."""
    deviation = deviations(run, reference)
    most = max_deviation(deviation.size)
    # Negated, so that a NaN is outside as well.
    outside = deviation[~(deviation.abs() <= most).all(axis=1)]
    assert outside.empty, f"Further than {most:.1f} MCSE from the reference:\n{outside}"


def check_converged(run: pd.DataFrame) -> None:
    """Require R-hat below `MAX_R_HAT` for every scalar."""
    outside = run.loc[~(run["r_hat"] < MAX_R_HAT), ["r_hat", "ess_bulk"]]
    assert outside.empty, f"R-hat not below {MAX_R_HAT}:\n{outside}"


def check_effective_draws(run: pd.DataFrame) -> None:
    """Require at least `MIN_ESS` effective draws of every scalar, in the bulk."""
    outside = run.loc[~(run["ess_bulk"] >= MIN_ESS), ["r_hat", "ess_bulk"]]
    assert outside.empty, f"Fewer than {MIN_ESS} effective draws:\n{outside}"


def check_run(run: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Require all three: convergence, enough effective draws, and the moments of the reference."""
    check_converged(run)
    check_effective_draws(run)
    check_moments(run, reference)


def check_run_or_warning(run: pd.DataFrame, reference: pd.DataFrame, log: str) -> None:
    """Require of a run that fails `check_run` that PyMC told its user so, and `check_roughly`.

    Parameters
    ----------
    run, reference
        As for `check_moments`; scalars without a reference are checked for convergence only.
    log
        What the logger ``pymc`` was given.
    """
    try:
        check_converged(run)
        check_effective_draws(run)
        check_moments(run.reindex(reference.index), reference)
    except AssertionError as failure:
        if not any(warning in log for warning in WARNINGS):
            raise AssertionError(f"Nothing was said of this.\n{failure}") from failure
        check_roughly(run.reindex(reference.index), reference)


def check_roughly(run: pd.DataFrame, reference: pd.DataFrame) -> None:
    """Require that a chain that has not converged is on its way through the same posterior.

    Means within one standard deviation of the reference, standard deviations within a factor of 3.
    """
    shift = (run["mean"] - reference["mean"]).abs() / reference["sd"]
    stretch = np.log(run["sd"] / reference["sd"]).abs()
    # Negated, so that a NaN is outside as well.
    outside = run.loc[~((shift <= 1) & (stretch <= np.log(3)))]
    assert outside.empty, f"Elsewhere than the reference:\n{outside}"
