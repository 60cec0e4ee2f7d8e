"""Every command of README and the pages runs: here, or in the test that is named here beside it.

Commands that measure for minutes or hours are stopped behind the arguments that the page gives
them; what they measure with has tests of its own.
"""

import importlib
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
from argparse import ArgumentParser
from pathlib import Path
from typing import Any

import pytest

from pymc_deer.store import _INSTALL as INSTALL_ZARR
from tests.unit.test_docs import DOCS, PYTHON, ROOT

PAGES = [ROOT / "README.md", *DOCS.glob("*.md")]

_BLOCK = re.compile(r"^```(?:bash|shell)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"`((?:uv|pip|python)\s[^`]*)`")

INSTALL = "pip install ."
"""What README and Get started begin with."""

EXAMPLE = "pip install uv && uv run python -m pymc_deer"
TESTS = "pip install uv && uv run pytest"

ELSEWHERE = {
    TESTS: "tests/unit/test_docs.py::test_ci_runs_the_readme_test_command",
    "uv run --extra docs sphinx-build -W docs docs/_build": (
        "tests/unit/test_docs.py::test_the_site_builds_without_warnings"
    ),
    "uv run --extra docs --extra notebooks sphinx-build -W -D nb_execution_mode=cache docs"
    " docs/_build": "tests/unit/test_docs.py::test_with_results_a_page_has_what_its_cells_print",
    "uv run python -m tests.random_models": (
        "tests/equivalence/test_random_models.py::test_windows_solve_a_random_model"
    ),
}


def commands(page: Path) -> list[str]:
    """Its commands: those in blocks, each block being one script, and those in the text."""
    text = page.read_text()
    inline = (" ".join(c.split()) for c in _INLINE.findall(_FENCED.sub("", text)))
    return [block.strip() for block in _BLOCK.findall(text)] + list(inline)


NAMED = {command for page in PAGES for command in commands(page)}
INSTALLS = {command for command in NAMED if re.match(r"pip install (?!uv)", command)}

_MEASURE = "python -m tests.benchmarks"
MEASURING = sorted(c for c in NAMED if c.removeprefix("uv run ").startswith(_MEASURE))
"""Those that would write over what is measured, on whatever machine runs the tests."""

SHORT = sorted(NAMED - INSTALLS - ELSEWHERE.keys() - set(MEASURING))
"""Those that are run here, in the environment of the tests."""


def test_commands_are_found() -> None:
    assert {INSTALL, EXAMPLE, TESTS} < NAMED
    assert {EXAMPLE} < set(SHORT)
    assert len(MEASURING) > 10


@pytest.mark.parametrize("command", MEASURING)
def test_a_command_that_measures_takes_its_arguments(
    command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert takes_its_arguments(command, monkeypatch)


@pytest.mark.parametrize("wrong", ["--no-such-option", "no_such_word"])
def test_arguments_that_a_command_does_not_take_are_noticed(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not takes_its_arguments(f"{_MEASURE}.two_million {wrong}", monkeypatch)


class _TakenError(Exception):
    """Stands for the measurement."""


def takes_its_arguments(command: str, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether it goes on behind its arguments, where it is stopped."""
    module, *arguments = command.removeprefix("uv run ").removeprefix("python -m ").split()
    monkeypatch.setattr("sys.argv", [module, *arguments])
    parse = ArgumentParser.parse_args

    def parse_and_stop(*args: Any, **kwargs: Any) -> None:
        parse(*args, **kwargs)
        raise _TakenError

    monkeypatch.setattr(ArgumentParser, "parse_args", parse_and_stop)
    # That of a package is its __main__.
    name = f"{module}.__main__" if module == "tests.benchmarks" else module
    with pytest.raises((_TakenError, SystemExit)) as ended:
        importlib.import_module(name).main()
    return ended.type is _TakenError


@pytest.mark.parametrize("command", ELSEWHERE)
def test_what_runs_elsewhere_is_named_and_is_there(command: str) -> None:
    file, test = ELSEWHERE[command].split("::")
    assert command in NAMED
    assert f"def {test}(" in (ROOT / file).read_text()


@pytest.mark.slow
@pytest.mark.parametrize("command", SHORT)
def test_a_short_command_runs(command: str, tmp_path: Path) -> None:
    # The environment that uv would make is the one that the tests have.
    script = command.removeprefix("pip install uv && ").removeprefix("uv run ")
    assert "uv" not in script.split(), "nothing is installed where the tests run"
    assert run(script, tmp_path, Path(sys.executable).parent)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_newcomer_installs_and_gets_a_picture(tmp_path: Path) -> None:
    """What Get started says, in an environment that has nothing else."""
    programs = new_environment(tmp_path)
    run(INSTALL, ROOT, programs)
    blocks = PYTHON.findall((DOCS / "get_started.md").read_text())
    (tmp_path / "fit.py").write_text("\n".join(blocks))
    assert "ess_bulk" in run("python fit.py", tmp_path, programs)
    assert (tmp_path / "posterior.png").stat().st_size > 0
    for command in sorted(INSTALLS - {INSTALL}):
        # CUDA alone is gigabytes: it is enough that there is what is asked for.
        found = run(
            command.replace("pip install", "pip install --dry-run --no-deps"), ROOT, programs
        )
        assert "does not provide" not in found


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_stores_are_the_same_with_the_zarr_that_pip_installs(tmp_path: Path) -> None:
    """PyMC's ZarrTrace keeps the environment of the tests at the version before."""
    programs = new_environment(tmp_path)
    # Behind its own packages, those that the tests have.
    link = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})"
    own = sysconfig.get_path("purelib", "venv", {"base": str(programs.parent)})
    Path(own, "tests.pth").write_text(link)
    run(INSTALL_ZARR, tmp_path, programs)
    assert run("python -c 'import zarr; print(zarr.__version__)'", ROOT, programs).startswith("3.")
    chosen = '-m "not slow and not any_zarr" tests/contract/test_store.py'
    told = run(f"python -m pytest -q -n0 {chosen}", ROOT, programs)
    assert " passed" in told
    assert " skipped" not in told, "what asks for this version is tested nowhere else"


def test_the_extra_for_gpus_brings_jax_for_gpus() -> None:
    with (ROOT / "uv.lock").open("rb") as file:
        packages = {package["name"]: package for package in tomllib.load(file)["package"]}
    [jax] = packages["pymc-deer"]["optional-dependencies"]["cuda"]
    [extra] = jax["extra"]
    wanted = {found["name"] for found in packages["jax"]["optional-dependencies"][extra]}
    assert {f"jax-{extra}-plugin"} <= wanted <= packages.keys()


def new_environment(folder: Path) -> Path:
    """Where the programs of an environment are that has pip alone."""
    programs = folder / "environment" / ("Scripts" if os.name == "nt" else "bin")
    subprocess.run([sys.executable, "-m", "venv", str(programs.parent)], check=True)
    return programs


def run(script: str, folder: Path, programs: Path) -> str:
    """What the script prints, with the programs of an environment before all others."""
    # Tests that it runs find what the worker that waits for them has compiled.
    ours = re.compile(r"PYTHONPATH|VIRTUAL_ENV|PYTEST_(?!XDIST_WORKER$).*")
    variables = {k: v for k, v in os.environ.items() if not ours.fullmatch(k)}
    variables["PATH"] = f"{programs}{os.pathsep}{variables['PATH']}"
    # Of packages that pip installs, only what is imported.
    variables["PIP_NO_COMPILE"] = "1"
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout + done.stderr
