"""Who may import whom, who must do without jax, and what keeps files small and names private.

types <- runs <- core <- algorithms, policies <- envs, rollout <- training <- api, cli. Reports know run folders only.
"""

from __future__ import annotations

import ast
import functools
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import spacerl

HOME = Path(spacerl.__file__).parent
MODULES = {
    ".".join(("spacerl", *path.relative_to(HOME).with_suffix("").parts)).removesuffix(".__init__"): path
    for path in HOME.rglob("*.py")
}
BY_NAME = re.compile(r"(spacerl(?:\.\w+)+):\w+")  # what is imported when it is wanted, as `module:attribute`
HEAVY = {"jax", "jaxlib", "equinox"}


# Reading imports ------------------------------------------------------------------------------------------------------


@functools.cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text())


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and isinstance(node.test, ast.Name) and node.test.id == "TYPE_CHECKING"


def modules_of(node: ast.AST, module: str) -> set[str]:
    """Full names of the modules that one statement imports."""
    if isinstance(node, ast.Import):
        return {alias.name for alias in node.names}
    if not isinstance(node, ast.ImportFrom):
        return set()
    assert node.level == 0, f"{module} imports relatively"
    assert all(alias.name != "*" for alias in node.names), f"{module} imports everything there is"
    whole = {f"{node.module}.{alias.name}" for alias in node.names} & MODULES.keys()
    return whole | ({node.module or ""} if len(whole) < len(node.names) else set())


@functools.cache
def imported(module: str, inside_functions: bool = True, for_types: bool = False) -> frozenset[str]:
    """Full names of all modules that a module imports; those for type checkers alone only if asked for."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        found.update(modules_of(node, module))
        inner = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        skipped = is_type_checking(node) and not for_types
        children = node.orelse if skipped and isinstance(node, ast.If) else ast.iter_child_nodes(node)
        if inside_functions or not inner:
            for child in children:
                visit(child)

    visit(tree_of(module))
    return frozenset(found - {"__future__"})


def named(module: str) -> set[str]:
    """Modules of ours that a module names in texts, to import them when they are wanted."""
    texts = (node.value for node in ast.walk(tree_of(module)) if isinstance(node, ast.Constant))
    return {found[1] for text in texts if isinstance(text, str) and (found := BY_NAME.fullmatch(text))}


def ours(module: str) -> set[str]:
    """Modules of the package that a module knows of in any way."""
    known = imported(module, for_types=module != "spacerl") | named(module)
    return {name for name in known if name.split(".")[0] == "spacerl"}


def is_in(name: str, *rooms: str) -> bool:
    return any(name == room or name.startswith(f"{room}.") for room in rooms)


def below(*rooms: str) -> list[str]:
    return sorted(name for name in MODULES if is_in(name, *rooms))


def outside(module: str) -> set[str]:
    """Packages of others that a module imports."""
    return {name.split(".")[0] for name in imported(module) - ours(module)} - sys.stdlib_module_names


def test_the_reader_of_imports_sees_them():
    assert "spacerl.core.fisher" in imported("spacerl.training.update")
    assert "spacerl.rollout.film" in imported("spacerl.api")
    assert "spacerl.rollout.film" not in imported("spacerl.api", inside_functions=False)
    assert "jax" not in imported("spacerl.types")  # it is there for type checkers
    assert "jax" in imported("spacerl.types", for_types=True)
    assert "spacerl.api" in imported("spacerl", for_types=True)
    assert "spacerl.envs.ant.robot" in named("spacerl.envs.tasks")
    assert "spacerl.envs.ant.robot" in ours("spacerl.envs.tasks")
    assert len(MODULES) > 90


# Layers ---------------------------------------------------------------------------------------------------------------

# Room -> rooms of ours that it may know besides itself. `import spacerl` gives the version and where the package is.
LAYERS: dict[str, tuple[str, ...]] = {
    "spacerl.types": (),
    "spacerl.runs": ("spacerl.types",),
    "spacerl.reporting": ("spacerl.types", "spacerl.runs"),
    "spacerl.core": ("spacerl.types",),
    "spacerl.algorithms": ("spacerl.types", "spacerl.core", "spacerl.runs.fields"),
    "spacerl.policies": ("spacerl.types", "spacerl.core", "spacerl.runs"),
    "spacerl.envs": ("spacerl.types", "spacerl.core.distributions", "spacerl.runs"),
    "spacerl.rollout": ("spacerl.types", "spacerl.core", "spacerl.runs", "spacerl.policies", "spacerl.envs"),
    "spacerl.training": (
        "spacerl.types",
        "spacerl.core",
        "spacerl.runs",
        "spacerl.algorithms",
        "spacerl.policies",
        "spacerl.envs",
        "spacerl.rollout",
    ),
    "spacerl.api": (
        "spacerl.types",
        "spacerl.runs",
        "spacerl.reporting",
        "spacerl.algorithms.contract",
        "spacerl.policies",
        "spacerl.envs",
        "spacerl.rollout",
        "spacerl.training",
    ),
    "spacerl.cli": (
        "spacerl.types",
        "spacerl.runs",
        "spacerl.reporting",
        "spacerl.algorithms",
        "spacerl.envs",
        "spacerl.rollout.demos",
        "spacerl.training",
        "spacerl.api",
    ),
    "spacerl.__main__": ("spacerl.cli",),
}
# Single modules that may know more than their room.
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    "spacerl.policies.loading": ("spacerl.envs.tasks",),  # a plain table: which baselines and rules a task has
    "spacerl.training.reproduce": ("spacerl.reporting",),  # its last command writes a page
}
# Within a room: files that stand below others of it.
STRICTER: dict[str, tuple[str, ...]] = {
    "spacerl.runs.arrays": ("spacerl.types", "spacerl.runs.memory"),
    "spacerl.runs.fields": ("spacerl.types",),
    "spacerl.runs.formats": ("spacerl.types",),
    "spacerl.runs.memory": ("spacerl.types",),
    "spacerl.runs.metrics": ("spacerl.types", "spacerl.runs.text"),
    "spacerl.runs.names": ("spacerl.types",),
    "spacerl.runs.lock": ("spacerl.types",),
    "spacerl.runs.config": ("spacerl.types", "spacerl.runs.fields", "spacerl.runs.formats", "spacerl.runs.lock"),
    "spacerl.envs.tasks": ("spacerl.types", "spacerl.envs"),
    "spacerl.policies.family": (
        "spacerl.types",
        "spacerl.core.distributions",
        "spacerl.core.fisher",
        "spacerl.policies.networks",
        "spacerl.policies.normaliser",
        "spacerl.policies.sampler",
    ),
    "spacerl.rollout.device": ("spacerl.types",),
    "spacerl.rollout.host": ("spacerl.types",),
    "spacerl.rollout.adapter": ("spacerl.types",),
    "spacerl.training.progress": ("spacerl.types", "spacerl.runs", "spacerl.training.sinks"),
    "spacerl.training.critics": ("spacerl.types", "spacerl.core", "spacerl.policies"),
    "spacerl.training.update": (
        "spacerl.types",
        "spacerl.core",
        "spacerl.runs.config",
        "spacerl.algorithms.contract",
        "spacerl.policies",
        "spacerl.training.critics",
        "spacerl.training.learner",
        "spacerl.training.surrogates",
    ),
    "spacerl.training.surrogates": ("spacerl.types", "spacerl.core", "spacerl.training.learner"),
    "spacerl.training.learner": (
        "spacerl.runs.config",
        "spacerl.algorithms.contract",
        "spacerl.policies.family",
        "spacerl.training.critics",
    ),
}


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def test_every_room_has_its_layer():
    assert {room_of(module) for module in MODULES} == {"spacerl", *LAYERS}
    assert EXCEPTIONS.keys() | STRICTER.keys() <= MODULES.keys()


@pytest.mark.parametrize("module", sorted(MODULES.keys() - {"spacerl"}))
def test_rooms_know_what_is_below_them(module):
    room = room_of(module)
    allowed = (room, *LAYERS[room], *EXCEPTIONS.get(module, ()))
    assert not {name for name in ours(module) - {"spacerl"} if not is_in(name, *allowed)}


@pytest.mark.parametrize("module", STRICTER)
def test_files_know_what_is_below_them_in_their_room(module):
    assert not {name for name in ours(module) if not is_in(name, *STRICTER[module])}


def test_the_package_itself_imports_nothing_at_once():
    assert imported("spacerl", inside_functions=False) <= {"typing"}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_imports_the_command(module):
    assert not any(is_in(name, "spacerl.cli") for name in ours(module)) or is_in(
        module, "spacerl.cli", "spacerl.__main__"
    )


def test_no_modules_import_each_other_in_a_circle():
    """When they are imported: what a function imports, it imports later."""
    left = {name: {other for other in imported(name, False) if other in MODULES} - {name} for name in MODULES}
    while free := {name for name, needs in left.items() if not needs & left.keys()}:
        left = {name: needs for name, needs in left.items() if name not in free}
    assert not left


@pytest.mark.parametrize("module", sorted(MODULES))
def test_what_is_imported_by_name_is_there(module):
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and BY_NAME.fullmatch(node.value):
            place, _, attribute = node.value.partition(":")
            defined = {
                name
                for top in tree_of(place).body
                for name in [getattr(top, "name", None), *(getattr(t, "id", None) for t in getattr(top, "targets", []))]
            }
            assert attribute in defined, node.value
            assert not attribute.startswith("_"), node.value


@pytest.mark.parametrize("module", below("spacerl.core", "spacerl.algorithms"))
def test_the_mathematics_imports_jax_and_numpy_only(module):
    assert outside(module) <= {"jax", "numpy"}


# Without jax ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("module", below("spacerl.runs", "spacerl.reporting", "spacerl.types", "spacerl.envs.tasks"))
def test_run_folders_reports_types_and_tasks_never_import_jax(module):
    assert not outside(module) & HEAVY


@functools.cache
def loaded_by(program: str) -> frozenset[str]:
    """Top-level modules that a Python program has loaded when it ends, which it may by SystemExit."""
    paths = os.pathsep.join(filter(None, [str(HOME.parent), os.environ.get("PYTHONPATH")]))
    lines = ["import atexit, sys", "atexit.register(lambda: print('LOADED', *{n.split('.')[0] for n in sys.modules}))"]
    process = subprocess.run(
        [sys.executable, "-c", "\n".join([*lines, program])],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": paths},
        timeout=60,
    )
    assert "LOADED" in process.stdout
    return frozenset(process.stdout.split("LOADED")[-1].split())


WITHOUT_JAX = {
    "everything below": "import " + ", ".join(below("spacerl.runs", "spacerl.reporting", "spacerl.types")),
    "tasks": "import spacerl.envs.tasks; assert spacerl.envs.tasks.TASKS['point-circle'].shipped()",
    "progress": "import spacerl.training.progress",
    "public names": "import spacerl; spacerl.EnvSpec, spacerl.JaxEnv, spacerl.InputError, dir(spacerl)",
    "spacerl --help": "from spacerl.cli import main; main(['--help'])",
    "spacerl tasks": "from spacerl.cli import main; main(['tasks'])",
}


@pytest.mark.parametrize("program", WITHOUT_JAX)
def test_what_need_not_compile_starts_without_jax(program):
    assert not loaded_by(WITHOUT_JAX[program]) & HEAVY


def test_the_reader_of_loaded_modules_sees_them():
    assert {"jax", "equinox"} <= loaded_by("import spacerl.training.loop")


# Private names --------------------------------------------------------------------------------------------------------

OF_NAMED_TUPLES = {"_replace", "_asdict", "_fields", "_field_defaults", "_make"}


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name not in OF_NAMED_TUPLES


def bound_by(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Names that an import statement binds, each with what of ours it stands for."""
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield alias.asname or alias.name.split(".")[0], alias.name if alias.asname else alias.name.split(".")[0]
    elif isinstance(node, ast.ImportFrom):
        for alias in node.names:
            yield alias.asname or alias.name, f"{node.module}.{alias.name}"


def dotted(node: ast.AST) -> list[str]:
    """a.b.c as its parts; nothing for what does not begin with a name."""
    if isinstance(node, ast.Name):
        return [node.id]
    before = dotted(node.value) if isinstance(node, ast.Attribute) else []
    return [*before, node.attr] if before and isinstance(node, ast.Attribute) else []


def owner_of(name: str) -> str:
    """The longest part of a dotted name that is a module."""
    parts = name.split(".")
    while parts and ".".join(parts) not in MODULES:
        parts.pop()
    return ".".join(parts)


def private_names(source: str, module: str) -> set[str]:
    """Private names of other modules of ours that a module imports or reaches through what it imports."""
    tree, found, bound = ast.parse(source), set(), {}
    for node in ast.walk(tree):
        for name, stands_for in bound_by(node):
            if stands_for.split(".")[0] == "spacerl":
                bound[name] = stands_for
                found.add(stands_for)
        if isinstance(node, ast.ImportFrom | ast.Import):
            found |= {name for name in modules_of(node, module) if name.split(".")[0] == "spacerl"}
    for node in ast.walk(tree):
        parts = dotted(node)
        if len(parts) > 1 and parts[0] in bound:
            found.add(".".join([bound[parts[0]], *parts[1:]]))
        if isinstance(node, ast.Call) and dotted(node.func) == ["getattr"] and isinstance(node.args[1], ast.Constant):
            of = dotted(node.args[0])
            if of and of[0] in bound:
                found.add(".".join([bound[of[0]], *of[1:], str(node.args[1].value)]))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and BY_NAME.fullmatch(node.value):
            found.add(node.value.replace(":", "."))
    return {name for name in found if owner_of(name) != module and any(map(is_private, name.split(".")))}


@pytest.mark.parametrize("module", sorted(MODULES))
def test_no_module_uses_private_names_of_another(module):
    """Between packages, and within them too."""
    assert not private_names(MODULES[module].read_text(), module)


@pytest.mark.parametrize(
    "source",
    [
        "from spacerl.envs.drawing import _Canvas",
        "from spacerl.envs import drawing\ndrawing._Canvas()",
        "from spacerl.envs import drawing as pen\ndef f():\n    return pen._Canvas.line(3)",
        "import spacerl.envs.drawing\nspacerl.envs.drawing._Canvas",
        "import spacerl.envs.drawing as pen\npen._Canvas",
        "from spacerl.envs.drawing import Scene\nScene._secret",
        "from spacerl.envs import drawing\ngetattr(drawing, '_Canvas')",
        "from spacerl.envs._hidden import thing",
        "def f():\n    from spacerl.envs.drawing import _Canvas",
        "frame = 'spacerl.envs.drawing:_frame'",
    ],
)
@pytest.mark.parametrize("module", ["spacerl.envs.make", "spacerl.envs.ant.drawing", "spacerl.rollout.film"])
def test_the_reader_of_private_names_sees_them(source, module):
    assert private_names(source, module)


@pytest.mark.parametrize(
    "source",
    [
        "from spacerl.envs.drawing import Scene\nScene()._replace, Scene._fields, Scene.__name__",
        "from spacerl.envs import drawing\ndrawing.point_frame",
        "import numpy\nnumpy._core\nfrom numpy import _core",
        "def f(drawing):\n    return drawing._canvas",
    ],
)
def test_what_is_public_or_of_others_is_no_private_name(source):
    assert not private_names(source, "spacerl.rollout.film")


# Sizes and habits -----------------------------------------------------------------------------------------------------

LONGEST = 400  # lines
TASK_DEFINITIONS = ("envs/ant/robot.py", "envs/point/robot.py", "envs/tasks.py")


def test_the_package_is_seen_at_a_glance():
    assert len([path for path in HOME.iterdir() if path.name != "__pycache__"]) <= 14


@pytest.mark.parametrize("module", sorted(MODULES))
def test_files_are_short_but_for_definitions_of_tasks(module):
    place = MODULES[module].relative_to(HOME).as_posix()
    assert place in TASK_DEFINITIONS or len(MODULES[module].read_text().splitlines()) <= LONGEST


def questions_about_environments(source: str) -> list[str]:
    """Calls that ask an environment which attributes it has."""
    calls = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and node.args]
    asking = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "hasattr"]
    return [
        f"line {call.lineno}: {ast.unparse(call)}"
        for call in asking
        if re.search(r"(^|[._])envs?(\[.*\])?$", ast.unparse(call.args[0]))
    ]


@pytest.mark.parametrize("module", sorted(MODULES))
def test_environments_are_known_by_their_class_and_not_by_their_attributes(module):
    """What a user gave is looked at where it becomes one of ours."""
    if not is_in(module, "spacerl.envs.make", "spacerl.envs.host"):
        assert not questions_about_environments(MODULES[module].read_text())


def test_the_reader_of_questions_sees_them():
    for source in ("hasattr(env, 'a')", "hasattr(parts.env, 'a')", "hasattr(jax_env, 'a')", "hasattr(x.envs[0], 'a')"):
        assert questions_about_environments(source)
    assert not questions_about_environments("hasattr(value, 'detach'); hasattr(environ, 'a'); getattr(env, 'a')")


@pytest.mark.parametrize("module", sorted(MODULES))
def test_nothing_reads_or_writes_pickles(module):
    pickling = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal"}
    assert not {name for name in imported(module) if name.split(".")[0] in pickling}
    text = MODULES[module].read_text()
    assert not re.search(r"allow_pickle|\bnp\.load\(|\bnp\.save\(|(?<![\w.])(eval|exec)\(", text)
