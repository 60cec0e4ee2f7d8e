"""Runs on several devices are those on one, up to rounding."""

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import pytest

from tests.support import BACKENDS

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
    return {report["case"]: report for report in map(json.loads, out.splitlines())}


def check(report: dict[str, Any], **parts: int) -> None:
    """The same draws, of arrays that were divided into so many parts."""
    assert report["difference"] <= ROUNDING, report
    assert {name.replace("+", "_"): n for name, n in report["parts"].items()}.items() >= (
        parts.items()
    ), report


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
    check(found["all"], chain=2, chain_window=4, data=2, results=2)
    check(found["chains and steps"], chain=4, chain_window=8, results=4)
    assert found["chains and steps"]["fallback"] > 0, "some are finished step by step"
    check(found["one chain"], chain=1, chain_window=8, results=1)
    assert all(report["sweeps"] > 0 for report in found.values())


def test_two_processes() -> None:
    for ending in side_by_side(2, "two by two"):
        check(reports(ending)["two by two"], chain=2, data=2, results=2)


@pytest.mark.slow
def test_windows_in_two_processes() -> None:
    for ending in side_by_side(4, "all"):
        check(reports(ending)["all"], chain=2, chain_window=4, data=2, results=2)


def test_processes_that_differ_are_told() -> None:
    for status, _, err in side_by_side(1, "--seeds-differ", "two chains"):
        assert status == 1
        assert "the processes do not agree" in err
