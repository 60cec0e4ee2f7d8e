"""Runs on several devices beside the same runs on one, in processes that have such devices.

How many devices JAX has is settled when it starts. So the tests start this module, with as many
forced CPU devices as they need, in one process or in several that find each other over loopback;
it prints as JSON what each run has found.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np
import pymc as pm
import pytensor.tensor as pt
from jax.sharding import Mesh
from xarray import DataTree

import pymc_deer
from pymc_deer.backends.placement import ManyDevices
from pymc_deer.examples import eight_schools

N_ROWS = 96
N_DRAWS = 8

WINDOWS = {"window": 16, "jacobian": "secant", "curvature": 1.5, "tol": 1e-9}
"""With nothing left to measure. What is within the tolerance may differ: it is far below that of the
tests."""


def logistic() -> pm.Model:
    """Rows of data that 8 devices can share evenly."""
    rng = np.random.default_rng(3)
    features = rng.normal(size=(N_ROWS, 3))
    target = rng.random(N_ROWS) < 1 / (1 + np.exp(-features @ [1.0, -0.5, 0.0]))
    with pm.Model() as model:
        beta = pm.Normal("beta", 0.0, 1.0, shape=3)
        pm.Bernoulli("y", logit_p=pt.dot(pm.Data("features", features), beta), observed=target)
    return model


@dataclass(frozen=True)
class Case:
    """A run: its model, its devices, and the arguments of `pymc_deer.sample`."""

    build: Callable[[], pm.Model]
    devices: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)

    def sampled(self, **more: Any) -> DataTree:
        options = {
            **{"draws": N_DRAWS, "tune": 24, "chains": 4, "random_seed": 5, "window": 1},
            **{"backend": "jax", "quiet": True, "compute_convergence_checks": False},
            **{"discard_tuned_samples": False},
        }
        return pymc_deer.sample(model=self.build(), **(options | dict(self.options) | more))


def mesh(**axes: int) -> Callable[[], Mesh]:
    """The first devices in a mesh of this shape."""
    shape = tuple(axes.values())
    return lambda: Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), tuple(axes))


CASES: dict[str, Case] = {
    "chains": Case(logistic, lambda: 4),
    "chains and steps": Case(eight_schools, lambda: 8, WINDOWS),
    "data": Case(logistic, mesh(data=8), {"kernel": "hmc"}),
    "all": Case(logistic, mesh(data=2, chain=2, window=2), WINDOWS | {"kernel": "hmc"}),
    "all, with probes": Case(
        logistic, mesh(chain=2, window=2, data=2), WINDOWS | {"jacobian": "stochastic"}
    ),
    "one chain": Case(
        logistic, lambda: jax.devices(), WINDOWS | {"chains": 1, "jacobian": "preconditioned"}
    ),
    "sweeps that run out": Case(eight_schools, lambda: 8, WINDOWS | {"max_sweeps": 3}),
}
"""For 8 devices. Two devices and more of each of two processes are enough for those of one letter."""


def difference(one: DataTree, other: DataTree) -> float:
    """The largest difference in draws and statistics, of warm-up too, in units of their size."""
    found = [0.0]
    for group in ("warmup_posterior", "posterior", "warmup_sample_stats", "sample_stats"):
        for name, values in one[group].to_dataset().data_vars.items():
            here, there = (np.asarray(v, float) for v in (values, other[group][name]))
            size = np.maximum(1.0, np.abs(there))
            found.append(float(np.nanmax(np.abs(here - there) / size)))
            if (np.isnan(here) != np.isnan(there)).any():
                return np.inf
    return max(found)


class Watched:
    """Counts into how many parts arrays are divided while a run is going on."""

    def __init__(self) -> None:
        self.sent: dict[str, int] = defaultdict(int)
        self.computed = 0
        put, fetched = ManyDevices._put, ManyDevices.fetched

        def watched_put(placement: ManyDevices, array: Any, axes: Any) -> jax.Array:
            placed = put(placement, array, axes)
            name = "+".join(axes)
            self.sent[name] = max(self.sent[name], n_parts(placed))
            return placed

        def watched_fetched(placement: ManyDevices, arrays: Any) -> Any:
            self.computed = max(self.computed, n_parts(arrays[0]))
            return fetched(placement, arrays)

        ManyDevices._put, ManyDevices.fetched = watched_put, watched_fetched  # type: ignore[method-assign]


def n_parts(array: jax.Array) -> int:
    """Different parts of an array on all devices."""
    return len({str(part) for part in array.sharding.devices_indices_map(array.shape).values()})


def report(case: Case) -> dict[str, Any]:
    """What a run on many devices finds, beside the same run on one."""
    alone = case.sampled()
    watched = Watched()
    shared = case.sampled(devices=case.devices())
    stats = shared["sample_stats"]
    return {
        "difference": difference(shared, alone),
        "sent": watched.sent,
        "computed": watched.computed,
        "moved": float(np.ptp(shared["posterior"].to_dataset().to_array().values)),
        "fallback": float(stats["fallback"].sum()),
        "sweeps": float(stats["sweeps"].sum()),
    }


def main() -> None:
    """Run the cases named, and print a report of each as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--process", type=int)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--coordinator")
    arguments = parser.parse_args()
    if arguments.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            arguments.coordinator, arguments.processes, arguments.process, local_device_ids=[0]
        )
    for name in arguments.cases:
        print(json.dumps({"case": name, **report(CASES[name])}), flush=True)


if __name__ == "__main__":
    main()
