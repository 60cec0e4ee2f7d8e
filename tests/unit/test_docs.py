"""The documents say what the code says."""

import re
from dataclasses import fields
from pathlib import Path

import pytest

from pymc_deer.examples import EXAMPLES
from pymc_deer.options import HMCOptions
from pymc_deer.stats import statistics_table

ROOT = Path(__file__).parents[2]


def test_the_statistics_page_is_the_generated_table():
    page = (ROOT / "docs" / "statistics.md").read_text()
    assert statistics_table() in page


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
    page = (ROOT / "docs" / "pymc_features.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ") and "`test_" in line]
    files = {path.name: path.read_text() for path in (ROOT / "tests" / "contract").glob("*.py")}
    for row in rows:
        for name, file in re.findall(r"`(test_\w+)`(?: \(`(test_\w+\.py)`\))?", row):
            code = files[file] if file else "".join(files.values())
            assert f"def {name}(" in code, name
    assert len(rows) > 20
    without = [line for line in page.splitlines() if line.startswith("| ") and line not in rows]
    assert len(without) == 2 * page.count("\n## ") - 2, "two lines head each of the tables"


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", sorted(ROOT.glob("*.md")) + sorted(ROOT.glob("docs/*.md")))
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
