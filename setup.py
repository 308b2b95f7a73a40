"""The README as an index shows it: a page there has no files beside it, so that links must be whole or plain text."""

import re
from pathlib import Path

from setuptools import setup

REPOSITORY = ""  # where the sources are published, such as https://host/owner/spacerl; empty until they are


def for_an_index(text: str, repository: str = REPOSITORY) -> str:
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
    readme = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")
    setup(long_description=for_an_index(readme), long_description_content_type="text/markdown")
