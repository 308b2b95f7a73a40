"""Road networks: written in SUMO's plain XML by our code, built by its netconvert, kept.

The tasks' own networks come with the package, so that a run needs libsumo alone. Other geometry is built at its first
use and kept in the cache folder. A network file of the user's is looked at before SUMO is: SUMO ends the process with
a segmentation fault on some broken ones.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import tempfile
import xml.etree.ElementTree as ET
from collections.abc import Iterable
from pathlib import Path
from xml.sax.saxutils import quoteattr

from spacerl.types import InputError

SHIPPED = Path(__file__).parent / "networks"
INSTALL = "pip install 'spacerl[traffic]'"


def element(tag: str, **attributes: object) -> str:
    """One XML element without content; a trailing underscore lets an attribute have the name of a keyword."""
    pairs = (f"{name.rstrip('_')}={quoteattr(_text(value))}" for name, value in attributes.items() if value is not None)
    return f"    <{tag} {' '.join(pairs)}/>"


def _text(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def document(tag: str, elements: Iterable[str]) -> str:
    return "\n".join([f"<{tag}>", *elements, f"</{tag}>", ""])


@dataclasses.dataclass(frozen=True)
class PlainNetwork:
    """A road network as SUMO's netconvert reads it."""

    name: str
    nodes: tuple[str, ...]
    edges: tuple[str, ...]
    connections: tuple[str, ...]

    def documents(self) -> dict[str, str]:
        return {tag: document(tag, getattr(self, tag)) for tag in ("nodes", "edges", "connections")}

    @property
    def file_name(self) -> str:
        """Named after what it is made of: other geometry is another file."""
        digest = hashlib.sha256("".join(self.documents().values()).encode()).hexdigest()
        return f"{self.name}-{digest[:12]}.net.xml"


def network_file(plain: PlainNetwork, folder: Path | None = None) -> Path:
    """The built network: shipped, kept from an earlier use, or built now."""
    shipped = SHIPPED / plain.file_name
    if shipped.is_file():
        return shipped
    folder = folder or cache_folder()
    kept = folder / plain.file_name
    if not kept.is_file():
        text = build(plain)
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=folder, suffix=".part", delete=False) as file:
            file.write(text)
        os.replace(file.name, kept)
    return kept


def cache_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "spacerl" / "traffic"


def build(plain: PlainNetwork) -> str:
    """The network that netconvert makes of it, without the comment on when and where."""
    program = sumo_program("netconvert", f"the road network '{plain.name}' with these settings must be built")
    with tempfile.TemporaryDirectory() as scratch:
        for tag, text in plain.documents().items():
            (Path(scratch) / f"{tag}.xml").write_text(text)
        inputs = ("--node-files", "nodes.xml", "--edge-files", "edges.xml", "--connection-files", "connections.xml")
        rules = ("--no-turnarounds", "true", "--no-internal-links", "false", "--xml-validation", "never")
        done = subprocess.run(
            [program, *inputs, *rules, "--output-file", "net.xml"], cwd=scratch, capture_output=True, text=True
        )
        if done.returncode:
            raise InputError(f"SUMO's netconvert cannot build '{plain.name}': {' '.join(done.stderr.split())}")
        return re.sub(r"<!--.*?-->\s*", "", (Path(scratch) / "net.xml").read_text(), flags=re.DOTALL)


def sumo_program(name: str, purpose: str) -> str:
    """Path of one of SUMO's programs: of the Python package, else on the path."""
    spec = importlib.util.find_spec("sumo")
    roots = list(spec.submodule_search_locations or []) if spec is not None else []
    for root in roots:
        if (path := Path(root) / "bin" / name).is_file():
            return str(path)
    found = shutil.which(name)
    if found is None:
        raise InputError(f"{purpose}, and SUMO's {name} is not installed: {INSTALL}")
    return found


def checked_network(path: str, needed: Iterable[str], lights: Iterable[str] = ()) -> Path:
    """A network file of the user's, which must have the edges and traffic lights that the task works with."""
    file = Path(path).expanduser()
    try:
        root = ET.parse(file).getroot()
    except FileNotFoundError:
        raise InputError(f"network '{path}' is not there: give a file made by SUMO's netconvert") from None
    except (OSError, ET.ParseError, UnicodeDecodeError) as error:
        raise InputError(f"network '{path}' cannot be read ({error}): give a file made by SUMO's netconvert") from error
    lanes = {edge.get("id") for edge in root.iter("edge") if edge.find("lane") is not None}
    if root.tag != "net" or root.find("location") is None or root.find("junction") is None or not lanes:
        raise InputError(f"network '{path}' holds no road network: give a file made by SUMO's netconvert")
    for kind, wanted, there in (
        ("edge", needed, lanes),
        ("traffic light", lights, {light.get("id") for light in root.iter("tlLogic")}),
    ):
        missing = [name for name in wanted if name not in there]
        if missing:
            raise InputError(
                f"network '{path}' has no {kind} '{missing[0]}': the task works with {', '.join(sorted(set(wanted)))}"
            )
    return file
