"""Without PyTensor's wrappers of Ops: ``uv run python -m tests.benchmarks.wrappers``.

DeerHMC on Numba, whose compiled loops call the functions of Ops themselves and have paths in them
(``pymc_deer/inline_numba.py``), and the same with the wrappers that PyTensor puts around Ops and
paths. Each run has a process and a directory for compiled code of its own, on one core, the two in
turns; medians of ratios. Compilation is that of :func:`pymc_deer.sample`, graphs and pilot
included; a gradient is timed over 4000 draws of one chain. The rows go to
``docs/benchmarks/wrappers.json``.
"""

import argparse
import json
import tempfile
from collections.abc import Iterator
from typing import Any
from unittest.mock import patch

import numpy as np

import pymc_deer
from pymc_deer import inline_numba
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import answer_of, write

MODELS = ("eight_schools", "german_credit", "radon", "stochastic_volatility", "hierarchical_100")
DRAWS = 4000


def wrapped(called: Any, node: Any) -> Any:
    """What PyTensor has a graph call."""
    return called


def measure(model: str, *, with_wrappers: bool) -> dict[str, float]:
    """Seconds of compilation, and microseconds of a gradient, in this process."""
    function = wrapped if with_wrappers else inline_numba._function_of_op
    options: dict[str, Any] = {"kernel": "hmc", "backend": "numba", "cores": 1, "random_seed": 1}
    options |= {"model": CASES[model].build(), "quiet": True, "compute_convergence_checks": False}
    with patch.object(inline_numba, "_function_of_op", function):
        first = pymc_deer.sample(1, tune=1, **options)
        # Normals are drawn by a loop of their own once they are many, which is compiled by then.
        _, run = (pymc_deer.sample(DRAWS, tune=500, chains=1, **options) for _ in range(2))
    statistics = run["sample_stats"]
    sampling = statistics.attrs["deer_seconds_sampling"]
    return {
        "compile_s": first["sample_stats"].attrs["deer_seconds_compile"],
        "us": 1e6 * sampling / float(statistics["n_steps"].sum()),
    }


def in_a_process(model: str, *, with_wrappers: bool) -> dict[str, float]:
    """As :func:`measure`, with nothing compiled beforehand."""
    flag = ["--with-wrappers"] if with_wrappers else []
    with tempfile.TemporaryDirectory() as cache:
        places = {"PYTENSOR_FLAGS": f"base_compiledir={cache}", "NUMBA_CACHE_DIR": cache}
        return answer_of(__spec__.name, "--one", model, *flag, **places)


def rows(repeats: int) -> Iterator[dict[str, object]]:
    """Each model."""
    for model in MODELS:
        pairs = [
            [in_a_process(model, with_wrappers=way) for way in (True, False)]
            for _ in range(repeats)
        ]
        row: dict[str, object] = {"model": model}
        for name in ("compile_s", "us"):
            with_them, without = np.array([[run[name] for run in pair] for pair in pairs]).T
            columns = {"_with_wrappers": with_them, "": without, "_ratio": without / with_them}
            for suffix, values in columns.items():
                row[f"{name}{suffix}"] = float(f"{np.median(values):.3g}")
        yield row


def main() -> None:
    """Measure every model, or one, in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--one", choices=MODELS, help="in this process, without writing a file")
    parser.add_argument("--with-wrappers", action="store_true")
    given = parser.parse_args()
    if given.one is None:
        write("wrappers", rows(given.repeats))
    else:
        print(json.dumps(measure(given.one, with_wrappers=given.with_wrappers)))


if __name__ == "__main__":
    main()
