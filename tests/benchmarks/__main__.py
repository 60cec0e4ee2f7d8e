"""The benchmarks: ``uv run python -m tests.benchmarks [--suite cpu|gpu|all] [--quick]``.

Ours beside what users would otherwise pick, on the same models, data, precision and cores. Results
go to ``docs/benchmarks/SUITE_PART.json`` and the tables of ``SUITE.md`` as they are made, pictures
at the end. Parts are ``models`` (all samplers), ``scaling``, ``cold`` and ``windows``. Rows made
replace those of the same model and sampler; with ``--resume`` what has rows is left out.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from tests.benchmarks import cold, race, scaling
from tests.benchmarks.measure import RESULTS, write_json
from tests.benchmarks.report import PARTS, stored, write_headline, write_report
from tests.benchmarks.samplers import SAMPLERS
from tests.benchmarks.suites import SUITES, Race, Suite
from tests.benchmarks.worker import Task, Worker

Row = dict[str, Any]

KEYS = {
    "models": ("model", "chains", "sampler"),
    "scaling": ("axis", "backend", "n", "dimension", "chains", "window"),
    "cold": ("model", "sampler"),
    "windows": ("model", "backend"),
}
"""What makes two rows of a part the same measurement."""

_WINDOWS_SECONDS = 400.0


@dataclass(frozen=True)
class Results:
    """The stored rows of one part of a suite."""

    folder: Path
    suite: str
    part: str

    @property
    def rows(self) -> list[Row]:
        return stored(self.folder, self.suite, self.part)["rows"]

    def add(self, rows: Iterable[Row]) -> None:
        """Put rows in the place of those of the same measurement, and write all."""
        by_key = {self._key(row): row for row in self.rows}
        for row in rows:
            by_key[self._key(row)] = row
        write_json(self.folder / f"{self.suite}_{self.part}.json", list(by_key.values()))
        write_report(self.folder, self.suite, pictures=False)

    def has(self, **values: Any) -> bool:
        """Whether there is a row with these values."""
        return any(all(row.get(k) == v for k, v in values.items()) for row in self.rows)

    def _key(self, row: Row) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in KEYS[self.part])


def run(suite: Suite, given: argparse.Namespace) -> None:
    """The parts asked for, as far as there is time.

    Raises
    ------
    SystemExit
        Where rows would take the place of a GPU's, and there is none.
    """
    kept = suite.setting.on_gpu and given.output == RESULTS and not given.quick
    if kept and not _has_gpu():
        raise SystemExit("JAX has no GPU here. To see that all works, name an --output.")
    suite = _asked(suite, given)
    end = time.perf_counter() + 60 * suite.minutes
    print(_estimate(suite, given), flush=True)
    for part in given.parts:
        PART_RUNS[part](suite, Results(given.output, suite.name, part), given.resume, end)


def _has_gpu() -> bool:
    """Asked in a process of its own, which leaves the GPU to those that measure."""
    command = [sys.executable, "-c", "import jax; print(jax.default_backend())"]
    asked = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return asked.stdout.split()[-1] != "cpu"


def models(suite: Suite, results: Results, resume: bool, end: float) -> None:
    """All samplers, model by model."""
    left = []
    for each in suite.races:
        wanted = {"model": each.model, **each.case.sizes}
        samplers = [s for s in each.samplers if not (resume and results.has(sampler=s, **wanted))]
        if samplers:
            left.append(replace(each, samplers=tuple(samplers)))
    # On a GPU all prepare themselves at the same time, and then run in turn.
    for races in [left] if suite.setting.on_gpu else [[each] for each in left]:
        if time.perf_counter() < end:
            _run_races(races, suite.setting, results, end)


def _run_races(races: Sequence[Race], setting: race.Setting, results: Results, end: float) -> None:
    with ExitStack() as stack:
        started = [
            stack.enter_context(race.started(r.model, r.samplers, r.case.sizes, setting))
            for r in races
        ]
        for workers in started:
            for worker in workers.values():
                worker.wait()
        moment = time.strftime(race.MOMENT)
        for each, workers in zip(races, started, strict=True):
            begun = time.perf_counter()
            sizes, limits = each.case.sizes, (each.case.repeats, each.case.limit)
            for row in race.race(each.model, workers, sizes, *limits, setting, end, moment):
                results.add([row | {"race_s": round(time.perf_counter() - begun)}])


def scale(suite: Suite, results: Results, resume: bool, end: float) -> None:
    """Transitions a second, size by size."""
    points = [point for point in suite.points if not (resume and _is_measured(results, point))]
    environment = suite.setting.environment(False, 1)
    share = min(end, time.perf_counter() + 60 * suite.minutes * suite.scaling_share)
    made = scaling.rows(points, suite.effort, environment, suite.setting.cores, share)
    _add_each(results, made)


def start(suite: Suite, results: Results, resume: bool, end: float) -> None:
    """Cold starts."""
    for model in suite.cold_models:
        left = [
            s for s in suite.cold_samplers if not (resume and results.has(model=model, sampler=s))
        ]
        if left and time.perf_counter() < end:
            made = cold.rows(model, left, suite.cold_tune, suite.setting, suite.cold_repeats)
            _add_each(results, made)


def widths(suite: Suite, results: Results, resume: bool, end: float) -> None:
    """The window that is chosen beside all others."""
    environment, cores = suite.setting.environment(False, 1), suite.setting.cores
    for model, backend in suite.windows:
        known = resume and results.has(model=model, backend=backend)
        if not known and time.perf_counter() < end:
            task = Task("tests.benchmarks.windows", {}, environment, cores)
            with Worker(task) as worker:
                worker.wait()
                answer = worker.ask((model, backend), _WINDOWS_SECONDS)
            _add_each(results, [{"model": model, "backend": backend, **answer}])


PART_RUNS: dict[str, Callable[[Suite, Results, bool, float], None]] = {
    "models": models,
    "scaling": scale,
    "cold": start,
    "windows": widths,
}


def _add_each(results: Results, rows: Iterable[Row]) -> None:
    for row in rows:
        print("  ".join(f"{name}={value}" for name, value in row.items()), flush=True)
        results.add([row])


def _is_measured(results: Results, point: scaling.Point) -> bool:
    sizes = {k: v for k, v in asdict(point).items() if k != "windows"}
    return all(results.has(window=window, **sizes) for window in (1, *point.windows))


def _asked(suite: Suite, given: argparse.Namespace) -> Suite:
    """The suite without the models and samplers that were not asked for.

    A sampler that takes part in no race of the suite does in all of them.
    """
    known = {sampler for each in suite.races for sampler in each.samplers}
    wanted = given.samplers or known
    others = [sampler for sampler in wanted if sampler not in known]
    races = tuple(
        replace(each, samplers=(*(s for s in each.samplers if s in wanted), *others))
        for each in suite.races
        if given.models is None or each.model in given.models
    )
    minutes = suite.minutes if given.minutes is None else given.minutes
    return replace(suite, races=races, minutes=minutes)


def _estimate(suite: Suite, given: argparse.Namespace) -> str:
    """How long the models take, from the last time."""
    rows = Results(given.output, suite.name, "models").rows
    asked = {(each.model, each.case.chains) for each in suite.races}
    seconds: dict[tuple[str, int], float] = {}
    for row in rows:
        # Of all samplers of a race, the one that ended last.
        key = row["model"], row["chains"]
        seconds[key] = max(seconds.get(key, 0.0), row["race_s"])
    known = asked & seconds.keys()
    told = f"at most {suite.minutes:.0f} minutes"
    if known and "models" in given.parts:
        took = sum(seconds[key] for key in known) / 60
        told += f"; {len(known)} of {len(asked)} models took {took:.0f} minutes the last time"
    return f"Suite {suite.name}: {told}."


def _suites(given: argparse.Namespace) -> Iterator[Suite]:
    names = tuple(SUITES) if given.suite == "all" else (given.suite,)
    for name in names:
        existing = os.cpu_count() or 1
        cores = given.cores or (existing if name == "gpu" else min(2, existing))
        yield SUITES[name](cores, given.precision, quick=given.quick)


def main() -> None:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--suite", choices=(*SUITES, "all"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="small runs, which show that it works")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--models", nargs="+", metavar="NAME", help="of the part models")
    parser.add_argument("--samplers", nargs="+", choices=tuple(SAMPLERS))
    parser.add_argument("--resume", action="store_true", help="leave out what has rows")
    parser.add_argument("--report", action="store_true", help="only make tables and pictures")
    parser.add_argument("--cores", type=int, help="2 by default, all beside a GPU")
    parser.add_argument("--precision", choices=("float32", "float64"))
    parser.add_argument("--minutes", type=float, help="begin nothing after so many")
    parser.add_argument("--output", type=Path, default=RESULTS)
    given = parser.parse_args()
    for suite in _suites(given):
        if not given.report:
            run(suite, given)
        print(f"Written to {write_report(given.output, suite.name)}")
        if given.output == RESULTS and suite.name == "cpu":
            write_headline(RESULTS.parents[1] / "README.md", RESULTS)


if __name__ == "__main__":
    main()
