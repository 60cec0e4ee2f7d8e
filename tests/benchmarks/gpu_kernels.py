"""What a GPU does of a step or a sweep: ``uv run python -m tests.benchmarks.gpu_kernels``.

Times of steps (window 1) and of sweeps over windows, with the default metric and the rule
``secant``, as XLA runs loops by default and as CUDA graphs, which is how they are run here. In
windows all proposals are rejected, so that each takes one sweep. The columns:

``us_default``, ``us``
    A step of all chains or a sweep, without graphs and with them, all included: what is sent, what
    comes back, and what the host does with it.
``busy_us``, ``kernels``
    Of that, how long the device was busy without graphs, and kernels and copies that it ran, by
    JAX's profiler.
``longest``
    The kernels that took longest: microseconds of a step or a sweep.

Runs in float32. The rows go to ``docs/benchmarks/gpu_kernels.json``. Where there is no GPU it ends
at once.
"""

import argparse
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from unittest.mock import patch

import jax
import numpy as np
import pymc as pm

from pymc_deer.backends import make_solver, placement
from pymc_deer.backends.request import TapedRequest, Tuning
from pymc_deer.backends.window_plan import WindowPlan
from pymc_deer.chains.stretch import Streams
from pymc_deer.density import build_density
from pymc_deer.metric import MetricKind, identity_metric
from pymc_deer.sweep import Kernel, SweepSpec
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import short, write_on_gpu
from tests.benchmarks.scaling import DENSE_UP_TO
from tests.benchmarks.two_million import hierarchical_logistic

_REPEATS, _LONGEST, _LETTERS = 4, 4, 28
_STEPS, _SWEEPS = 64, 8


def two_million() -> pm.Model:
    """That of ``two_million.py``, in its full size."""
    model, _ = hierarchical_logistic(100_000)
    return model


MODELS = {name: case.build for name, case in CASES.items()} | {"two_million": two_million}


@dataclass(frozen=True)
class Loop:
    """What is run: chains of a model, in windows or step by step."""

    model: str
    kernel: Kernel
    chains: int
    window: int
    leapfrog_steps: int = 1


LOOPS = (
    Loop("german_credit", "mala", 1, 1),
    Loop("german_credit", "mala", 1, 8192),
    Loop("logistic_10k", "mala", 1, 8192),
    Loop("logistic_10k", "hmc", 4, 1, 10),
    Loop("logistic_10k", "hmc", 1, 4096, 10),
    Loop("horseshoe", "hmc", 4, 1, 10),
    Loop("horseshoe", "hmc", 4, 4096, 10),
    Loop("hierarchical_100k", "hmc", 4, 1, 20),
    Loop("two_million", "hmc", 2, 1, 32),
)


def prepared(loop: Loop) -> tuple[Callable[[], object], int]:
    """What runs it, and how many steps or sweeps that is."""
    model = MODELS[loop.model]()
    density = build_density(model)
    params = density.param_values(model.initial_point())
    kind: MetricKind = "dense" if density.size <= DENSE_UP_TO else "low_rank"
    tuning = Tuning(0.02, 1.5, identity_metric(kind, density.size))
    count = _STEPS if loop.window == 1 else _SWEEPS
    n = count * loop.window
    spec = SweepSpec(kind, "secant", kernel=loop.kernel, noise="device")
    solver = make_solver("jax", density, spec, WindowPlan(loop.window, None, 1e-4, n))
    requests = []
    for seed in range(loop.chains):
        rng = np.random.default_rng(seed)
        tape = Streams.spawn(rng).tape(n, density.size, tuning, solver.draw_momenta)
        tape = replace(tape, n_leapfrog=np.full(n, loop.leapfrog_steps))
        if loop.window > 1:
            tape = replace(tape, log_u=np.full(n, np.inf))
        requests.append(TapedRequest(np.zeros(density.size), tape, tuning, rng))
    return lambda: solver.run_together(requests, params, n), count


def microseconds(run: Callable[[], object], count: int) -> float:
    """Of a step or a sweep, in the fastest run."""
    for _ in range(_REPEATS):
        # The first ones compile, and learn how much to do in a call.
        run()
    seconds = []
    for _ in range(_REPEATS):
        begun = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - begun)
    return 1e6 * min(seconds) / count


def on_the_device(run: Callable[[], object]) -> tuple[Counter[str], int]:
    """Nanoseconds of kernels and copies by name, and how many there were."""
    spent: Counter[str] = Counter()
    number = 0
    with tempfile.TemporaryDirectory() as folder:
        with jax.profiler.trace(folder):
            run()
        [file] = Path(folder).rglob("*.xplane.pb")
        planes = jax.profiler.ProfileData.from_file(str(file)).planes
        lines = [line for plane in planes if "GPU" in plane.name for line in plane.lines]
        for event in (e for line in lines if "Stream" in line.name for e in line.events):
            spent[event.name] += int(event.duration_ns)
            number += 1
    return spent, number


@contextmanager
def without_graphs() -> Iterator[None]:
    """Programs that are compiled meanwhile are run as XLA runs them by default."""
    with patch.object(placement, "gpu_options", lambda: None):
        yield


def rows(loops: Sequence[Loop]) -> Iterator[dict[str, object]]:
    """A row for every loop."""
    for loop in loops:
        with without_graphs():
            run, count = prepared(loop)
            by_default = microseconds(run, count)
            spent, number = on_the_device(run)
        run, count = prepared(loop)
        yield {
            "device": jax.devices()[0].device_kind,
            **vars(loop),
            "us_default": short(by_default),
            "us": short(microseconds(run, count)),
            "busy_us": short(sum(spent.values()) / count / 1e3),
            "kernels": round(number / count),
            "longest": ", ".join(
                f"{k[:_LETTERS]} {v / count / 1e3:.3g}" for k, v in spent.most_common(_LONGEST)
            ),
        }


def main() -> None:
    """Measure what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    models = sorted({loop.model for loop in LOOPS})
    parser.add_argument("--models", nargs="+", choices=models, default=models)
    given = parser.parse_args()
    write_on_gpu("gpu_kernels", rows([loop for loop in LOOPS if loop.model in given.models]))


if __name__ == "__main__":
    main()
