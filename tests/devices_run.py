"""Runs on several devices beside the same runs on one, in processes that have such devices.

How many devices JAX has is settled when it starts. So the tests start this module, with as many
forced CPU devices as they need, in one process or in several that find each other over loopback;
it prints as JSON what each run has found.
"""

import argparse
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

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
"""With nothing left to measure, and a tolerance far below that of the tests."""


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
    """A run: its model, its devices, the arguments of `pymc_deer.sample`, and what goes wrong."""

    build: Callable[[], pm.Model]
    devices: Callable[[], Any]
    options: Mapping[str, Any] = field(default_factory=dict)
    mistake: Callable[[], AbstractContextManager[None]] = nullcontext

    def sampled(self, **more: Any) -> DataTree:
        options = {
            **{"draws": N_DRAWS, "tune": 24, "chains": 4, "kernel": "mala"},
            **{"window": 1, "backend": "jax"},
            **{"quiet": True, "compute_convergence_checks": False, "discard_tuned_samples": False},
        }
        return pymc_deer.sample(model=self.build(), **(options | dict(self.options) | more))


def mesh(**axes: int) -> Callable[[], Mesh]:
    """The first devices in a mesh of this shape."""
    shape = tuple(axes.values())
    return lambda: Mesh(np.array(jax.devices()[: np.prod(shape)]).reshape(shape), tuple(axes))


@contextmanager
def losing_data() -> Iterator[None]:
    """The last of 8 devices has lost its rows."""
    data = ManyDevices.data

    def lossy(placement: ManyDevices, array: np.ndarray) -> jax.Array:
        kept = array.copy()
        kept[-len(array) // 8 :] = 0
        return data(placement, kept)

    with mock.patch.object(ManyDevices, "data", lossy):
        yield


CASES: dict[str, Case] = {
    "chains": Case(logistic, lambda: 4),
    "data": Case(logistic, mesh(data=8), {"kernel": "hmc"}),
    "data that is lost": Case(logistic, mesh(data=8), mistake=losing_data),
    "all": Case(logistic, mesh(data=2, chain=2, window=2), WINDOWS | {"kernel": "hmc"}),
    "chains and steps": Case(
        eight_schools, lambda: 8, WINDOWS | {"jacobian": "stochastic", "max_sweeps": 1}
    ),
    "one chain": Case(logistic, jax.devices, WINDOWS | {"chains": 1, "jacobian": "preconditioned"}),
    "two chains": Case(eight_schools, jax.devices, {"chains": 2}),
    "two by two": Case(logistic, mesh(chain=2, data=2)),
}


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


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """Into how many parts arrays are divided, by the axes that they are divided along."""
    parts: dict[str, int] = defaultdict(int)
    put, fetched = ManyDevices._put, ManyDevices.fetched

    def seen(name: str, array: jax.Array) -> None:
        places = array.sharding.devices_indices_map(array.shape).values()
        parts[name] = max(parts[name], len(set(map(str, places))))

    def watched_put(placement: ManyDevices, array: Any, along: str | None) -> jax.Array:
        placed = put(placement, array, along)
        seen(str(along), placed)
        return placed

    def watched_fetched(placement: ManyDevices, arrays: Any) -> Any:
        seen("results", arrays[0])
        return fetched(placement, arrays)

    with (
        mock.patch.object(ManyDevices, "_put", watched_put),
        mock.patch.object(ManyDevices, "fetched", watched_fetched),
    ):
        yield parts


def report(case: Case, seed: int) -> dict[str, Any]:
    """What a run on many devices finds, beside the same run on one."""
    with watched() as parts, case.mistake():
        shared = case.sampled(random_seed=seed, devices=case.devices())
    alone = case.sampled(random_seed=seed)
    stats = [shared[group] for group in ("warmup_sample_stats", "sample_stats")]
    return {
        "difference": difference(shared, alone),
        "parts": parts,
        "fallback": sum(float(of_phase["fallback"].sum()) for of_phase in stats),
        "sweeps": sum(float(of_phase["sweeps"].sum()) for of_phase in stats),
    }


def main() -> None:
    """Run the cases named, and print a report of each as a line of JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("cases", nargs="+")
    parser.add_argument("--process", type=int)
    parser.add_argument("--processes", type=int)
    parser.add_argument("--coordinator")
    parser.add_argument("--seeds-differ", action="store_true")
    arguments = parser.parse_args()
    if arguments.process is not None:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(
            arguments.coordinator,
            arguments.processes,
            arguments.process,
            cluster_detection_method="deactivate",
        )
    seed = 5 + (arguments.process if arguments.seeds_differ else 0)
    for name in arguments.cases:
        print(json.dumps({"case": name, **report(CASES[name], seed)}), flush=True)


if __name__ == "__main__":
    main()
