"""What JAX compiles in one process it finds again in the next, if it is told where to keep it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import BACKENDS

RUN = """
import sys
import pymc_deer
from pymc_deer.examples import correlated_logistic

with correlated_logistic(int(sys.argv[1]), n_features=3, seed=int(sys.argv[2])):
    pymc_deer.sample(
        20, tune=20, chains=2, backend="jax", window=16, jacobian="secant", curvature=1.0,
        random_seed=1, quiet=True,
    )
"""


def kept_after(where: Path, n_observations: int, seed: int) -> set[str]:
    """Names of the loops that are kept behind such a run, in a process of its own."""
    environment = os.environ | {
        "JAX_COMPILATION_CACHE_DIR": str(where),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }
    data = map(str, (n_observations, seed))
    subprocess.run([sys.executable, "-c", RUN, *data], env=environment, check=True)
    return {path.name for path in where.glob("*_loop*-cache")}


@pytest.mark.slow
@pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")
def test_another_process_finds_the_loops_that_one_has_compiled(tmp_path: Path) -> None:
    """Data of the same shape are no other program; nor is the order in which graphs are walked."""
    first = kept_after(tmp_path, 400, 0)
    loops = {name.split("-")[0] for name in first}
    assert loops == {"jit_sequential_loop", "jit_windowed_loop"}
    assert kept_after(tmp_path, 400, 1) == first
    assert len(kept_after(tmp_path, 401, 0)) == 2 * len(first)
