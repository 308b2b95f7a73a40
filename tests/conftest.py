"""Fixtures that several test files share. Functions and classes that they share are in the package `support`."""

from __future__ import annotations

import os
from pathlib import Path

import jax
import pytest
from jax.experimental.compilation_cache import compilation_cache

import spacerl
from support.compilation import quick_options

pytest.register_assert_rewrite("support.learners", "support.runs")


def programs_folder(tmp_path_factory) -> Path:
    """Where compiled programs are kept during a session, for all of its processes."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "programs"


@pytest.fixture(scope="module")
def quick_compilation(tmp_path_factory):
    """The programs of these tests are tiny and many: each is compiled once, and without much optimisation."""
    jit, options, cache = jax.jit, quick_options(), jax.config.jax_compilation_cache_dir
    jax.config.update("jax_disable_most_optimizations", True)
    jax.config.update("jax_compilation_cache_dir", str(programs_folder(tmp_path_factory)))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    compilation_cache.reset_cache()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jax, "jit", lambda *given, **named: jit(*given, compiler_options=options, **named))
        yield
    jax.config.update("jax_disable_most_optimizations", False)
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
