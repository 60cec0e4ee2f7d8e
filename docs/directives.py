"""Directives of these pages: ``results``, a table of what was measured, and ``notebooks``."""

import json
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.statemachine import StringList
from sphinx.application import Sphinx
from sphinx.directives.other import TocTree
from sphinx.util.docutils import SphinxDirective

HERE = Path(__file__).parent


def markdown(report: dict[str, Any]) -> str:
    """The rows as a table, without what is a list, and a line on where they come from."""
    rows = report["rows"]
    names = dict.fromkeys(name for row in rows for name in row)
    shown = [n for n in names if not any(isinstance(row.get(n), list) for row in rows)]
    lines = [[name.replace("_", " ") for name in shown], ["---"] * len(shown)]
    lines += [[_cell(row.get(name)) for name in shown] for row in rows]
    versions = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    table = "\n".join(f"| {' | '.join(cells)} |" for cells in lines)
    return f"{table}\n\n*{report['date']}, {report['machine']}, {versions}.*"


def _cell(value: Any) -> str:
    """Empty where nothing was measured."""
    return "" if value is None else str(value)


class ResultsTable(SphinxDirective):
    """The rows of a file in ``docs/benchmarks``; the argument is its name, without ``.json``.

    The content is what is seen in place of the table where pages are read as they are.
    """

    required_arguments = 1
    has_content = True

    def run(self) -> list[nodes.Node]:
        file = HERE / "benchmarks" / f"{self.arguments[0]}.json"
        self.env.note_dependency(str(file))
        return self.parse_text_to_nodes(markdown(json.loads(file.read_text())))


class Notebooks(TocTree):
    """The table of contents of the notebooks that are there."""

    def run(self) -> list[nodes.Node]:
        names = [f"notebooks/{page.stem}" for page in sorted((HERE / "notebooks").glob("*.md"))]
        self.content = StringList(names, source="notebooks")
        return super().run()


def setup(app: Sphinx) -> dict[str, Any]:
    """Make the directives known to Sphinx."""
    app.add_directive("results", ResultsTable)
    app.add_directive("notebooks", Notebooks)
    return {"parallel_read_safe": True}
