"""What makes Numba compile less: ``uv run python -m tests.benchmarks.numba_compile``.

DeerHMC on Numba, and the same with one thing left as PyTensor has it:

- *wrappers*: a function around each Op and each path of leapfrog steps
  (``pymc_deer/ops/inline_numba.py``),
- *composites*: functions for each operation in a function of elements
  (``pymc_deer/ops/inlined_composite_numba.py``),
- *shuffles*: several functions for a change of axes (``pymc_deer/ops/shuffle_numba.py``).

Each run has a process and a directory for compiled code of its own, on one core, all in turns;
medians of ratios, of ours over the other. Compilation is that of :func:`pymc_deer.sample`, graphs
and pilot included; a gradient is timed over 4000 draws of one chain. The rows go to
``docs/benchmarks/numba_compile.json``.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import numpy as np

import pymc_deer
from pymc_deer.backends import numba_mode
from pymc_deer.ops import inline_numba
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import answer_of, write

MODELS = ("eight_schools", "german_credit", "radon", "stochastic_volatility", "hierarchical_100")
DRAWS = 4000


def _wrapped(called: Any, function: Any, node: Any) -> Any:
    return called


def _rewrites_nothing(rewriter: Any) -> AbstractContextManager[Any]:
    return patch.object(rewriter, "fn", lambda fgraph, node: None)


WITH = {
    "nothing": nullcontext,
    "wrappers": lambda: patch.object(inline_numba.function_of_graph, "__defaults__", (_wrapped,)),
    "composites": lambda: _rewrites_nothing(numba_mode.compiled_as_one),
    "shuffles": lambda: _rewrites_nothing(numba_mode.fast_compiling_shuffle),
}
"""What may be left as it is, by its name."""


def measure(model: str, left: str) -> dict[str, float]:
    """Seconds of compilation, and microseconds of a gradient, in this process."""
    options: dict[str, Any] = {"kernel": "hmc", "backend": "numba", "cores": 1, "random_seed": 1}
    options |= {"model": CASES[model].build(), "quiet": True, "compute_convergence_checks": False}
    with WITH[left]():
        first = pymc_deer.sample(1, tune=1, **options)
        # Normals are drawn by a loop of their own once they are many, which is compiled by then.
        _, run = (pymc_deer.sample(DRAWS, tune=500, chains=1, **options) for _ in range(2))
    statistics = run["sample_stats"]
    sampling = statistics.attrs["deer_seconds_sampling"]
    return {
        "compile_s": first["sample_stats"].attrs["deer_seconds_compile"],
        "us": 1e6 * sampling / float(statistics["n_steps"].sum()),
    }


def in_a_process(model: str, left: str) -> dict[str, float]:
    """As :func:`measure`, with nothing compiled beforehand."""
    with tempfile.TemporaryDirectory() as cache:
        places = {"PYTENSOR_FLAGS": f"base_compiledir={cache}", "NUMBA_CACHE_DIR": cache}
        return answer_of(__spec__.name, "--one", model, "--left", left, **places)


def rows(models: list[str], repeats: int) -> Iterator[dict[str, object]]:
    """Each model."""
    for model in models:
        runs = [{left: in_a_process(model, left) for left in WITH} for _ in range(repeats)]
        row: dict[str, object] = {"model": model}
        for name in ("compile_s", "us"):
            found = {left: np.array([run[left][name] for run in runs]) for left in WITH}
            ours = found.pop("nothing")
            row[name] = _rounded(ours)
            row |= {
                f"{name}_over_{left}": _rounded(ours / with_it) for left, with_it in found.items()
            }
        yield row


def _rounded(values: np.ndarray) -> float:
    return float(f"{np.median(values):.3g}")


def main() -> None:
    """Measure every model, or one, in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", default=MODELS, metavar="MODEL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=MODELS, help="in this process, without writing a file")
    parser.add_argument("--left", choices=WITH, default="nothing", help="as PyTensor has it")
    given = parser.parse_args()
    if given.one is None:
        write("numba_compile", rows(given.models, given.repeats))
    else:
        print(json.dumps(measure(given.one, given.left)))


if __name__ == "__main__":
    main()
