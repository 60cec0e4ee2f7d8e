"""Tables and pictures of a suite, from the JSON that its parts have written."""

import json
from pathlib import Path
from typing import Any

from tests.benchmarks import tables

PARTS = ("models", "scaling", "cold", "windows")
MARKS = ("<!-- made by python -m tests.benchmarks --report -->", "<!-- end of what it made -->")
TITLES = {
    "cpu": "Beside other samplers, on a CPU",
    "gpu": "Beside other samplers, on a GPU",
}
PICTURES = {
    "ess": ("models", "Least bulk effective draws a second, by model and sampler"),
    "speed_up": ("scaling", "Speed-up over the sequential chain, by window"),
    "sweeps": ("scaling", "Sweeps for a window, by its length"),
    "cost": ("scaling", "Cost of a state, by the width of the batch"),
}
"""By name: the part that it shows, and what it shows."""


def stored(folder: Path, suite: str, part: str) -> dict[str, Any]:
    """What a part has written; no rows if nothing yet."""
    file = folder / f"{suite}_{part}.json"
    return json.loads(file.read_text()) if file.exists() else {"rows": []}


def write_report(folder: Path, suite: str, *, pictures: bool = True) -> Path:
    """Write ``SUITE.md`` and, where Matplotlib is there, the pictures.

    Returns
    -------
    Path
        The Markdown file.
    """
    found = {part: stored(folder, suite, part) for part in PARTS}
    drawn = _draw(folder, suite, found) if pictures else []
    file = folder / f"{suite}.md"
    file.write_text(_markdown(suite, found, drawn))
    return file


def write_headline(readme: Path, folder: Path) -> None:
    """Put the table of the CPU suite where the README has it."""
    before, _, rest = readme.read_text().partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    readme.write_text(f"{before}{MARKS[0]}\n{headline(folder)}{MARKS[1]}{after}")


def headline(folder: Path) -> str:
    """The README's table."""
    return tables.ratio_table(stored(folder, "cpu", "models")["rows"], tables.HEADLINE)


def _markdown(suite: str, found: dict[str, dict[str, Any]], drawn: list[str]) -> str:
    title = TITLES.get(suite, suite)
    pieces = [f"<!-- made by python -m tests.benchmarks --suite {suite} -->", f"# {title}"]
    for part, title, made in (
        ("models", "Samplers by model", _models),
        ("scaling", "Scaling", _scaling),
        ("cold", "From a cold start to the first draw", _cold),
        ("windows", "The window that is chosen", _windows),
    ):
        rows = found[part]["rows"]
        if not rows:
            continue
        pieces += [f"## {title}", _surroundings(found[part])]
        pieces += [
            f"![{PICTURES[n][1]}.]({suite}_{n}.png)" for n in drawn if PICTURES[n][0] == part
        ]
        pieces.append(made(rows))
    return "\n\n".join(piece.rstrip("\n") for piece in pieces) + "\n"


def _models(rows: list[dict[str, Any]]) -> str:
    ratios = tables.ratio_table(rows)
    return (
        f"{tables.USUAL_CHAINS} chains where nothing else is said. Ratios are of effective draws a "
        "second of sampling alone, and medians over repeats of runs in turns. *To converge*: of "
        "the seconds from the model to R-hat below 1.01 and 400 effective draws, compilation and "
        "warm-up included, in the first run of a process; empty where one of the two did not get "
        "there. *Sequential* is MALA without windows, on Numba and with a diagonal metric, as "
        f"nutpie.\n\n{ratios}\nBy model, *all* and *compile s* are of the first run of a process "
        "too, other numbers medians. *All* spreads what is spent once over the draws of the run, "
        "of which some samplers' are worth more than others': *s to converge* says what one "
        f"waits.\n\n{tables.race_tables(rows)}"
    )


def _cold(rows: list[dict[str, Any]]) -> str:
    repeats = max(row.get("repeats", 1) for row in rows)
    return f"Medians of {repeats}, in turns.\n\n{tables.cold_table(rows)}"


def _scaling(rows: list[dict[str, Any]]) -> str:
    first = next((row for row in rows if "matrix_gflops" in row), None)
    rates = (
        ""
        if first is None
        else (
            f"Measured on this device: {first['matrix_gflops']:,.0f} Gflop/s in a matrix product, "
            f"{first['bandwidth_gb_s']:,.0f} GB/s for arrays of the first row's size, read or "
            "copied. The bound counts the gradients of a sweep alone, at the bandwidth of arrays "
            "of its size: what fits into a cache is read faster.\n\n"
        )
    )
    return rates + tables.scaling_table(rows)


def _windows(rows: list[dict[str, Any]]) -> str:
    return (
        'Speed of the window that `window="auto"` chose over that of the best of 1, 16, 64, 256 '
        f"and 1024.\n\n{tables.windows_table(rows)}"
    )


def _surroundings(report: dict[str, Any]) -> str:
    hardware = report["hardware"]
    device = next((row["device"] for row in report["rows"] if "device" in row), None)
    pieces = [
        *([] if device in (None, "cpu") else [device]),
        hardware["processor"],
        f"{hardware['cores']} cores",
        f"{hardware['memory_gib']} GiB",
    ]
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    return f"{report['date']}; {', '.join(pieces)}; {report['machine']}; {versions}."


def _draw(folder: Path, suite: str, found: dict[str, dict[str, Any]]) -> list[str]:
    """The pictures for which there are rows; none without Matplotlib."""
    try:
        from tests.benchmarks import pictures
    except ModuleNotFoundError:
        return []
    makers = {
        "ess": pictures.ess_by_model,
        "speed_up": pictures.speed_up_by_window,
        "sweeps": pictures.sweeps_by_window,
        "cost": pictures.cost_by_width,
    }
    drawn = []
    for name, (part, _) in PICTURES.items():
        if rows := found[part]["rows"]:
            makers[name](rows, folder / f"{suite}_{name}.png")
            drawn.append(name)
    return drawn
