"""What is compiled in one process is found again in the next, and draws the same there."""

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_array_equal

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


DRAWS = """
import sys
import numpy as np
import pymc as pm
import pymc_deer

observed = np.random.default_rng(3).integers(0, 2, 300).astype(float)
with pm.Model():
    mu, sigma = pm.Normal("mu"), pm.HalfNormal("sigma")
    a, b = pm.Normal("a", mu, sigma, shape=6), pm.Normal("b", shape=3)
    pm.Normal("y", mu, 1.0, observed=observed)
    idata = pymc_deer.sample(
        100, tune=100, chains=2, backend="numba", window=1, random_seed=7, quiet=True,
    )
np.save(sys.argv[1], idata["posterior"]["mu"].values)
"""


@pytest.mark.slow
@pytest.mark.skipif("numba" not in BACKENDS, reason="it is about Numba")
def test_code_from_disk_draws_what_the_code_did_that_was_compiled(tmp_path: Path) -> None:
    """To the last bit: sums of the functions that are compiled on the way round in another way."""
    flags = f"base_compiledir={tmp_path / 'compiled'}"
    drawn = []
    for name in ("first.npy", "second.npy"):
        subprocess.run(
            [sys.executable, "-c", DRAWS, str(tmp_path / name)],
            env=os.environ | {"PYTENSOR_FLAGS": flags},
            check=True,
        )
        drawn.append(np.load(tmp_path / name))
    assert_array_equal(*drawn)
