"""From finished draws to what `pm.sample` returns, by PyMC's own last steps."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.backends.ndarray import NDArray
from pymc.model import Model
from pymc.sampling.mcmc import _sample_return
from pymc.stats.convergence import log_warnings, run_convergence_checks
from xarray import DataTree

from pymc_deer.status import not_checked

_log = logging.getLogger("pymc.deer")

_CHECKED_DRAWS = 4096
"""Draws of a chain that tell as well as all of them whether it has converged: those left out lie
between them, and its effective draws number more than the 100 asked for either way."""

_FEWEST_CHECKED = 1000
_CHECKED_BYTES = 2**24


def inference_data(traces: Sequence[NDArray], **options: Any) -> DataTree:
    """The draws of all chains, sorted into groups.

    Parameters
    ----------
    **options
        As in `pm.sample`, with `tune`, the draws of warm-up, and `t_sampling`, in seconds.
    """
    idata: Any = _sample_return(
        run=None,
        traces=traces,
        return_inferencedata=True,
        keep_warning_stat=False,
        compute_convergence_checks=False,
        **options,
    )
    return idata


def check_convergence(idata: DataTree, model: Model) -> None:
    """PyMC's convergence checks. Where they fail, or are interrupted, the draws are worth more."""
    try:
        log_warnings(run_convergence_checks(idata, model))
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001 - whatever checks raise
        _log.warning(not_checked(error))


def some_draws(idata: DataTree) -> DataTree:
    """What is to be checked of draws that memory may have no room for.

    Every n-th one, as many as 16 MiB of the largest variable hold, from 1000 to 4096; divergences
    are counted in all.
    """
    posterior = idata["posterior"].to_dataset()
    n_draws = posterior.sizes["draw"]
    of_one = max((v.nbytes // max(n_draws, 1) for v in posterior.data_vars.values()), default=0)
    most = np.clip(_CHECKED_BYTES // max(of_one, 1), _FEWEST_CHECKED, _CHECKED_DRAWS)
    some = posterior.isel(draw=slice(None, None, max(1, -(-n_draws // int(most)))))
    return DataTree.from_dict(
        {"/posterior": some, "/sample_stats": idata["sample_stats"].to_dataset()[["diverging"]]}
    )
