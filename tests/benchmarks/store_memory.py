"""Memory by the number of draws: ``uv run python -m tests.benchmarks.store_memory``.

Each run is a process of its own, whose peak resident memory the system tells when it has ended:
1000 draws of four chains, and 100,000, to a store and, for comparison, in memory. Convergence
checks and the opening of the store are part of it. The rows go to
``docs/benchmarks/store_memory.json``.
"""

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pymc_deer
from pymc_deer.examples import EXAMPLES
from tests.benchmarks.measure import answer_of, write

MODELS = ("eight-schools",)
DRAWS = (1000, 100_000)
PLACES = ("store", "memory")


def child(name: str, n_draws: int, place: str) -> None:
    """One run; prints what it took as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "run" if place == "store" else None
        begun = time.perf_counter()
        idata = pymc_deer.sample(
            n_draws,
            model=EXAMPLES[name](),
            store=path,
            backend="jax",
            window=1,
            random_seed=20_250_103,
            progressbar=False,
        )
        seconds = time.perf_counter() - begun
        files = [] if path is None else [f for f in path.rglob("*") if f.is_file()]
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        row = {
            "peak_mb": round(peak / 1024, 1),
            "seconds": round(seconds, 1),
            "seconds_recording": round(idata["sample_stats"].attrs["deer_seconds_recording"], 2),
            "store_mb": round(sum(f.stat().st_size for f in files) / 2**20, 1),
            "files": len(files),
        }
    print(json.dumps(row))


def measure(name: str, n_draws: int, place: str) -> dict[str, object]:
    """What one run takes, in a fresh process."""
    return answer_of(__spec__.name, name, str(n_draws), place)


def rows() -> Iterator[dict[str, object]]:
    """Each model and place with few draws and with many, and by how much memory grows."""
    for name in MODELS:
        for place in PLACES:
            few = None
            for n_draws in DRAWS:
                row = measure(name, n_draws, place)
                few = few or row["peak_mb"]
                growth = round(float(row["peak_mb"]) / float(few) - 1, 3)  # type: ignore[arg-type]
                yield {"model": name, "place": place, "draws": n_draws, **row, "growth": growth}


def main() -> None:
    """Measure both ways, or be the process that is measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("child", nargs="*", help="used by the benchmark itself")
    given = parser.parse_args().child
    if given:
        child(given[0], int(given[1]), given[2])
    else:
        write("store_memory", rows())


if __name__ == "__main__":
    main()
