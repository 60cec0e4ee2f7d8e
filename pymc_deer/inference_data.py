"""From finished traces to what `pm.sample` returns, by PyMC's own last step."""

from collections.abc import Sequence
from typing import Any

from pymc.backends.ndarray import NDArray
from pymc.sampling.mcmc import _sample_return
from xarray import DataTree


def inference_data(traces: Sequence[NDArray], **options: Any) -> DataTree:
    """The draws of all chains, sorted into groups and checked.

    Parameters
    ----------
    **options
        As in `pm.sample`, with `tune`, the draws of warm-up, and `t_sampling`, in seconds.
    """
    idata: Any = _sample_return(
        run=None, traces=traces, return_inferencedata=True, keep_warning_stat=False, **options
    )
    return idata
