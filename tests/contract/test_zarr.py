"""Draws on disk: what a killed process leaves, and how its chains go on, by docs/interrupts.md."""

import multiprocessing
import os
import re
import time
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from pymc_deer import DeerMALA
from pymc_deer.examples import eight_schools
from pymc_deer.step import DeerStep
from tests.support import BACKENDS, SEED, sample

pytestmark = [
    # Draws are those of another process, to the last bit.
    pytest.mark.default_mode,
    pytest.mark.skipif(
        not version("zarr").startswith("2."), reason="PyMC's ZarrTrace knows zarr 2 alone"
    ),
    pytest.mark.skipif("jax" not in BACKENDS, reason="the model is compiled by JAX"),
    # PyMC has no other way to a trace that is not in memory.
    pytest.mark.filterwarnings("ignore:`return_inferencedata=False` is deprecated:FutureWarning"),
]

PAGE = Path(__file__).parents[2] / "docs" / "interrupts.md"
NAMES = ("mu", "tau", "eta", "theta")
TUNE, DRAWS, CHUNK = 30, 40, 5
LAST = TUNE + 27
"""Draw of the second chain in which the process hangs until it is killed."""

OPTIONS: dict[str, Any] = {
    "tune": TUNE,
    "draws": DRAWS,
    "chains": 2,
    "random_seed": SEED,
    "progressbar": False,
}


@cache
def compiled_step() -> DeerStep:
    with eight_schools():
        step = DeerMALA(backend="jax", window=1)
    assert isinstance(step, DeerStep)
    return step


def recipe(name: str) -> Any:
    """A function that the page defines."""
    for block in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        if f"def {name}(" in block:
            namespace: dict[str, Any] = {}
            exec(compile(block, str(PAGE), "exec"), namespace)
            return namespace[name]
    raise AssertionError(f"no {name} on the page")


def sample_until_killed(folder: str) -> None:
    os.chdir(folder)

    def callback(trace: Any, draw: Any) -> None:
        if (draw.chain, draw.draw_idx) == (1, LAST):
            Path("hangs").touch()
            time.sleep(3600)

    recipe("run")(compiled_step(), cores=1, callback=callback, **OPTIONS)


def draws_of(idata: Any, chain: int) -> dict[str, np.ndarray]:
    groups = ("warmup_posterior", "posterior")
    return {
        name: np.concatenate([idata[group][name].values[chain] for group in groups])
        for name in NAMES
    }


@pytest.mark.timeout(300)
def test_a_killed_run_is_readable_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=sample_until_killed, args=(str(tmp_path),))
    process.start()
    while not (tmp_path / "hangs").exists():
        assert process.is_alive()
        time.sleep(0.05)
    process.kill()
    process.join()

    import zarr

    monkeypatch.chdir(tmp_path)
    whole = sample(compiled_step(), discard_tuned_samples=False, **OPTIONS)
    root = zarr.open("run.zarr", mode="r")
    n_written = (LAST + 1) // CHUNK * CHUNK
    assert list(root._sampling_state.draw_idx[:]) == [TUNE + DRAWS, n_written]
    for chain, n in enumerate([TUNE + DRAWS, n_written]):
        for name, values in draws_of(whole, chain).items():
            assert_array_equal(root.posterior[name][chain, :n], values[:n])
    assert np.isnan(root.posterior.mu[1, n_written:]).all()

    for name, values in recipe("finished")(compiled_step(), 1, NAMES).items():
        assert_array_equal(values, draws_of(whole, 1)[name])


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_workers_store_their_draws_and_states(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NUMCODECS_ALLOW_UNSAFE_PICKLE_DECODE", "1")
    trace = recipe("run")(compiled_step(), cores=2, mp_ctx="spawn", **OPTIONS)
    whole = sample(compiled_step(), discard_tuned_samples=False, **OPTIONS)
    for chain in range(2):
        for name in NAMES:
            warmup, kept = (trace.root[g][name][chain] for g in ("warmup_posterior", "posterior"))
            assert_array_equal(np.concatenate([warmup, kept]), draws_of(whole, chain)[name])
        state = trace._sampling_state.sampling_state[chain]
        assert state.record.n_draws_left == 0
