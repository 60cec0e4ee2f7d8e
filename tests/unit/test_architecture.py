"""The shape of the package: who imports whom, how long a module gets, what is documented."""

import ast
import inspect
import subprocess
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest

import pymc_deer

ROOT = Path(pymc_deer.__file__).parent
MAX_LINES = 400
DRIVERS = {
    *("step", "mala", "hmc", "sampling", "resuming", "variables"),
    *("pymc_deer", "__main__", "examples", "check"),
}
"""Modules that may know of `pm.sample`; the engine must also plug into other drivers."""


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(ROOT.rglob("*.py"))}


@cache
def imports(name: str, nested: bool) -> frozenset[str]:
    """Absolute names imported by a module, those inside functions only if `nested`."""
    tree = ast.parse(MODULES[name].read_text())
    nodes = ast.walk(tree) if nested else iter(tree.body)
    found = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
            found.add(str(node.module))
    return frozenset(found)


def graph(nested: bool) -> dict[str, set[str]]:
    return {name: set(imports(name, nested) & MODULES.keys()) - {name} for name in MODULES}


def part_of(name: str) -> str:
    """The package in `pymc_deer` that a module is of, or the module itself if it is in none."""
    return name.removeprefix("pymc_deer.").partition(".")[0]


def assert_acyclic(edges: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        raise AssertionError(f"import cycle: {' -> '.join(error.args[1])}") from error


def test_imports_are_acyclic() -> None:
    edges = graph(nested=True)
    # A package's own __init__ runs before its modules, which therefore may not need it.
    assert sum(map(len, edges.values())) > 20
    assert_acyclic(edges)


def test_packages_are_layers() -> None:
    """Of two packages one knows of the other at most; those in between do not lead back."""
    edges: dict[str, set[str]] = {}
    for name, found in graph(nested=True).items():
        edges.setdefault(part_of(name), set()).update(map(part_of, found))
    assert "density" in edges["ops"]
    assert_acyclic({part: found - {part} for part, found in edges.items()})


def test_a_cycle_would_be_found() -> None:
    with pytest.raises(AssertionError, match="import cycle"):
        assert_acyclic({**graph(nested=True), "pymc_deer.status": {"pymc_deer.step"}})


@pytest.mark.parametrize("name", MODULES)
def test_module_is_short(name: str) -> None:
    assert len(MODULES[name].read_text().splitlines()) <= MAX_LINES


ENGINE = [name for name in MODULES if part_of(name) not in DRIVERS]


@pytest.mark.parametrize("name", ENGINE)
def test_engine_knows_nothing_of_pymc_sampling(name: str) -> None:
    found = imports(name, nested=True)
    forbidden = [i for i in found if i.startswith(("pymc.sampling", "pymc.step_methods"))]
    assert not forbidden
    assert "pymc.sample" not in found
    tree = ast.parse(MODULES[name].read_text())
    called = {
        f"{node.value.id}.{node.attr}"
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    assert not {"pm.sample", "pymc.sample"} & called
    assert "pymc_deer.step" not in found


def test_oracle_shares_no_code_with_the_package() -> None:
    assert not graph(nested=True)["pymc_deer.reference"]
    users = [n for n in MODULES if "pymc_deer.reference" in imports(n, nested=True)]
    assert users == []


@pytest.mark.parametrize("backend", ["jax", "numba"])
def test_backend_is_imported_only_when_asked_for(backend: str) -> None:
    """Neither backend may be needed by the users of the other."""
    loaded, waiting = set(), {"pymc_deer"}
    while waiting:
        name = waiting.pop()
        loaded.add(name)
        waiting |= graph(nested=False)[name] - loaded
        # `import a.b` runs the __init__ of a as well.
        waiting |= {name.rpartition(".")[0]} & MODULES.keys() - loaded
    direct = {i.split(".")[0] for name in loaded for i in imports(name, nested=False)}
    assert len(loaded) > 10
    assert backend not in direct
    assert f"pymc_deer.backends.{backend}" not in loaded


def test_no_backend_is_imported_with_the_package() -> None:
    """Not by what it imports of others, either: each takes a second."""
    code = "import sys, pymc; before = set(sys.modules); import pymc_deer; "
    code += "print({'numba', 'jax', 'pytensor.link.numba'} & (set(sys.modules) - before))"
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout.strip() == "set()"


def public_objects() -> list[tuple[str, object]]:
    found = []
    for name in MODULES:
        if name == "pymc_deer.__main__":
            continue
        module = import_module(name)
        for attribute, value in vars(module).items():
            ours = getattr(value, "__module__", None) == name
            # Registered implementations are documented by their module; nobody calls them by name.
            registered = attribute.startswith(("jax_funcify", "numba_funcify"))
            if not attribute.startswith("_") and ours and callable(value) and not registered:
                found.append((f"{name}.{attribute}", value))
    return found


def test_public_functions_and_classes_are_documented() -> None:
    objects = public_objects()
    assert len(objects) > 50
    undocumented = [name for name, value in objects if not has_own_docstring(value)]
    assert undocumented == []


def has_own_docstring(value: object) -> bool:
    doc = getattr(value, "__doc__", None) or ""
    # A dataclass without one is given its signature.
    name = getattr(value, "__name__", "")
    return bool(inspect.cleandoc(doc)) and not doc.startswith(f"{name}(")
