"""The documents say what the code says."""

import pkgutil
import re
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from types import ModuleType

import pytest

import pymc_deer
from pymc_deer.examples import EXAMPLES
from pymc_deer.ops.row_blocks_jax import log_left_out
from pymc_deer.options import HMCOptions
from pymc_deer.stats import statistics_table
from pymc_deer.status import narrowed_window, not_checked, shrunk_window, slow_mixing, terms_failed

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"

PYTHON = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
RUN_ELSEWHERE = {"interrupts.md", "get_started.md"}
"""By tests/contract/test_zarr.py: its blocks are functions, which it calls; and by
tests/contract/test_commands.py, as a newcomer does.
"""


def test_the_statistics_page_is_the_generated_table():
    page = (DOCS / "statistics.md").read_text()
    assert statistics_table() in page


@pytest.mark.parametrize(
    "text",
    [
        shrunk_window(64, 8),
        shrunk_window(64, 1, n_chains=4),
        narrowed_window(64, 16),
        slow_mixing(1000, [3.0], 1, 10, 1),
        slow_mixing(1000, [3.0, 41.0], 4, 10, 1),
        not_checked(KeyboardInterrupt()),
        terms_failed(["log_likelihood", "log_prior"], ValueError("no such shape")),
    ],
)
def test_every_warning_has_a_row(text):
    assert has_a_row(text)


def test_the_warning_of_kernels_left_out_has_a_row(caplog):
    log_left_out(RuntimeError("no Triton\nat all"))
    assert has_a_row(caplog.messages[-1])


def has_a_row(text):
    section = (DOCS / "errors.md").read_text().split("\n## Warnings\n")[1]
    said = [re.escape(words) for words in re.findall(r"`(.+?)`", section)]
    # Letters stand for numbers, dots for what differs.
    patterns = [re.sub(r"\b[A-Z]\b", r"\\d+", p).replace(r"\.\.\.", ".*") for p in said]
    return any(re.fullmatch(pattern, text) for pattern in patterns)


def test_the_readme_lists_every_option_and_model():
    readme = (ROOT / "README.md").read_text()
    for field in fields(HMCOptions):
        assert f"`{field.name}`" in readme, field.name
    for name in EXAMPLES:
        assert f"`{name}`" in readme, name


def test_ci_runs_the_readme_test_command():
    command = "pip install uv && uv run pytest"
    assert command in (ROOT / "README.md").read_text()
    assert command in (ROOT / ".ci" / "run").read_text()
    assert command in (ROOT / ".github" / "workflows" / "tests.yml").read_text()


def test_each_feature_of_pymc_names_its_tests():
    page = (DOCS / "pymc_features.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`test_" in line]
    for row in rows:
        for name, file in re.findall(r"`(test_\w+)`(?: \(`(test_\w+\.py)`\))?", row):
            code = (ROOT / "tests" / "contract" / (file or "test_features.py")).read_text()
            assert f"def {name}(" in code, name
    assert len(rows) > 20
    without = [line for line in page.splitlines() if line.startswith("| ") and line not in rows]
    assert len(without) == 2 * page.count("\n## ") - 2, "two lines head each of the tables"


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(DOCS.glob("*.md")))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(DOCS.glob("*.md")))
def test_no_number_is_pending(page):
    assert "<!-- measured:" not in page.read_text()


def test_the_benchmarks_readme_names_each_command_and_no_other():
    folder = ROOT / "tests" / "benchmarks"
    named = set(
        re.findall(r"python -m (tests\.benchmarks[.\w]*)", (folder / "README.md").read_text())
    )
    commands = {
        f"tests.benchmarks.{file.stem}"
        for file in folder.glob("*.py")
        if 'if __name__ == "__main__":' in file.read_text()
    }
    commands = {name.removesuffix(".__main__") for name in commands}
    assert len(commands) > 10
    assert named == commands


def test_benchmarks_named_in_documents_exist():
    pages = [ROOT / "README.md", *ROOT.glob("docs/*.md")]
    for page in pages:
        for name in re.findall(r"tests\.benchmarks\.(\w+)", page.read_text()):
            assert (ROOT / "tests" / "benchmarks" / f"{name}.py").exists(), (page.name, name)


@pytest.mark.slow
def test_the_site_builds_without_warnings(tmp_path):
    site = tmp_path / "site"
    run([sys.executable, "-m", "sphinx", "-q", "-W", str(DOCS), str(site)], ROOT)
    for page in DOCS.glob("*.md"):
        # Cells of what was not measured are empty.
        assert "<p>None</p>" not in (site / f"{page.stem}.html").read_text(), page.name
    for notebook in (ROOT / "notebooks").glob("[1-9]*.md"):
        assert (site / "notebooks" / f"{notebook.stem}.html").exists(), notebook.name


@pytest.mark.slow
def test_with_results_a_page_has_what_its_cells_print(tmp_path):
    """The site's own settings, on a page that takes seconds; tests/contract runs the notebooks."""
    option = "-D nb_execution_mode=cache"
    assert f"sphinx-build -W {option} docs docs/_build" in (DOCS / "notebooks.md").read_text()
    header = (ROOT / "notebooks" / "5_watching_deer.md").read_text().split("\n---\n")[0]
    source, site = tmp_path / "source", tmp_path / "site"
    source.mkdir()
    (source / "index.md").write_text(
        f"{header}\n---\n\n# A page\n\n```{{code-cell}}\nprint(6 * 7 * 11 * 13)\n```\n"
    )
    cache = ["-D", f"nb_execution_cache_path={tmp_path / 'cache'}"]
    places = ["-c", str(DOCS), str(source), str(site)]
    run([sys.executable, "-m", "sphinx", "-q", "-W", *option.split(), *cache, *places], ROOT)
    assert "6006" in (site / "index.html").read_text()


@pytest.mark.slow
def test_the_python_of_the_pages_runs(tmp_path):
    """Page by page, in a process of its own: one of them sets PyTensor's floatX, and comes last."""
    pages = {page: PYTHON.findall(page.read_text()) for page in DOCS.glob("*.md")}
    pages = {p: blocks for p, blocks in pages.items() if blocks and p.name not in RUN_ELSEWHERE}
    assert len(pages) > 4
    in_turn = sorted(pages, key=lambda page: (page.name == "precision.md", page.name))
    runner = tmp_path / "run.py"
    # The name of the page stands in the traceback of what fails.
    runner.write_text(
        "\n".join(
            f"exec(compile({chr(10).join(pages[page])!r}, {page.name!r}, 'exec'), {{}})"
            for page in in_turn
        )
    )
    run([sys.executable, str(runner)], tmp_path)


def run(command, folder):
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-4000:]


def test_the_reference_names_all_that_is_public():
    page = (DOCS / "api.md").read_text()
    for name in pymc_deer.__all__:
        # Of a module, the page may have what it has.
        is_module = isinstance(getattr(pymc_deer, name), ModuleType)
        named = rf"pymc_deer\.{name}(\.\w+)?" if is_module else name
        assert name.startswith("__") or re.search(rf":: {named}$", page, re.MULTILINE), name


def test_what_the_page_on_extending_names_is_there():
    page = (DOCS / "extending.md").read_text()
    names = re.findall(r"`(pymc_deer\.[\w.]+)`", page)
    assert len(names) > 20
    for name in names:
        assert pkgutil.resolve_name(name) is not None


def test_the_tests_that_pages_name_are_there():
    named = {page.stem: _paths_of_tests(page.read_text()) for page in DOCS.glob("*.md")}
    assert len(named["extending"]) > 5
    assert len(named["exactness"]) > 10
    for path in set().union(*named.values()):
        assert (ROOT / path).exists(), path


def _paths_of_tests(page: str) -> list[str]:
    modules = re.findall(r"(?:`|-m )(tests\.[\w.]+\w)", page)
    paths = [name.replace(".", "/") for name in modules]
    found = [path if (ROOT / path).is_dir() else f"{path}.py" for path in paths]
    return [*re.findall(r"`(tests/[\w/.]+)`", page), *found]


def test_all_that_was_measured_is_on_a_page():
    pages = "".join(page.read_text() for page in DOCS.glob("*.md"))
    files = [file for file in (DOCS / "benchmarks").iterdir() if "_quick" not in file.name]
    tables = [file.stem for file in files if file.suffix == ".md"]
    for name in tables:
        assert f"{{include}} benchmarks/{name}.md\n" in pages, name
    for file in files:
        of_a_table = any(f"{file.stem}_".startswith(f"{name}_") for name in tables)
        if file.suffix == ".json" and not of_a_table:
            assert f"{{results}} {file.stem}\n" in pages or file.name in pages, file.name
