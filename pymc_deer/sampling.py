"""``pymc_deer.sample``: all chains side by side, a stretch of each at a time."""

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from pymc.initial_point import make_initial_point_fns_per_chain
from pymc.model import Model
from pymc.progress_bar.progress import MCMCProgressBarManager
from pymc.stats.convergence import SamplerWarning, WarningType, log_warnings
from pymc.util import get_random_generator
from xarray import DataTree

from pymc_deer.ensemble import Ensemble
from pymc_deer.hmc import DeerHMC
from pymc_deer.inference_data import inference_data
from pymc_deer.mala import DeerMALA
from pymc_deer.options import is_integer
from pymc_deer.recorder import Recorder
from pymc_deer.start import find_start
from pymc_deer.status import ModelError, OptionError, invalid_option
from pymc_deer.step import DeerStep
from pymc_deer.stretch import SolvedStretch

_log = logging.getLogger("pymc.deer")

KERNELS: dict[str, type[DeerStep]] = {"mala": DeerMALA, "hmc": DeerHMC}


def sample(
    draws: int = 1000,
    *,
    kernel: str = "mala",
    tune: int | None = None,
    chains: int = 4,
    model: Model | None = None,
    random_seed: Any = None,
    initvals: Any = None,
    var_names: Sequence[str] | None = None,
    progressbar: Any = True,
    progressbar_theme: Any = None,
    quiet: bool = False,
    discard_tuned_samples: bool = True,
    compute_convergence_checks: bool = True,
    idata_kwargs: dict[str, Any] | None = None,
    **deer_options: Any,
) -> DataTree:
    """Sample all chains of a model together.

    `pm.sample` calls a step for each draw of each chain. Here each call solves a stretch of all
    chains, and warm-up learns metric, path lengths and steps per draw from the draws of all of
    them. The result is that of `pm.sample`.

    Parameters
    ----------
    draws
        Recorded draws of each chain, after warm-up.
    kernel
        ``"mala"`` for :class:`DeerMALA`, ``"hmc"`` for :class:`DeerHMC`.
    tune
        Recorded draws of warm-up; 1000 by default.
    chains
        Number of chains C.
    model
        The model, all of whose free variables are continuous; from the context by default.
    random_seed, initvals, var_names, progressbar, progressbar_theme, quiet
        As in `pm.sample`.
    discard_tuned_samples, compute_convergence_checks, idata_kwargs
        As in `pm.sample`.
    **deer_options
        Arguments of :class:`DeerMALA` or :class:`DeerHMC`.

    Returns
    -------
    xarray.DataTree
        What `pm.sample` returns, with what was chosen in the attributes of ``sample_stats``. After
        an interrupt, the draws that all chains had finished.

    Raises
    ------
    OptionError, ModelError, BackendError
        Before sampling begins, naming the argument, variable or package.
    StartError
        Where a chain starts at a point at which logp is not finite, naming the terms.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_deer
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     idata = pymc_deer.sample(kernel="hmc", chains=4, random_seed=1, progressbar=False)
    >>> dict(idata.posterior.sizes)
    {'chain': 4, 'draw': 1000}
    """
    step = _step(kernel, model, deer_options)
    n_tune: int = type(step).default_tune_steps if tune is None else tune
    for name, value, least in (("draws", draws, 1), ("chains", chains, 1), ("tune", n_tune, 0)):
        _check_count(name, value, least)
    _check_names(var_names, step.model)
    recorder = Recorder(step.model, step.density.layout, var_names, chains, n_tune + draws)
    shown = False if quiet else progressbar
    progress = StretchProgress(step, chains, draws, n_tune, shown, progressbar_theme)
    begun = time.time()
    # All variables are the step's own: what is left are data.
    params = step.density.param_values({})
    ensemble = _started(step, params, n_tune, draws, chains, random_seed, initvals)
    try:
        with progress:
            while not ensemble.finished:
                tuning = ensemble.tuning
                stretches = ensemble.next_stretch(params)
                recorder.record(stretches, tuning=tuning)
                progress.show(stretches, tuning=tuning)
    except KeyboardInterrupt:
        _log.info("Interrupted: the draws that all chains have finished are kept.")
    if not quiet:
        kind = WarningType.CONVERGENCE
        log_warnings([SamplerWarning(kind, text, "warn") for text in ensemble.warnings()])
    idata = inference_data(
        recorder.closed(),
        tune=n_tune,
        t_sampling=time.time() - begun,
        discard_tuned_samples=discard_tuned_samples,
        compute_convergence_checks=compute_convergence_checks,
        idata_kwargs=idata_kwargs or {},
        model=step.model,
        quiet=quiet,
    )
    for name in ("sample_stats", "warmup_sample_stats"):
        if name in idata:
            idata[name].attrs.update(step.attrs)
    return idata


class StretchProgress(MCMCProgressBarManager):
    """PyMC's progress bars, which advance by stretches."""

    def show(self, stretches: Sequence[SolvedStretch], *, tuning: bool) -> None:
        """Advance the bar of each chain, or that of all."""
        if not self._show_progress:
            return
        n_draws = len(stretches[0].draws)
        for chain, stretch in enumerate(stretches):
            self.completed_draws += n_draws
            last = {name: column[-1] for name, column in stretch.statistics.items()}
            last |= {"diverging": any(stretch.statistics["diverging"]), "tune": tuning}
            failing, stats = self._extract_stats([last])
            if self.combined_progress:
                task, done = 0, self.completed_draws
            else:
                task, done = chain, (self.completed_draws - 1) // self.chains + 1
            stats["draw"] = done - self._tune_total if done > self._tune_total else done
            self._backend.update(
                task_id=task,
                advance=n_draws,
                failing=failing,
                stats=stats,
                is_last=done == self.total_draws,
                total=self.total_draws,
            )


def _started(
    step: DeerStep,
    params: Sequence[np.ndarray],
    tune: int,
    draws: int,
    chains: int,
    random_seed: Any,
    initvals: Any,
) -> Ensemble:
    """Chains at their starts, each with its own random numbers, as `pm.sample` gives them."""
    model = step.model
    rngs = get_random_generator(random_seed).spawn(chains)
    seeds = [int(rng.integers(2**30)) for rng in rngs]
    points = [
        point_of(seed)
        for point_of, seed in zip(
            make_initial_point_fns_per_chain(
                model=model, overrides=initvals, jitter_rvs=set(), chains=chains
            ),
            seeds,
            strict=True,
        )
    ]
    records = [step.new_record(rng, tune, draws) for rng in rngs]
    starts = [
        find_start(model, step.solver, point, params, record.streams.start)
        for point, record in zip(points, records, strict=True)
    ]
    ensemble = Ensemble(step.solver, records)
    ensemble.begin(starts, params)
    return ensemble


def _check_count(name: str, value: Any, least: int) -> None:
    if not is_integer(value, least):
        raise invalid_option("sample", name, value, f"an integer of at least {least}")


def _step(kernel: str, model: Model | None, options: dict[str, Any]) -> DeerStep:
    """The step method whose solver runs the chains; it reports all that is wrong with a model."""
    if kernel not in KERNELS:
        raise invalid_option("sample", "kernel", kernel, f"one of {tuple(KERNELS)}")
    ours = sorted({"vars", "rng", "initial_point", "blocked"} & options.keys())
    if ours:
        raise OptionError(
            f"sample has no argument {', '.join(ours)}: it moves all variables of the model "
            "together, from where initvals says."
        )
    step = KERNELS[kernel](model=model, **options)
    assert isinstance(step, DeerStep)
    if len(step.vars) < len(step.model.value_vars):
        discrete = [v.name for v in step.model.value_vars if v not in step.vars]
        raise ModelError(
            f"{', '.join(discrete)}: pymc_deer.sample moves all variables itself, and these are "
            f"discrete. Write pm.sample(step={step.options.sampler}([...])) with the continuous "
            "ones, and PyMC picks a step for the rest."
        )
    return step


def _check_names(var_names: Sequence[str] | None, model: Model) -> None:
    known = [variable.name for variable in model.unobserved_RVs]
    unknown = [name for name in var_names or () if name not in known]
    if unknown:
        raise OptionError(
            f"sample(var_names=...): the model has no {', '.join(unknown)}; it has "
            f"{', '.join(known)}."
        )
