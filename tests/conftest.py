"""Fixtures that several test files share. Functions and classes that they share are in the package `support`."""

from __future__ import annotations

import os
import signal
import tempfile
from importlib import metadata
from pathlib import Path

# Before jax starts: half of the time of these tests is compilation, and this makes it quicker where XLA knows the flag.
if metadata.version("jaxlib").startswith("0.10."):
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_use_fusion_emitters=false".strip()

# A process that was started in the background, or by nohup, ignores signals, and so does all that it starts: tests send
# them to runs, which would go on for ever.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) == signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

# Run folders are signed with a key that is kept with the user: not with the one who runs the tests.
os.environ["XDG_STATE_HOME"] = tempfile.mkdtemp(prefix="spacerl-state-")

import jax
import optax  # noqa: F401  its own jit-functions must be made before tests that compile quickly replace jax.jit
import pytest
from jax.experimental.compilation_cache import compilation_cache

import spacerl
from support.compilation import quick_options

pytest.register_assert_rewrite("support.learners", "support.runs")


@pytest.fixture(scope="module", autouse=True)
def less_optimisation(request):
    """Most of these tests compile for longer than they compute. A module that computes says OPTIMISED = True."""
    quick = not getattr(request.module, "OPTIMISED", False)
    jax.config.update("jax_disable_most_optimizations", quick)
    yield
    jax.config.update("jax_disable_most_optimizations", False)


def programs_folder(tmp_path_factory) -> Path:
    """Where compiled programs are kept during a session, for all of its processes."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"


@pytest.fixture(scope="module")
def quick_compilation(tmp_path_factory, less_optimisation):
    """The programs of these tests are tiny and many: each is compiled once, and without much optimisation."""
    jit, options, cache = jax.jit, quick_options(), jax.config.jax_compilation_cache_dir
    jax.config.update("jax_compilation_cache_dir", str(programs_folder(tmp_path_factory)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", lambda *given, **named: jit(*given, compiler_options=options, **named))
        yield
    jax.config.update("jax_compilation_cache_dir", cache)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 1.0)
    compilation_cache.reset_cache()


@pytest.fixture(scope="module")
def quick_environment(tmp_path_factory) -> dict[str, str]:
    """Environment of a process that imports this package and compiles as the tests do, keeping its programs."""
    programs = programs_folder(tmp_path_factory)
    paths = os.pathsep.join(filter(None, [str(Path(spacerl.__file__).parents[1]), os.environ.get("PYTHONPATH")]))
    flags = " ".join(f"--{name}={str(value).lower()}" for name, value in quick_options().items())
    return {
        **os.environ,
        "PYTHONPATH": paths,
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
        "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
        "JAX_COMPILATION_CACHE_DIR": str(programs),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    }


@pytest.fixture
def record():
    """`spacerl record` with these arguments as a process, which is gone after the test."""
    from support.recording import Recording

    made = []

    def start(*arguments: str) -> Recording:
        made.append(Recording(*arguments))
        return made[-1]

    yield start
    for recording in made:
        recording.stop()
