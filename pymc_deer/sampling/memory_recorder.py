"""Draws in memory, in PyMC's own traces, and by them the layout of InferenceData."""

import logging
import warnings
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from pymc.backends.ndarray import NDArray
from xarray import DataTree

from pymc_deer.sampling.inference_data import check_convergence, inference_data
from pymc_deer.sampling.recorder import Ending, Piece, Recorder, Values
from pymc_deer.sampling.settings import Settings
from pymc_deer.stats import STATS
from pymc_deer.status import OptionError, terms_failed
from pymc_deer.warning_filters import own_filters

_log = logging.getLogger("pymc.deer")
_TERMS = ("log_likelihood", "log_prior")
"""What is computed of the draws once they are made."""


class StretchTrace(NDArray):
    """One chain's trace in memory, which is written many draws at a time."""

    def write(
        self, first: int, values: Mapping[str, np.ndarray], stats: Mapping[str, np.ndarray]
    ) -> None:
        """Put draws at position `first`: values (n, ...) and statistics (n,) by name."""
        assert self._stats is not None
        [recorded] = self._stats
        for name, column in values.items():
            self.samples[name][first : first + len(column)] = column
        for name, column in stats.items():
            recorded[name][first : first + len(column)] = column

    def end(self, n_draws: int) -> None:
        """Have so many draws, and take no more."""
        self.draw_idx = n_draws
        self.close()


class MemoryRecorder(Recorder):
    """Draws in memory.

    Parameters
    ----------
    values
        What is recorded.
    settings, idata_kwargs
        Of the run.
    """

    def __init__(self, values: Values, settings: Settings, idata_kwargs: dict[str, Any]) -> None:
        super().__init__(values, keeps_warmup=not settings.discard_tuned_samples)
        self._settings, self._idata_kwargs = settings, idata_kwargs
        assert settings.tune is not None
        layout, model = _without_terms(idata_kwargs), values.model
        if layout or model.coords or model.data_vars:
            # What is wrong with it would otherwise be found when the draws are made, and lose them.
            template(values, settings, layout)
        self._traces = _traces(values, settings.tune + settings.draws)

    @property
    def has_draws(self) -> bool:
        return self._waiting.end > (0 if self._keeps_warmup else self._settings.tune or 0)

    def finished(self, ending: Ending) -> DataTree:
        kwargs = self._idata_kwargs
        if self.n_done <= (self._settings.tune or 0):
            kwargs = _without_terms(kwargs)
        for trace in self._traces:
            trace.end(self.n_done)
        idata = self._with_terms(kwargs, ending)
        for name in ("sample_stats", "warmup_sample_stats"):
            if name in idata:
                idata[name].attrs.update(ending.attrs)
        if ending.compute_convergence_checks:
            check_convergence(idata, self.values.model)
        return idata

    def _with_terms(self, kwargs: dict[str, Any], ending: Ending) -> DataTree:
        """Without what cannot be computed of the draws, or is interrupted: they are worth more."""
        asked = [name for name in _TERMS if kwargs.get(name)]
        try:
            return self._converted(kwargs, ending)
        except (Exception, KeyboardInterrupt) as error:
            if asked:
                _log.warning(terms_failed(asked, error))
            elif not isinstance(error, KeyboardInterrupt):
                raise
            # A first interrupt waits for draws that are made, as while they are recorded.
            # What PyMC logs it has logged.
            return self._converted(_without_terms(kwargs), replace(ending, quiet=True))

    def _converted(self, kwargs: dict[str, Any], ending: Ending) -> DataTree:
        return inference_data(
            self._traces,
            tune=self._settings.tune,
            t_sampling=ending.seconds,
            discard_tuned_samples=self._settings.discard_tuned_samples,
            idata_kwargs=kwargs,
            model=self.values.model,
            quiet=ending.quiet,
        )

    def _write(self, piece: Piece, values: Mapping[str, np.ndarray]) -> None:
        for chain, trace in enumerate(self._traces):
            stats = {name: column[chain] for name, column in piece.stats.items()}
            trace.write(piece.first, {name: value[chain] for name, value in values.items()}, stats)


def _without_terms(idata_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments but for what is computed of draws behind warm-up."""
    return {name: value for name, value in idata_kwargs.items() if name not in _TERMS}


def template(values: Values, settings: Settings, idata_kwargs: dict[str, Any]) -> DataTree:
    """What the run would return, with a draw of each phase, whose values mean nothing.

    Raises
    ------
    OptionError
        If nothing could be returned, with what PyMC and ArviZ say of it.
    """
    n_tune = 1 if settings.tune else 0
    traces = _traces(values, n_tune + 1)
    for trace in traces:
        trace.end(n_tune + 1)
    try:
        with own_filters():
            # ArviZ takes it for a mistake if there are more chains than draws.
            warnings.filterwarnings("ignore", "Found chain dimension", UserWarning)
            return inference_data(
                traces,
                tune=n_tune,
                t_sampling=0.0,
                discard_tuned_samples=settings.discard_tuned_samples,
                idata_kwargs=idata_kwargs,
                model=values.model,
                quiet=True,
            )
    except (AttributeError, TypeError, ValueError) as error:
        raise OptionError(
            f"sample: draws cannot become InferenceData: {error}. Look at idata_kwargs and at the "
            "model's coordinates and data."
        ) from error


def _traces(values: Values, n_draws: int) -> list[StretchTrace]:
    """Traces of all chains, for so many draws of each."""
    made = [
        StretchTrace(
            model=values.model,
            vars=values.variables,
            fn=values.at_point,
            test_point=values.initial_point,
        )
        for _ in range(values.n_chains)
    ]
    for chain, trace in enumerate(made):
        trace.setup(n_draws, chain, [{stat.name: stat.dtype for stat in STATS}])
    return made
