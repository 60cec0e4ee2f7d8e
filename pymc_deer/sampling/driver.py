"""``pymc_deer.sample``: all chains side by side, a stretch of each at a time."""

import logging
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
from pymc.initial_point import convert_str_to_rv_dict, make_initial_point_fns_per_chain
from pymc.model import Model
from pymc.stats.convergence import (
    SamplerWarning,
    WarningType,
    log_warnings,
    warn_divergences,
)
from pymc.util import get_random_generator
from xarray import DataTree

from pymc_deer.chains.ensemble import Ensemble
from pymc_deer.floating_point import as_numpy_does
from pymc_deer.sampling.arguments import (
    checked_kwargs,
    refuse_beside_resume,
    refuse_beside_store,
    refuse_foreign,
    refuse_names,
    refuse_no_progressbar,
    refuse_sparse_data,
    refuse_to_begin,
    refuse_unknown_names,
    refuse_unknown_terms,
    run_path,
    starts_by_name,
)
from pymc_deer.sampling.attributes import all_attrs, fixed_attrs
from pymc_deer.sampling.checkpoint import Checkpoint
from pymc_deer.sampling.fingerprint import Fingerprint
from pymc_deer.sampling.hardware import Hardware
from pymc_deer.sampling.memory_recorder import MemoryRecorder
from pymc_deer.sampling.phases import Phases
from pymc_deer.sampling.progress import StretchProgress
from pymc_deer.sampling.recorder import Ending, Recorder, Values, traced
from pymc_deer.sampling.settings import CHAINS, DRAWS, Settings
from pymc_deer.sampling.shared_step import make_step, within_memory
from pymc_deer.sampling.store_recorder import RunPlace, StoreRecorder
from pymc_deer.start import find_starts
from pymc_deer.step import DeerStep
from pymc_deer.store import local_path, require_zarr_to_write
from pymc_deer.sweep import Kernel
from pymc_deer.variables import given_model

_log = logging.getLogger("pymc.deer")

_COMPILING = "Compiling the model ..."
"""Until there are bars that move, which on Numba may take a minute."""


@as_numpy_does()
def sample(
    draws: int | None = None,
    *,
    kernel: Kernel = "hmc",
    tune: int | None = None,
    chains: int | None = CHAINS,
    cores: int | None = None,
    devices: Any = None,
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
    store: str | PathLike[str] | None = None,
    resume: str | PathLike[str] | None = None,
    **deer_options: Any,
) -> DataTree:
    """Sample all chains of a model together.

    `pm.sample` calls a step for each draw of each chain. Here each call solves a stretch of all
    chains, and warm-up learns metric, path lengths and steps per draw from the draws of all of
    them. The result is that of `pm.sample`.

    Parameters
    ----------
    draws
        Recorded draws of each chain, after warm-up; 1000 by default, and beside `resume` as many as
        the run was last to have. It may go on to more.
    kernel
        ``"hmc"``, the default, for :class:`DeerHMC`; ``"mala"`` for :class:`DeerMALA`, whose
        transitions are of one leapfrog step. ``docs/benchmarks.md`` has the two beside each other.
    tune
        Recorded draws of warm-up; 1000 by default.
    chains
        Number of chains C; 4 by default, and for None.
    cores
        Chains that run at the same time on a CPU, each in a thread; None for as many as there are
        cores, or as BLAS may have threads, and for one where `multiprocessing` has started this
        process. The draws do not depend on it. On a GPU all chains are one batch.
    devices
        Devices of JAX that share chains, windows and data: how many of ``jax.devices()``, or which,
        or a ``jax.sharding.Mesh`` with axes among ``"chain"``, ``"window"`` and ``"data"``. The
        draws depend on it within rounding. See ``docs/devices.md``, for several hosts too.
    model
        The model, all of whose free variables are continuous; from the context by default.
    random_seed, initvals, var_names, progressbar, progressbar_theme, quiet
        As in `pm.sample`.
    discard_tuned_samples, compute_convergence_checks, idata_kwargs
        As in `pm.sample`, but that draws are returned without a ``log_likelihood`` or a
        ``log_prior`` that cannot be computed of them.
    store
        A directory to make, a Zarr store, where draws go as they are made: for runs larger than
        memory, to look at them meanwhile, and to go on after the process has ended.
    resume
        Such a directory: its run goes on, with the same draws as if it had not ended. Settings
        are those that it was begun with; arguments left at their defaults need not be given again,
        others must agree, but that `draws` may be more.
    **deer_options
        Arguments of :class:`DeerMALA` or :class:`DeerHMC`. ``backend="auto"`` is JAX: it compiles
        in seconds. On a CPU it is Numba, which compiles longer and once, where a gradient gathers
        and scatters more than 65,536 numbers by arrays of indices, and more than eight for each
        function it evaluates, or factors matrices of 100 rows or so (a Gaussian process of as many
        points), or where JAX cannot run: the model, or in a forked process. For long runs of models
        with groups Numba is the faster one, as :func:`pymc_deer.profile` shows.

    Returns
    -------
    xarray.DataTree
        What `pm.sample` returns, with what was chosen in the attributes of ``sample_stats``. After
        an interrupt, the draws that all chains had finished; where there is none, and no store,
        `KeyboardInterrupt` is raised. Of a store, draws are read as they are used.

    Raises
    ------
    OptionError, ModelError, BackendError
        Before sampling begins, naming the argument, variable or package.
    ForkError
        With ``backend="jax"`` in a forked process.
    StartError
        Where a chain cannot start: logp or its gradient is not finite there, naming the terms, or a
        value of `initvals` has the wrong shape.

    Examples
    --------
    >>> import pymc as pm
    >>> import pymc_deer
    >>> with pm.Model():
    ...     x = pm.Normal("x", 1.0, 2.0)
    ...     idata = pymc_deer.sample(random_seed=1, progressbar=False)
    >>> dict(idata.posterior.sizes)
    {'chain': 4, 'draw': 1000}
    """
    refuse_foreign(deer_options)
    refuse_no_progressbar(progressbar)
    hardware = Hardware.of(cores, devices)
    settings = Settings(
        DRAWS if draws is None else draws,
        kernel,
        tune,
        CHAINS if chains is None else chains,
        var_names,
        random_seed,
        discard_tuned_samples,
        deer_options,
    )
    hardware.refuse_differences(settings, store, resume)
    quiet = quiet or not hardware.is_first
    tell = _log.debug if quiet else _log.info
    if resume is None:
        kwargs = checked_kwargs(idata_kwargs)
        run = _begun(settings, model, hardware, initvals, kwargs, store, tell)
    else:
        path = run_path(resume)
        refuse_beside_resume(store=store, initvals=initvals, idata_kwargs=idata_kwargs)
        run = _resumed(settings, draws, model, hardware, path, tell)
    shown = False if quiet or run.ensemble.finished else progressbar
    with closing(run.recorder), closing(run.ensemble.solver.threads):
        records = run.ensemble.records
        bars = StretchProgress.of(run.step, records, shown, progressbar_theme)
        if _make_draws(run, bars):
            tell("Interrupted: the draws that all chains have finished are kept.")
        if not quiet:
            told = [run.ensemble.narrowing_warning()]
            told += [run.ensemble.mixing_warning()] if compute_convergence_checks else []
            kind = WarningType.CONVERGENCE
            log_warnings([SamplerWarning(kind, text, "warn") for text in told if text])
        asked = compute_convergence_checks and not quiet
        checks = asked and run.recorder.values.can_be_checked
        ending = Ending(run.attrs, run.phases.total, checks, quiet)
        idata = run.recorder.finished(ending)
        if asked and not checks:
            # Of what is no free variable PyMC checks nothing else.
            log_warnings(warn_divergences(idata))
        return idata


@dataclass(frozen=True)
class Run:
    """Chains that are about to begin or to go on, and what takes their draws."""

    settings: Settings
    step: DeerStep
    params: Sequence[np.ndarray]
    ensemble: Ensemble
    recorder: Recorder
    phases: Phases
    fixed_attrs: dict[str, Any]
    hardware: Hardware

    @property
    def attrs(self) -> dict[str, Any]:
        """What the statistics' attributes say of it."""
        return all_attrs(self.fixed_attrs, self.ensemble.records, self.phases.seconds)


def _make_draws(run: Run, progress: StretchProgress) -> bool:
    """All draws, or as many as there are at an interrupt; whether there was one."""
    interrupted = False
    # All the time, and in both threads: how BLAS rounds may depend on it.
    with run.ensemble.solver.one_blas_thread():
        try:
            with progress:
                while not run.ensemble.finished:
                    _make_stretch(run, progress)
        except KeyboardInterrupt:
            if run.hardware.spans_processes or not run.recorder.has_draws:
                # Other processes wait for this one; or there is nothing to return.
                raise
            interrupted = True
        with run.phases.of("recording"):
            try:
                run.recorder.flush()
            except KeyboardInterrupt:
                # What is left is to record draws that are made: only who insists loses them.
                if interrupted or run.hardware.spans_processes:
                    raise
                interrupted = True
                run.recorder.flush()
    return interrupted


def _make_stretch(run: Run, progress: StretchProgress) -> None:
    """The next draws of all chains. None of their arrays is held while others are made."""
    ensemble, tuning = run.ensemble, run.ensemble.tuning
    with run.phases.of("warmup" if tuning else "sampling"):
        stretches = ensemble.next_stretch(run.params)
    with run.phases.of("recording"):
        run.recorder.record(stretches, ensemble.records, tuning=tuning)
    progress.show(stretches)


def _begun(
    settings: Settings,
    model: Model | None,
    hardware: Hardware,
    initvals: Any,
    idata_kwargs: dict[str, Any],
    store: str | PathLike[str] | None,
    tell: Callable[[str], None],
) -> Run:
    """A run from its start."""
    model = given_model(model, "sample")
    initvals = starts_by_name(initvals)
    refuse_to_begin(model, initvals, settings.chains, store)
    refuse_unknown_names(settings.var_names, model)
    refuse_sparse_data(model)
    refuse_names(model, settings.var_names, store)
    refuse_unknown_terms(idata_kwargs, settings.var_names, model)
    if store is not None:
        require_zarr_to_write()
        refuse_beside_store(idata_kwargs)
        store = local_path(store)
        RunPlace.refuse_used(store)
    phases = Phases()
    tell(_COMPILING)
    with phases.of("compile"):
        step = within_memory(make_step(settings, model, hardware), settings, hardware)
    if settings.tune is None:
        settings = replace(settings, tune=type(step).default_tune_steps)
    # All variables are the step's own: what is left are data.
    params = step.density.param_values({})
    with phases.of("compile"):
        with step.solver.one_blas_thread():
            recorded = traced(
                model, settings.var_names, transformed=bool(idata_kwargs.get("include_transformed"))
            )
            values = Values(model, step.density, recorded, settings.chains)
        # Where devices share the chains, their programs are compiled here.
        ensemble = _started(step, params, settings, hardware, initvals)
    stored = settings.stored(step.options)
    attrs = fixed_attrs(step.backend, step.attrs, stored.options)
    if store is None:
        recorder = MemoryRecorder(values, settings, idata_kwargs)
    else:
        start = ensemble.records[0].x
        fingerprint = Fingerprint.of(values, ensemble.solver, start, params)
        checkpoint = Checkpoint(
            *(stored, step.backend, step.calibration, fingerprint, attrs),
            *(ensemble.records, phases.seconds),
        )
        place = RunPlace.new(store)
        with place.left_as_it_was_if_refused():
            recorder = StoreRecorder.begun(values, place, checkpoint, idata_kwargs, phases)
    return Run(settings, step, params, ensemble, recorder, phases, attrs, hardware)


def _resumed(
    given: Settings,
    draws: int | None,
    model: Any,
    hardware: Hardware,
    path: Path,
    tell: Callable[[str], None],
) -> Run:
    """A stored run from its last checkpoint, on to so many draws; None for as many as there were
    to be.
    """
    require_zarr_to_write()
    place = RunPlace.of_run(path)
    with place.given_back_if_refused():
        checkpoint = Checkpoint.load(path)
        checkpoint = checkpoint if draws is None else checkpoint.of_draws(given.draws)
        settings = checkpoint.settings
        model = given_model(model, "sample")
        refuse_unknown_names(given.var_names, model)
        settings.refuse_contradictions(given, path)
        checkpoint.fingerprint.refuse_other_variables(model)
        refuse_unknown_names(settings.var_names, model)
        options = settings.step_options(checkpoint.backend, checkpoint.calibration)
        options["hvp"] = given.options.get("hvp")
        phases = Phases(checkpoint.seconds)
        tell(_COMPILING)
        with phases.of("compile"):
            step = make_step(replace(settings, options=options), model, hardware)
            with step.solver.one_blas_thread():
                transformed = checkpoint.fingerprint.has_transformed(model)
                recorded = traced(model, settings.var_names, transformed=transformed)
                values = Values(model, step.density, recorded, settings.chains)
        checkpoint.fingerprint.refuse_other_values(values)
        params = step.density.param_values({})
        with phases.of("compile"):
            ensemble = Ensemble(hardware.solver(step.solver, settings, params), checkpoint.records)
            checkpoint.fingerprint.refuse_other_density(ensemble.solver, params)
        recorder = StoreRecorder.resumed(values, place, checkpoint, phases)
    attrs = checkpoint.attrs
    return Run(settings, step, params, ensemble, recorder, phases, attrs, hardware)


def _given_starts(model: Model, initvals: Any, chains: int) -> list[set[str]]:
    """Value variables of each chain for which the user gave a start."""
    of_each = [initvals] * chains if initvals is None or isinstance(initvals, dict) else initvals
    return [
        {
            model.rvs_to_values[rv].name
            for rv, start in convert_str_to_rv_dict(model, given or {}).items()
            # As for PyMC, the start of a variable that follows from others is none.
            if start is not None and rv in model.rvs_to_values
        }
        for given in of_each
    ]


def _started(
    step: DeerStep,
    params: Sequence[np.ndarray],
    settings: Settings,
    hardware: Hardware,
    initvals: Any,
) -> Ensemble:
    """Chains at their starts, each with its own random numbers, as `pm.sample` gives them."""
    model, chains = step.model, settings.chains
    assert settings.tune is not None
    rngs = get_random_generator(settings.random_seed).spawn(chains)
    points_of = make_initial_point_fns_per_chain(
        model=model, overrides=initvals, jitter_rvs=set(), chains=chains
    )
    pairs = zip(points_of, rngs, strict=True)
    points = [point_of(int(rng.integers(2**30))) for point_of, rng in pairs]
    records = [step.new_record(rng, settings.tune, settings.draws) for rng in rngs]
    ensemble = Ensemble(hardware.solver(step.solver, settings, params), records)
    own_rngs = [record.streams.start for record in records]
    kept = _given_starts(model, initvals, chains)
    starts = find_starts(model, ensemble.solver, points, kept, params, own_rngs)
    ensemble.begin(starts, params)
    return ensemble
