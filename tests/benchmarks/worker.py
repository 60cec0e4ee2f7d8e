"""Processes in which benchmarks run: each with its own settings, memory and time limit.

This module imports next to nothing: what it starts sets its cores before NumPy counts them.
"""

import importlib
import multiprocessing
import os
import resource
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

_READY = "ready"
_START_SECONDS = 180.0


@dataclass(frozen=True)
class Task:
    """What a process does.

    Attributes
    ----------
    module
        Its function ``prepare(**arguments)`` returns one that answers requests with dicts.
    arguments
        In types that can be pickled.
    environment
        Environment variables besides those that there are.
    cores
        Cores that it may use.
    """

    module: str
    arguments: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    cores: int = 2


class Worker:
    """A process that answers one request after the other, and is ended when it takes too long."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self._prepared: dict[str, Any] | None = None
        self.begun = time.perf_counter()
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, task))
        with _environment(task.environment):
            self._process.start()
        theirs.close()

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    @property
    def is_alive(self) -> bool:
        return self._process.is_alive()

    def wait(self, limit: float = _START_SECONDS) -> dict[str, Any]:
        """Until all is imported and prepared, if it is not yet."""
        if self._prepared is None:
            self._prepared = self._receive(limit)
        return self._prepared

    def ask(self, request: Any, limit: float) -> dict[str, Any]:
        """The answer, or a dict with a ``status`` that says why there is none."""
        try:
            self._connection.send(request)
        except (BrokenPipeError, OSError):
            return {"status": "crashed"}
        return self._receive(limit)

    def _receive(self, limit: float) -> dict[str, Any]:
        try:
            if self._connection.poll(limit):
                return self._connection.recv()
        except (EOFError, OSError):
            self.end()
            return {"status": f"crashed (exit code {self._process.exitcode})"}
        self.end()
        return {"status": f"timed out ({limit:.0f} s)"}

    def end(self) -> None:
        """End the process and its own."""
        if self._process.is_alive():
            try:
                # It leads a group, to which PyMC's worker processes belong.
                os.killpg(self._process.pid or 0, signal.SIGKILL)
            except ProcessLookupError:
                self._process.kill()
        self._process.join()


def peak_mib() -> int:
    """Largest resident memory so far of this process, or of one that it has started."""
    whose = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    unit = 2**20 if sys.platform == "darwin" else 2**10
    return max(resource.getrusage(who).ru_maxrss for who in whose) // unit


@contextmanager
def _environment(variables: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in variables}
    os.environ.update(variables)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _serve(connection: Connection, task: Task) -> None:
    os.setsid()
    # Spawned itself, it would have PyMC spawn its workers, each of which imports everything anew.
    multiprocessing.set_start_method(None, force=True)
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: task.cores])
    try:
        answer = importlib.import_module(task.module).prepare(**task.arguments)
    except Exception as error:  # noqa: BLE001 - it becomes a row of the table
        connection.send({"status": _told(error)})
        return
    connection.send({"status": _READY})
    while True:
        try:
            request = connection.recv()
        except EOFError:
            return
        try:
            answered = answer(request)
        except Exception as error:  # noqa: BLE001
            answered = {"status": _told(error)}
        connection.send({"status": "ok", "peak_mib": peak_mib(), **answered})


def _told(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        return f"not installed: {error.name}"
    lines = str(error).splitlines() or [""]
    return f"failed: {type(error).__name__}: {lines[0][:100]}"
