"""What a run of a sampler is worth: effective draws by second and gradient, and convergence."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import arviz as az
import numpy as np
import xarray as xr

MAX_R_HAT, MIN_ESS = 1.01, 400
"""Where a run counts as converged, as in ``tests/statistical/checks.py``."""

FIRST = ("compile_s", "total_s", "ess_per_s_all", "seconds_to_converge")
"""Figures with compilation, which count for the first run of a process: what later ones compile
anew, and what they find compiled, is another matter for each sampler."""

_SCALARS = 100
"""Scalars of a variable that are looked at, evenly spaced: ArviZ takes a millisecond for each."""

_FRACTIONS = np.linspace(0.1, 1.0, 10)


@dataclass(frozen=True)
class Run:
    """One run of one sampler.

    Attributes
    ----------
    compiling, warmup, sampling
        Seconds by phase.
    total
        Seconds from the model to the draws, all included.
    posterior
        Draws kept, by name of the free variable, each (chain, draw, ...).
    gradients
        Gradients of the draws kept, of all chains.
    divergences
        Draws with a divergent transition.
    more
        What else there is to say of it.
    """

    compiling: float
    warmup: float
    sampling: float
    total: float
    posterior: Mapping[str, Any]
    gradients: int
    divergences: int
    more: Mapping[str, Any] = field(default_factory=dict)


def figures(run: Run, cores: int) -> dict[str, Any]:
    """One row of the table, for a run whose chains had so many cores."""
    draws = scalars(run.posterior)
    r_hat, ess = quality(draws)
    n_chains = draws.sizes["chain"]
    busy = run.sampling * min(cores, n_chains)
    return {
        "compile_s": run.compiling,
        "warmup_s": run.warmup,
        "sampling_s": run.sampling,
        "total_s": run.total,
        "min_ess_bulk": ess,
        "max_r_hat": r_hat,
        "ess_per_s": ess / run.sampling,
        "ess_per_s_all": ess / run.total,
        "seconds_to_converge": seconds_to_converge(run, draws),
        "gradients_per_ess": run.gradients / ess,
        "us_per_gradient": 1e6 * busy / max(run.gradients, 1),
        "divergences": run.divergences,
        **run.more,
    }


def scalars(posterior: Mapping[str, Any]) -> xr.Dataset:
    """Some scalars of every variable; a single chain in two halves, which R-hat compares."""
    columns = {}
    for name, values in posterior.items():
        array = np.asarray(values)
        n_chains, n_draws = array.shape[:2]
        flat = array.reshape(n_chains, n_draws, -1)
        size = flat.shape[2]
        if size > _SCALARS:
            flat = flat[:, :, np.linspace(0, size - 1, _SCALARS).astype(int)]
        if n_chains == 1:
            half = n_draws // 2
            flat = flat[:, : 2 * half].reshape(2, half, -1)
        columns[name] = (("chain", "draw", f"{name}_scalar"), flat)
    return xr.Dataset(columns)


def quality(draws: xr.Dataset) -> tuple[float, float]:
    """Largest R-hat and least bulk effective sample size."""
    r_hat: Any = az.rhat(draws)
    ess: Any = az.ess(draws, method="bulk")
    return _extreme(r_hat, np.max), _extreme(ess, np.min)


def seconds_to_converge(run: Run, draws: xr.Dataset) -> float:
    """From the model to R-hat below 1.01 and 400 effective draws; infinite if never.

    Of the draws, only the shortest tenths at which both hold are counted. If R-hat is there at the
    end and the effective draws are not, as many more draws are counted as they are short of.
    """
    before = run.total - run.sampling
    n_draws = draws.sizes["draw"]
    r_hat, ess = np.inf, 0.0
    for fraction in _FRACTIONS:
        n = int(fraction * n_draws)
        if n >= 4:
            r_hat, ess = quality(draws.isel(draw=slice(n)))
            if r_hat < MAX_R_HAT and ess >= MIN_ESS:
                return before + fraction * run.sampling
    return before + run.sampling * MIN_ESS / ess if r_hat < MAX_R_HAT else np.inf


def median(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Medians of numbers, and what all have in common of the rest."""
    return {
        name: float(np.median([row[name] for row in rows]))
        if isinstance(value, int | float)
        else value
        for name, value in rows[0].items()
    }


def _extreme(statistics: xr.Dataset, of: Any) -> float:
    """Over all scalars; NaN if any is."""
    values = [np.ravel(column.to_numpy()) for column in statistics.data_vars.values()]
    return float(of(np.concatenate(values)))
