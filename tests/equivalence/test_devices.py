"""Runs on several devices are those on one, up to rounding."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from xarray import DataTree

import pymc_deer
from pymc_deer.examples import eight_schools
from tests.support import BACKENDS, SEED, interrupt

pytestmark = pytest.mark.skipif("jax" not in BACKENDS, reason="it is about JAX")

ROUNDING = 1e-6

SECONDS = 300
"""Within which processes that wait for each other are given up."""


def started(n_devices: int, *arguments: str) -> "subprocess.Popen[str]":
    """A process of `tests.devices_run` that has so many CPU devices."""
    flags = f"--xla_force_host_platform_device_count={n_devices}"
    return subprocess.Popen(
        [sys.executable, "-W", "error", "-m", "tests.devices_run", *arguments],
        env=os.environ | {"XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(processes: "Sequence[subprocess.Popen[str]]") -> list[tuple[int | None, str, str]]:
    """Exit status and output of each, when all are over or time is up."""
    end = time.monotonic() + SECONDS
    try:
        outputs = [p.communicate(timeout=max(end - time.monotonic(), 0.1)) for p in processes]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        outputs = [process.communicate() for process in processes]
    finally:
        for process in processes:
            process.kill()
    return [(p.returncode, *output) for p, output in zip(processes, outputs, strict=True)]


def side_by_side(n_devices: int, *arguments: str) -> list[tuple[int | None, str, str]]:
    """Two processes with so many devices each, which find each other over loopback."""
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    together = ["--coordinator", address, "--processes", "2", *arguments]
    return ended([started(n_devices, "--process", str(i), *together) for i in range(2)])


def reports(ending: tuple[int | None, str, str]) -> dict[str, dict[str, Any]]:
    """What a process has found, by case."""
    status, out, err = ending
    assert status == 0, err
    # Gloo prints lines of its own.
    found = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    return {report["case"]: report for report in found}


def check(report: dict[str, Any], **parts: int) -> None:
    """The same draws, of arrays that were divided into so many parts."""
    assert report["difference"] <= ROUNDING, report
    assert report["parts"].items() >= parts.items(), report


def test_chains_and_data() -> None:
    [ending] = ended([started(8, "chains", "data", "data that is lost")])
    found = reports(ending)
    check(found["chains"], chain=4, results=4)
    check(found["data"], chain=1, data=8, results=1)
    assert found["data that is lost"]["difference"] > 1e-3, "the test must be able to fail"


@pytest.mark.slow
def test_windows() -> None:
    [ending] = ended([started(8, "all", "chains and steps", "one chain")])
    found = reports(ending)
    check(found["all"], chain=2, data=2, results=2)
    check(found["chains and steps"], chain=4, results=4)
    assert found["chains and steps"]["fallback"] > 0, "some are finished step by step"
    check(found["one chain"], chain=1, results=1)
    assert all(report["sweeps"] > 0 for report in found.values())


def test_two_processes() -> None:
    for ending in side_by_side(2, "two by two"):
        check(reports(ending)["two by two"], chain=2, data=2, results=2)


@pytest.mark.slow
def test_windows_in_two_processes() -> None:
    for ending in side_by_side(4, "all"):
        check(reports(ending)["all"], chain=2, data=2, results=2)


def test_processes_that_differ_are_told() -> None:
    for status, _, err in side_by_side(1, "--seeds-differ", "two chains"):
        assert status == 1
        assert "the processes do not agree" in err


def run(**changes: Any) -> DataTree:
    """A short run of eight schools, on a mesh of the one device there is if not told otherwise."""
    options: dict[str, Any] = {
        **{"draws": 20, "tune": 30, "chains": 2, "random_seed": SEED, "kernel": "mala"},
        **{"window": 1, "devices": 1, "progressbar": False, "compute_convergence_checks": False},
    }
    return pymc_deer.sample(model=eight_schools(), **(options | changes))


def test_a_stored_run_goes_on_with_other_devices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = run(devices=None, backend="jax")
    with monkeypatch.context() as patch:
        interrupt(patch, 10)
        run(devices=None, backend="jax", store=tmp_path)
    found = pymc_deer.sample(resume=tmp_path, model=eight_schools(), devices=1, quiet=True)
    for name, values in whole["posterior"].to_dataset().data_vars.items():
        np.testing.assert_allclose(found["posterior"][name], values, rtol=ROUNDING, atol=ROUNDING)


@pytest.fixture
def one_of_two(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in one of two processes, of which the other one does the same."""
    for module in ("mesh", "placement"):
        monkeypatch.setattr(f"pymc_deer.backends.{module}.n_processes", lambda devices: 2)
    monkeypatch.setattr("pymc_deer.backends.placement.process_allgather", lambda mine: [mine] * 2)


@pytest.mark.usefixtures("one_of_two")
def test_an_interrupt_ends_one_of_several_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has draws, but the others would wait for it forever."""
    interrupt(monkeypatch, 10)
    with pytest.raises(KeyboardInterrupt):
        run()


@pytest.mark.usefixtures("one_of_two")
@pytest.mark.parametrize("index", [0, 1])
def test_one_of_several_processes_speaks(
    index: int, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr("jax.process_index", lambda: index)
    monkeypatch.setattr(
        "pymc_deer.backends.mesh.AskedDevices.of",
        classmethod(lambda cls, given: cls(np.array(jax.devices()[:1]), None)),
    )
    run(progressbar=True)
    assert ("Step size" in capsys.readouterr().out) == (index == 0)
