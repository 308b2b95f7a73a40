"""Who may import whom: types <- core <- algorithms <- update <- training <- sweep, cli; and who must not import jax."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import spacerl

HOME = Path(spacerl.__file__).parent
MODULES = {
    ".".join(("spacerl", *path.relative_to(HOME).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in HOME.rglob("*.py")
}


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def imported(module: str, also_inside_functions: bool = True) -> set[str]:
    """Full names of all modules that a module imports when it runs; imports for type checkers alone do not count."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively"
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found.update((names & MODULES.keys()) or {node.module or ""})
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        children = node.orelse if is_type_checking(node) else ast.iter_child_nodes(node)
        if also_inside_functions or not inner:
            for child in children:
                visit(child)

    visit(ast.parse(MODULES[module].read_text()))
    return found - {"__future__"}


def ours(module: str, **options) -> set[str]:
    return {name for name in imported(module, **options) if name.split(".")[0] == "spacerl"}


def below(*rooms: str) -> list[str]:
    return sorted(name for name in MODULES for room in rooms if name == room or name.startswith(f"{room}."))


def strangers(module: str, *allowed: str) -> set[str]:
    """Modules of the package that `module` imports although they are not among the allowed rooms."""
    return {name for name in ours(module) if not any(name == room or name.startswith(f"{room}.") for room in allowed)}


def test_the_reader_of_imports_sees_them():
    assert "spacerl.core.fisher" in imported("spacerl.update")
    assert "spacerl.training" in imported("spacerl.cli")
    assert "spacerl.training" not in imported("spacerl.cli", also_inside_functions=False)
    assert "jax" not in imported("spacerl.types")  # it is there for type checkers
    assert len(MODULES) > 30


@pytest.mark.parametrize("module", below("spacerl.core"))
def test_the_mathematics_imports_jax_and_numpy_only(module):
    assert not strangers(module, "spacerl.types", "spacerl.core")
    outside = {name.split(".")[0] for name in imported(module) - ours(module)}
    assert outside <= {"jax", "numpy"} | set(sys.stdlib_module_names)


@pytest.mark.parametrize("module", below("spacerl.algorithms"))
def test_algorithms_import_the_mathematics_only(module):
    assert not strangers(module, "spacerl.types", "spacerl.core", "spacerl.algorithms")
    outside = {name.split(".")[0] for name in imported(module) - ours(module)}
    assert outside <= {"jax", "numpy"} | set(sys.stdlib_module_names)


ALLOWED = {
    "spacerl.types": (),
    "spacerl.config": (),
    "spacerl.runs": ("spacerl.config",),
    "spacerl.progress": (),
    "spacerl.policies": ("spacerl.types", "spacerl.core.distributions"),
    "spacerl.critics": ("spacerl.types", "spacerl.core", "spacerl.policies"),
    "spacerl.collect": ("spacerl.types", "spacerl.policies"),
    "spacerl.update": ("spacerl.types", "spacerl.core", "spacerl.policies", "spacerl.critics"),
}


@pytest.mark.parametrize("module", ALLOWED)
def test_rooms_import_what_is_below_them(module):
    assert not strangers(module, *ALLOWED[module])


@pytest.mark.parametrize("module", below("spacerl.envs"))
def test_environments_know_types_only(module):
    assert not strangers(module, "spacerl.types", "spacerl.core.distributions", "spacerl.envs")


@pytest.mark.parametrize("module", below("spacerl.reporting"))
def test_the_report_knows_run_folders_only(module):
    assert not strangers(module, "spacerl.reporting")
    assert not {name for name in imported(module) if name.split(".")[0] in ("jax", "equinox")}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_imports_what_is_above_it(module):
    assert "spacerl.cli" not in imported(module) or module == "spacerl.__main__"
    above_training = (
        "spacerl.cli",
        "spacerl.library",
        "spacerl.sweep",
        "spacerl.reproduce",
        "spacerl.iterate",
        "spacerl.baselines.making",
    )
    assert "spacerl.training" not in imported(module) or module in above_training


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_reads_or_writes_pickles(module):
    pickling = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not {name for name in imported(module) if name.split(".")[0] in pickling}
    text = MODULES[module].read_text()
    assert not re.search(r"allow_pickle|\bnp\.load\(|\bnp\.save\(|(?<![\w.])(eval|exec)\(", text)


def loaded_by(program: str) -> set[str]:
    """Top-level modules that a Python program has loaded when it ends."""
    paths = os.pathsep.join(filter(None, [str(HOME.parent), os.environ.get("PYTHONPATH")]))
    program += "\nimport sys; print('LOADED', *{name.split('.')[0] for name in sys.modules})"
    process = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
    )
    return set(process.stdout.split("LOADED")[-1].split())


def test_run_folders_configs_and_reports_start_without_jax():
    program = "import spacerl.config, spacerl.runs, spacerl.reporting, spacerl.types, spacerl.progress"
    assert not loaded_by(program) & {"jax", "jaxlib", "equinox"}


def test_the_reader_of_loaded_modules_sees_them():
    assert {"jax", "equinox"} <= loaded_by("import spacerl.training")
