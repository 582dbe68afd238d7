"""The pages of the documentation and the code that stands in them.

What a block is, its language says:

- ```` ```python ````: runs; the blocks of a page are one script, in their order. `<!-- run … -->` above a block is code
  that readers are spared.
- ```` ```py ````: Python for another library, to be read. What it imports must exist if the library is installed.
- ```` ```console ````: lines after `$ ` are run in the page's folder, in their order, after the Python of the page.
- ```` ```sh ````: commands that take too long to run here, or data of your own; each must exist, with its options.
- ```` ```toml ````: a spec. With `title="NAME"` a block of any language is also written to the page's folder.
- ```` ```diff ````, ```` ```text ````: to be read. With `title="prints"` each line of it is one that the page
  prints.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from markdown_it import MarkdownIt

ROOT = Path(__file__).parents[1]
PRINTS = "prints"
LANGUAGES = ("python", "py", "console", "sh", "toml", "csv", "diff", "text")
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
]


@dataclass(frozen=True)
class Block:
    """A block of code: its language, the file it is written to if it has a title, and the line it begins on, from 0."""

    language: str
    title: str | None
    text: str
    line: int


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@cache
def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page and its hidden code, in their order."""
    found = []
    for token in MarkdownIt("commonmark").enable("table").parse(page.read_text()):
        line = token.map[0] + 1 if token.map else 0
        if token.type == "fence":
            title = re.search(r'title="([^"]+)"', token.info)
            found.append(Block(token.info.split()[0], title and title[1], token.content, line))
        elif token.type == "html_block" and token.content.startswith("<!-- run\n"):
            code = token.content.removeprefix("<!-- run\n").rsplit("-->", 1)[0]
            found.append(Block("python", None, textwrap.dedent(code), line))
    return found


def indented(page: Path) -> list[str]:
    """The indented blocks of a page, whose language nobody can know."""
    tokens = MarkdownIt("commonmark").enable("table").parse(page.read_text())
    return [token.content for token in tokens if token.type == "code_block"]


def started(page: Path) -> set[str]:
    """The files that the page starts by themselves, with `$ python FILE` or `$ torchrun … FILE`."""
    lines = [line.split() for line in commands(page, "console")]
    return {word for program, *words in lines if program in ("python", "torchrun") for word in words}


def script(page: Path) -> str:
    """The Python of a page as one script, in which every line has the number that it has on the page.

    A block that is started by itself is left out.
    """
    lines: list[str] = []
    for block in blocks(page):
        if block.language == "python" and block.title not in started(page):
            lines += [""] * (block.line - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


def commands(page: Path, language: str) -> list[str]:
    """The command lines of a page's ```sh or ```console blocks."""
    text = "\n".join(block.text.replace("\\\n", " ") for block in blocks(page) if block.language == language)
    lines = [line.strip() for line in text.splitlines()]
    if language == "console":
        return [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    return [line for line in lines if line and not line.startswith("#")]


def write_files(page: Path, folder: Path) -> set[str]:
    """Writes the blocks that have a title; their names."""
    titled = [block for block in blocks(page) if block.title not in (None, PRINTS)]
    for block in titled:
        (folder / str(block.title)).write_text(block.text)
    return {str(block.title) for block in titled}
