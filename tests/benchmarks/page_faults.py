"""Page faults of large arrays: ``uv run python -m tests.benchmarks.page_faults``.

Runs of `pymc_deer.sample` on Numba whose process keeps what gradients free, beside runs whose C
library hands it back to the system. Each is the second run of a process of its own, in interleaved
pairs. The rows go to ``docs/benchmarks/page_faults.json``.
"""

import argparse
import json
import resource
from collections.abc import Iterator
from functools import partial
from statistics import median
from typing import Any
from unittest.mock import patch

import pymc_deer
from pymc_deer.backends import numba as numba_backend
from tests.benchmarks.cases import CASES
from tests.benchmarks.measure import answer_of, write
from tests.zoo import marginal_mixture, ordered_logistic

BUILDS = {
    "ordered_logistic, N=20,000": partial(ordered_logistic, 20_000),
    "marginal_mixture, N=50,000": partial(marginal_mixture, 50_000),
    "german_credit": CASES["german_credit"].build,
}
REPEATS = 3
FREED = ("handed back", "kept")


def child(name: str, freed: str) -> None:
    """Two runs; prints what each gradient of the second took as JSON."""
    if freed == "kept":
        run(name)
        answer = run(name)
    else:
        with patch.object(numba_backend, "keep_freed_memory", lambda: None):
            run(name)
            answer = run(name)
    print(json.dumps(answer))


def run(name: str) -> dict[str, float]:
    """Microseconds of sampling and page faults of the run, for each of its gradients."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    idata: Any = pymc_deer.sample(
        200,
        tune=100,
        model=BUILDS[name](),
        kernel="hmc",
        backend="numba",
        random_seed=20_250_103,
        discard_tuned_samples=False,
        compute_convergence_checks=False,
        quiet=True,
    )
    faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
    kept, tuning = (
        int(idata[group]["n_steps"].sum()) for group in ("sample_stats", "warmup_sample_stats")
    )
    seconds = idata["sample_stats"].attrs["deer_seconds_sampling"]
    return {"microseconds": 1e6 * seconds / kept, "page_faults": faults / (kept + tuning)}


def measure(name: str, freed: str) -> dict[str, float]:
    """What the runs of a fresh process take."""
    return answer_of(__spec__.name, name, freed)


def rows() -> Iterator[dict[str, object]]:
    """Each model: medians, and the median ratio of pairs."""
    for name in BUILDS:
        pairs = [[measure(name, freed) for freed in FREED] for _ in range(REPEATS)]
        found: dict[str, object] = {"model": name}
        for i, freed in enumerate(FREED):
            for what in ("page_faults", "microseconds"):
                found[f"{what}, {freed}"] = float(f"{median(p[i][what] for p in pairs):.3g}")
        ratios = [before["microseconds"] / now["microseconds"] for before, now in pairs]
        yield {**found, "speed_up": round(median(ratios), 2)}


def main() -> None:
    """Measure both ways, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("child", nargs="*", help="used by the benchmark itself")
    given = parser.parse_args().child
    if given:
        child(*given)
    else:
        write("page_faults", rows())


if __name__ == "__main__":
    main()
