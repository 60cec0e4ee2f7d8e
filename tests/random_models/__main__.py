"""Many random models: ``uv run python -m tests.random_models --models 1000``.

In pieces, or side by side: ``--first 500 --models 250``. Each line that is printed is a model that
failed; the last one says how many passed. The exit status is 1 if any failed.
"""

import argparse
import os
import time
import traceback
import warnings

# Most of the time is compilation, and no program runs for long. Before JAX is imported.
os.environ.setdefault(
    "XLA_FLAGS", "--xla_backend_optimization_level=0 --xla_llvm_disable_expensive_passes=true"
)

import jax

from tests.random_models.check import check


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", type=int, default=1000, help="how many")
    parser.add_argument("--first", type=int, default=0, help="number of the first one")
    parser.add_argument("--backend", choices=["jax", "numba"], default="jax")
    parser.add_argument("--every", type=int, default=50, help="models between reports")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    start, failed, largest = time.perf_counter(), [], 0.0
    for n, seed in enumerate(range(arguments.first, arguments.first + arguments.models), 1):
        try:
            outcome = check(seed, arguments.backend)
        except Exception:  # noqa: BLE001 - the others are to run
            failed.append(seed)
            print(f"model {seed} raised\n{traceback.format_exc()}", flush=True)
        else:
            largest = max(largest, outcome.difference / outcome.sensitivity)
            if not outcome.passed:
                failed.append(seed)
                print(outcome, flush=True)
        jax.clear_caches()
        if n % arguments.every == 0 or n == arguments.models:
            print(
                f"{n - len(failed)} of {n} models passed in {time.perf_counter() - start:.0f} s; "
                f"largest difference {largest:.1f} times the sensitivity; failed: {failed}",
                flush=True,
            )
    return bool(failed)


if __name__ == "__main__":
    raise SystemExit(main())
