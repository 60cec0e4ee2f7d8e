"""Going on with a chain from a state that was stored, which `pm.sample` does not do."""

import os
import time
from collections.abc import Mapping
from os import PathLike
from typing import Any

import numpy as np
from pymc.backends.ndarray import NDArray
from pymc.stats.convergence import log_warning_stats
from pymc.step_methods.compound import CompoundStep, flatten_steps
from xarray import DataTree

from pymc_deer.sampling.inference_data import inference_data
from pymc_deer.status import OptionError, invalid_option
from pymc_deer.step import DeerStep


def resume(
    step: DeerStep | CompoundStep, state: Any = None, point: Mapping[str, np.ndarray] | None = None
) -> DataTree:
    """The draws that a chain had still to make when its state was taken.

    They are those that the uninterrupted run would have made, bit for bit on the same machine. An
    interrupt keeps the draws that are finished, and leaves `step` as the chain stands.

    Parameters
    ----------
    step
        A step like the one that the state was taken of: same model, data and options; its choice
        of windows, `step.calibration`, changes draws within the tolerance.
    state
        A value of `step.sampling_state`.
    point
        The last draw before the state was taken, unconstrained, in any order. Not needed where one
        `step` moves all variables of the model, and no data were set anew since it made its draws.

    Returns
    -------
    xarray.DataTree
        The rest of the chain, as from `pm.sample`; warm-up, if some was left, in groups of its own.

    Raises
    ------
    OptionError
        If the state is of another step, or was taken before the first draw or after the last, or
        `point` is needed or has other variables or shapes.
    ModelError
        If the model says more of the step's variables than it did when the step was made.
    """
    if isinstance(step, str | PathLike):
        raise OptionError(
            f"resume(step={os.fspath(step)!r}): to go on with a stored run, write "
            "pymc_deer.sample(resume=PATH)."
        )
    methods = flatten_steps(step) if isinstance(step, CompoundStep) else [step]
    deer = next((method for method in methods if isinstance(method, DeerStep)), None)
    if deer is None:
        expected = "a step of pymc_deer, or a CompoundStep that has one"
        raise invalid_option("resume", "step", step, expected)
    moved = {var.name for method in methods for var in method.vars}
    if left := [var.name for var in deer.model.value_vars if var.name not in moved]:
        raise OptionError(
            f"resume(step=...): it moves all but {', '.join(left)}. Give a CompoundStep of all the "
            "steps that the run had, and its state."
        )
    _refuse_other(step, state)
    for method in methods:
        if isinstance(method, DeerStep):
            method.take_model_as_it_is()
    step.sampling_state = state
    if deer.fresh:
        raise OptionError(
            "resume(state=...): it was taken before the first draw. Begin anew, with pm.sample."
        )
    if point is None:
        if methods != [deer]:
            raise OptionError(
                "resume(point=None): beside other step methods, give the last point that was drawn."
            )
        point = deer.last_point()
    names = [var.name for var in deer.model.value_vars]
    if not isinstance(point, Mapping) or set(point) != set(names):
        expected = f"a dict with the unconstrained values of {', '.join(names)}"
        raise invalid_option("resume", "point", point, expected)
    layout = deer.density.layout
    for name, shape in zip(layout.names, layout.shapes, strict=True):
        if np.shape(point[name]) != shape:
            raise OptionError(
                f"resume(point=...): {name} must be of shape {shape}, not {np.shape(point[name])}."
            )
    # What records it goes by the order.
    point = {name: point[name] for name in names}
    n_tune, n_draws = deer.n_left
    if n_tune + n_draws == 0:
        raise OptionError("resume(state=...): it was taken after the last draw. Nothing is left.")
    trace = NDArray(model=deer.model)
    begun = time.perf_counter()
    trace.setup(n_tune + n_draws, 0, step.stats_dtypes)
    try:
        for i in range(n_tune + n_draws):
            # Once: DEMetropolisZ drops draws of its history each time.
            if i == n_tune and deer.tune:
                step.stop_tuning()
            point, stats = step.step(point)
            trace.record(point, stats, in_warmup=i < n_tune)
            log_warning_stats(stats)
    except KeyboardInterrupt:
        if not len(trace):
            raise
    trace.close()
    return inference_data(
        [trace],
        tune=n_tune,
        t_sampling=time.perf_counter() - begun,
        discard_tuned_samples=False,
        idata_kwargs={},
        model=deer.model,
        quiet=True,
    )


def _refuse_other(step: Any, state: Any) -> None:
    """Refuse a state that is not of such a step, before it changes the step.

    Raises
    ------
    OptionError
        Telling what the state should be, or how the two differ.
    """
    # A compound step has methods, and its state the state of each.
    methods, states = (getattr(of, "methods", ()) for of in (step, state))
    if not isinstance(state, step._state_class) or len(states) != len(methods):
        expected = f"a value of sampling_state of a {type(step).__name__} like this one"
        raise invalid_option("resume", "state", state, expected)
    for pair in zip(methods, states, strict=True):
        _refuse_other(*pair)
    if not isinstance(step, DeerStep) or state.record is None:
        return
    warmup = state.record.warmup
    pairs = {
        "kind of metric": (warmup.tuning.metric.kind, step.solver.spec.metric),
        "list of variables": (state.var_names, [var.name for var in step.vars]),
        "number of dimensions": (len(state.record.x), step.density.size),
        "precision": (state.record.x.dtype, step.density.dtype),
    }
    differing = [name for name, (then, now) in pairs.items() if then != now]
    if differing:
        raise OptionError(
            f"resume(state=...): it is of a step with another {', '.join(differing)}. Make the "
            "step as it was."
        )
