"""Makes the site of these pages: ``uv run --extra docs sphinx-build -W docs docs/_build``."""

import inspect
import re
import shutil
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx
from sphinx.util.inspect import signature, stringify_signature

from pymc_deer.step import DeerStep

HERE = Path(__file__).parent
ROOT_PAGES = {"changelog": "CHANGELOG.md", "contributing": "CONTRIBUTING.md"}
"""Pages whose text is a file in the folder above."""
NOTEBOOKS = HERE.parent / "notebooks"
PAGES = HERE / "notebooks"
"""Sphinx reads this folder alone, so the notebooks are copied into it, where git ignores them."""


def copy_notebooks() -> None:
    """Make a page of each notebook, whose links to these pages lead from there."""
    shutil.rmtree(PAGES, ignore_errors=True)
    PAGES.mkdir()
    for notebook in sorted(NOTEBOOKS.glob("[1-9]*.md")):
        text = notebook.read_text().replace("](../docs/", "](../")
        (PAGES / notebook.name).write_text(text)


copy_notebooks()
sys.path.insert(0, str(HERE))

project = "pymc_deer"
author = "The pymc_deer developers"
project_copyright = f"{author}, Apache License 2.0"
release = version = metadata.version("pymc-deer")

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "directives"]
exclude_patterns = ["_build", "jupyter_execute", "benchmarks"]

myst_enable_extensions = ["amsmath", "dollarmath"]
myst_heading_anchors = 3
# With -D nb_execution_mode=cache the notebooks have their results.
nb_execution_mode = "off"
nb_execution_cache_path = str(HERE / "_build" / "jupyter_cache")
nb_execution_timeout = 600
nb_merge_streams = True
smartquotes_action = "D"

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_attr_annotations = False
default_role = "code"

html_theme = "furo"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_title = f"pymc_deer {release}"


def signature_of_step(
    app: Sphinx, what: str, name: str, obj: Any, options: Any, shown: str, returns: str
) -> tuple[str, str] | None:
    """The arguments of a step, for which autodoc would ask PyMC's `__new__`, that takes any."""
    if not inspect.isclass(obj) or not issubclass(obj, DeerStep):
        return None
    found = signature(obj.__init__, bound_method=True)
    return stringify_signature(found, show_annotation=False), returns


def read_root_page(app: Sphinx, page: str, source: list[str]) -> None:
    """Put a file of the folder above in the place of its page, whose links lead to pages alone."""
    if page in ROOT_PAGES:
        file = HERE.parent / ROOT_PAGES[page]
        app.env.note_dependency(str(file))
        text = re.sub(r"\[([^]]+)\]\((?!http|docs/)[^)]*\)", r"\1", file.read_text())
        source[0] = text.replace("](docs/", "](")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", read_root_page)
    app.connect("autodoc-process-signature", signature_of_step)
