"""What ``sample_stats`` says of a run: versions, options, device, tuned values, times."""

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np

from pymc_deer.backends import gpu_name
from pymc_deer.chains.chain import ChainRecord
from pymc_deer.options import BackendName

_PACKAGES = {"deer_version": "pymc-deer", "deer_pytensor_version": "pytensor"}


def fixed_attrs(
    backend: BackendName, chosen: Mapping[str, Any], options: Mapping[str, Any]
) -> dict[str, Any]:
    """What is known as the run begins.

    Parameters
    ----------
    backend
        Backend of its chains.
    chosen
        What its step has chosen, `DeerStep.attrs`.
    options
        All options of the step, by name.
    """
    versions = {name: version(package) for name, package in _PACKAGES.items()}
    return {
        **chosen,
        **versions,
        "deer_backend_version": version(backend),
        "deer_device": gpu_name(backend) or platform.processor() or platform.machine(),
        "deer_options": json.dumps(dict(options), default=_plain),
    }


def all_attrs(
    fixed: Mapping[str, Any], records: Sequence[ChainRecord], seconds: Mapping[str, float]
) -> dict[str, Any]:
    """What is known from the beginning, what warm-up has tuned so far, and seconds by phase."""
    of_phases = {f"deer_seconds_{phase}": value for phase, value in seconds.items()}
    return {**fixed, **_tuned_attrs(records), **of_phases}


def _tuned_attrs(records: Sequence[ChainRecord]) -> dict[str, Any]:
    first = records[0].warmup
    steps = first.steps_per_draw if first.finished else first.tuned_steps_per_draw
    # Of a step size that the user has fixed there is none.
    target = {"deer_target_accept": float(first.target.rate)} if first.dual_averaging else {}
    return {
        "deer_step_size": [float(record.warmup.tuning.step_size) for record in records],
        **target,
        "deer_steps_per_draw": int(steps),
        "deer_n_leapfrog": max(int(record.warmup.tuning.lengths[1]) for record in records),
        "deer_narrowed": max(record.narrowing for record in records),
    }


def _plain(value: Any) -> Any:
    """In types that JSON has; of long arrays the shape."""
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist() if value.size <= 100 else f"array of shape {value.shape}"
    return str(value)
