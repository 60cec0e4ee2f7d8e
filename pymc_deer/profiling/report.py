"""A profile as something to read: a table in a terminal, in a notebook, or to compute with."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from io import StringIO
from math import isfinite
from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from pymc_deer.metric import MetricKind
from pymc_deer.profiling.cost_shares import Libraries, Work
from pymc_deer.profiling.recommendation import WindowCost, recommend, rounded

if TYPE_CHECKING:
    from pandas import DataFrame

_UNITS = {12: "TB", 9: "GB", 6: "MB", 3: "kB", 0: "B"}
_WIDTH = 110
"""Columns of the printed report."""

_LIBRARIES = {
    "backend": "backend",
    "device": "device",
    "matrix": "matrix products",
    "elementwise": "elementwise",
    "indexing": "indexing",
}
_COSTS = {
    "backend": "backend",
    "device": "device",
    "window": "window",
    "gradient_us": "µs per gradient",
    "sweeps_per_1000": "sweeps per 1000",
    "pays_below": "pays below",
    "transitions_per_second": "transitions a second",
    "memory_bytes": "memory",
    "compile_seconds": "compile, s",
}
"""Headings of the printed tables, by field."""


@dataclass(frozen=True)
class Profile:
    """What a model costs on each backend, and what to take. Print it, or show it in a notebook.

    Attributes
    ----------
    n_dim
        D, the dimension of the unconstrained vector.
    dtype
        Its precision, ``float64`` or ``float32``.
    n_data
        Numbers of data that one gradient reads, indices included.
    data_bytes
        The memory they take.
    metric
        Kind of metric that the costs include.
    work
        Operations of one logp and gradient, by kind.
    libraries
        What runs each kind of work, by backend; those that are installed.
    costs
        One for each backend and width.
    discrete
        Names of the variables that other steps would move; their values stay as they are here.
    """

    n_dim: int
    dtype: str
    n_data: int
    data_bytes: int
    metric: MetricKind
    work: Work
    libraries: dict[str, Libraries]
    costs: tuple[WindowCost, ...]
    discrete: tuple[str, ...] = ()

    @property
    def recommendation(self) -> str:
        """What to take, in words."""
        return recommend(self.costs, self.work, self.dtype, self.discrete)

    @property
    def notes(self) -> tuple[str, ...]:
        """Why something was not measured, each reason once."""
        found: dict[tuple[str, str], list[str]] = {}
        for cost in self.costs:
            if cost.note:
                found.setdefault((cost.backend, cost.note), []).append(str(cost.window))
        return tuple(
            f"{backend}, window {', '.join(windows)}: {note}"
            for (backend, note), windows in found.items()
        )

    def to_dataframe(self) -> "DataFrame":
        """The costs, one row for each backend and width; columns as in :class:`WindowCost`."""
        from pandas import DataFrame

        return DataFrame([asdict(cost) for cost in self.costs])

    @property
    def _facts(self) -> tuple[str, ...]:
        shares = ", ".join(
            f"{100 * share:.0f}% {_LIBRARIES.get(kind, kind)}"
            for kind, share in self.work.shares.items()
            if share
        )
        return (
            f"D = {self.n_dim}, {self.dtype}, {self.metric} metric; data: {self.n_data:,} numbers, "
            f"{_bytes_shown(self.data_bytes)}.",
            f"One logp and gradient: {self.work.total:.2g} operations, {shares or 'none'}.",
        )

    @property
    def _tables(self) -> tuple[tuple[tuple[str, ...], list[tuple[str, ...]]], ...]:
        """Headings and rows of each table."""
        runs = [{"backend": n} | asdict(found) for n, found in self.libraries.items()]
        costs = [asdict(c) | {"memory_bytes": _bytes_shown(c.memory_bytes)} for c in self.costs]
        return tuple(
            (tuple(names.values()), [tuple(_shown(row[field]) for field in names) for row in rows])
            for names, rows in ((_LIBRARIES, runs), (_COSTS, costs))
        )

    def __rich__(self) -> Group:
        tables = [_table(*parts) for parts in self._tables]
        below = (*self.notes, self.recommendation)
        return Group(*map(Text, self._facts), *tables, *map(Text, below))

    def __str__(self) -> str:
        console = Console(width=_WIDTH, file=StringIO(), color_system=None)
        with console.capture() as captured:
            console.print(self)
        return "\n".join(line.rstrip() for line in captured.get().splitlines())

    def _repr_html_(self) -> str:
        tables = "".join(_html_table(*parts) for parts in self._tables)
        above, below = (
            "".join(f"<p>{escape(line)}</p>" for line in lines)
            for lines in (self._facts, (*self.notes, self.recommendation))
        )
        return above + tables + below


def _shown(value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    return rounded(value) if isfinite(value) else "-"


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        side = "left" if heading in _LIBRARIES.values() else "right"
        table.add_column(heading, justify=side, min_width=max(map(len, heading.split())))
    for row in rows:
        table.add_row(*map(Text, row))
    return table


def _html_table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _bytes_shown(n: float) -> str:
    if not isfinite(n):
        return "-"
    # What is shown as 1000 of one unit is 1 of the next.
    power = next((power for power in _UNITS if n >= 0.9995 * 10**power), 0)
    return f"{n / 10**power:.3g} {_UNITS[power]}"
