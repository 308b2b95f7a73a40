"""What is published: the wheel and the source archive, the README on an index page, the site, the notebook."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import spacerl
import spacerl.envs

ROOT = Path(__file__).parent.parent


def setup_module_of_the_project():
    spec = importlib.util.spec_from_file_location("project_setup", ROOT / "setup.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_readme_of_an_index_page_has_no_link_to_a_file_beside_it():
    text = (ROOT / "README.md").read_text()
    for_an_index = setup_module_of_the_project().for_an_index
    beside = r"\]\((?!https?:|#)"
    assert re.search(beside, text), "there is nothing to change"
    plain = for_an_index(text, "")
    assert not re.search(beside, plain)
    assert "![" not in plain
    assert "docs/environments.md" in plain  # by name
    linked = for_an_index(text, "https://example.org/spacerl")
    assert not re.search(beside, linked)
    assert "(https://example.org/spacerl/raw/main/docs/images/quickstart.png)" in linked
    assert "[docs/environments.md](https://example.org/spacerl/blob/main/docs/environments.md)" in linked


def test_where_the_sources_are_published_is_said_once():
    """One line among the project's URLs makes the README's pictures and links whole, and is part of the metadata."""
    repository_of = setup_module_of_the_project().repository_of
    pyproject = (ROOT / "pyproject.toml").read_text()
    there = tomllib.loads(pyproject)["project"]["urls"]
    assert repository_of(pyproject) == there.get("Repository", "")
    published = pyproject.replace("[project.urls]", '[project.urls]\nRepository = "https://example.org/spacerl/"')
    if "Repository" not in there:
        assert repository_of(published) == "https://example.org/spacerl"


def test_every_file_that_the_readme_and_the_docs_link_to_exists():
    for page in [ROOT / "README.md", *ROOT.glob("docs/**/*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_page_is_part_of_the_site():
    """Results may be added without a line in its menu: the pages link to them."""
    listed = set(re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE))
    there = {str(page.relative_to(ROOT / "docs")) for page in ROOT.glob("docs/**/*.md")}
    assert listed <= there
    assert not {page for page in there - listed if not page.startswith("results/")}


def test_the_python_of_the_tutorials_can_be_read_and_names_what_there_is():
    for page in ROOT.glob("docs/tutorials/*.md"):
        for block in re.findall(r"^```python\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL):
            compile(block, page.name, "exec")
            for name in re.findall(r"spacerl\.([a-z_A-Z]+)", block):
                assert hasattr(spacerl, name), f"{page.name} uses spacerl.{name}"


@pytest.mark.parametrize(("given", "said"), [([], "-e '.'"), (["EXTRAS=sb3,video"], "-e '.[sb3,video]'")])
def test_make_installs_with_extras_and_without(given, said):
    if shutil.which("make") is None:
        pytest.skip("no make on this machine")
    make = ["make", "--dry-run", "--silent", "install", *given]
    steps = subprocess.run(make, cwd=ROOT, check=True, capture_output=True, text=True).stdout.splitlines()
    assert steps[-1].endswith(said)


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path):
    pytest.importorskip("mkdocs")
    pytest.importorskip("mkdocstrings")
    subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path], cwd=ROOT, check=True
    )
    reference = (tmp_path / "api" / "index.html").read_text()
    for name in ("train", "check_env", "load_policy", "export", "film", "sweep", "iterate"):
        assert f'id="spacerl.api.{name}"' in reference


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    pytest.importorskip("build")
    out = tmp_path_factory.mktemp("dist")
    copy = tmp_path_factory.mktemp("source") / "spacerl"
    files = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, check=True)
    for name in files.stdout.decode().splitlines():
        if (ROOT / name).is_file():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((ROOT / name).read_bytes())
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", out, copy]
    subprocess.run(command, check=True, capture_output=True)
    return out


TRY = """
import spacerl, pathlib, sys
assert pathlib.Path(spacerl.__file__).is_relative_to(sys.argv[1]), spacerl.__file__
assert spacerl.load_policy("near", task="point-circle").predict([0.0] * 9)[0].shape == (2,)
run = spacerl.train("point-circle", algorithm="trpo", batch_size=100, hidden=(4,), updates=1, out="run", progress=False)
print(spacerl.report([run.folder]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["*.whl", "*.tar.gz"])
def test_what_is_published_installs_and_works(built, tmp_path, kind):
    (archive,) = built.glob(kind)
    target = tmp_path / "installed"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps"]
    subprocess.run([*pip, "--no-build-isolation", "--target", target, archive], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target), "JAX_COMPILATION_CACHE_DIR": str(tmp_path / "programs")}
    program = [sys.executable, "-c", TRY, target]
    done = subprocess.run(program, cwd=tmp_path, env=environment, check=True, capture_output=True, text=True)
    assert (tmp_path / done.stdout.strip()).is_file()


@pytest.mark.slow
def test_the_metadata_is_what_an_index_needs(built):
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = [each for each in archive.namelist() if each.endswith("METADATA")]
        metadata = email.message_from_bytes(archive.read(name))
        assert "spacerl/reporting/templates/report.js" in archive.namelist()
        assert "spacerl/py.typed" in archive.namelist()
    assert metadata["Version"] == spacerl.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert not re.search(r"\]\((?!https?:|#)", metadata.get_payload())
    assert "Programming Language :: Python :: 3.13" in metadata.get_all("Classifier")
    assert metadata.get_all("Project-URL")
    (source,) = built.glob("*.tar.gz")
    with tarfile.open(source) as archive:
        names = {each.split("/", 1)[1] for each in archive.getnames() if "/" in each}
    assert {"README.md", "LICENSE", "mkdocs.yml", "docs/index.md", "examples/first_day.ipynb"} <= names


@pytest.mark.slow
def test_installed_packages_fit_each_other():
    subprocess.run([sys.executable, "-m", "pip", "check"], check=True, capture_output=True)


def test_the_notebook_is_kept_without_its_outputs():
    notebook = json.loads((ROOT / "examples" / "first_day.ipynb").read_text())
    codes = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in codes)
    for cell in codes:
        compile("".join(cell["source"]), "notebook", "exec")


@pytest.mark.slow
def test_the_notebook_runs_and_shows_progress(tmp_path):
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(ROOT / "examples" / "first_day.ipynb", as_version=4)
    nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": str(tmp_path)}}).execute()
    outputs = [output for cell in notebook.cells if cell.cell_type == "code" for output in cell.outputs]
    pages = ["".join(each["data"].get("text/html", "")) for each in outputs if "data" in each]
    assert any("undiscounted" in page for page in pages)
    assert any("of 60" in each.get("text", "") for each in outputs)
