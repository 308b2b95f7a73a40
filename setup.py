"""The README as an index shows it: a page there has no files beside it, so that links must be whole or plain text."""

import re
import tomllib
from pathlib import Path

from setuptools import setup

HERE = Path(__file__).parent


def repository_of(pyproject: str) -> str:
    """Where the sources are published: `Repository` among the project's URLs, such as https://host/owner/spacerl. It is
    empty until they are."""
    return tomllib.loads(pyproject)["project"].get("urls", {}).get("Repository", "").rstrip("/")


def for_an_index(text: str, repository: str) -> str:
    """README.md with links to its repository, or, where there is none yet, without pictures and with the names of
    files in the place of links to them."""

    def image(found: re.Match[str]) -> str:
        words, target = found.groups()
        return f"![{words}]({repository}/raw/main/{target})" if repository else ""

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        return f"[{words}]({repository}/blob/main/{target})" if repository else words

    text = re.sub(r"!\[([^\]]*)\]\((?!https?:)([^)]*)\)\n*", image, text)
    return re.sub(r"(?<!!)\[([^\]]*)\]\((?!https?:|#)([^)]*)\)", link, text)


if __name__ == "__main__":
    repository = repository_of((HERE / "pyproject.toml").read_text(encoding="utf-8"))
    readme = (HERE / "README.md").read_text(encoding="utf-8")
    setup(long_description=for_an_index(readme, repository), long_description_content_type="text/markdown")
