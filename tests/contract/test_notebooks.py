"""Every notebook runs from start to end, in a kernel and a folder of its own.

What the text of a notebook claims, its cells assert.
"""

import shutil
import subprocess
import sys
from pathlib import Path

import jupytext
import pytest
from nbclient import NotebookClient

FOLDER = Path(__file__).parents[2] / "notebooks"
NOTEBOOKS = sorted(path for path in FOLDER.glob("*.md") if path.stem != "README")
SECONDS = 240
"""What a notebook may take from clean, on two cores."""


def test_there_are_six_and_the_readme_names_them() -> None:
    readme = (FOLDER / "README.md").read_text()
    assert [int(path.stem[0]) for path in NOTEBOOKS] == [1, 2, 3, 4, 5, 6]
    for path in NOTEBOOKS:
        title = path.read_text().split("\n# ")[1].splitlines()[0]
        assert f"[{title}]({path.name})" in readme


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_each_has_a_gpu_switch(path: Path) -> None:
    cells = [cell["source"] for cell in jupytext.read(path).cells if cell["cell_type"] == "code"]
    assert 'ON_GPU = jax.default_backend() == "gpu"' in cells[0]


def test_the_readme_makes_notebooks_of_the_text(tmp_path: Path) -> None:
    command = "jupytext --sync notebooks/[1-9]*.md"
    assert command in (FOLDER / "README.md").read_text()
    shutil.copytree(FOLDER, tmp_path / "notebooks", ignore=shutil.ignore_patterns("*.ipynb"))
    subprocess.run(f"{sys.executable} -m {command}", shell=True, check=True, cwd=tmp_path)
    for path in NOTEBOOKS:
        made = jupytext.read(tmp_path / "notebooks" / f"{path.stem}.ipynb")
        sources = [cell["source"] for cell in jupytext.read(path).cells]
        assert [cell["source"] for cell in made.cells] == sources


@pytest.mark.slow
@pytest.mark.timeout(SECONDS + 60)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path: Path, tmp_path: Path) -> None:
    notebook = jupytext.read(path)
    assert len(notebook.cells) > 10
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=SECONDS, kernel_name="python3", resources=resources).execute()
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert all(cell["execution_count"] for cell in code)
