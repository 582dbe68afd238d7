"""What mkdocs asks of us: pages for the files that stand outside docs/, and for the executed notebooks.

A link such as ../examples/own_model.py leads to the file in the repository and to a page with its text on the site;
SECURITY.md and its like become pages as they are.
"""

from __future__ import annotations

import json
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parents[1]
ALWAYS = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
LANGUAGES = {".py": "python", ".sh": "sh", ".toml": "toml"}
LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)")  # the path of a Markdown link
NAMED = re.compile(r"\[([\w/]+\.md)\](?=\(([^)#\s]+))")  # a link whose words are a file's name
NOTEBOOKS = ("own_problem", "theory")
CELL = re.compile(r"<td.*?</td>", flags=re.S)
CODE = re.compile(r"(<code>.*?</code>)", flags=re.S)
DASH = re.compile(r"(?<=\de)-(?=\d)|(?<=\d)–(?=\d)")  # of 1e-7 and 0.9–1.1
PICTURE = re.compile(r'(<a [^>]*>)?(<img [^>]*src="(?!data:)([^"]+)"[^>]*>)')
ADDED = "playground/"  # playground/build/hook.py adds it as it is


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the generated pages: what pages link to outside docs/, and what those link to in turn."""
    pages = {file.src_uri: (ROOT / "docs" / file.src_uri).read_text() for file in files.documentation_pages()}
    outside = set(ALWAYS).union(*(links_out(text, f"docs/{uri}") for uri, text in pages.items()))
    while new := set().union(*(links_out(text_of(name), name) for name in outside)) - outside:
        outside |= new
    for name in sorted(outside):
        files.append(File.generated(config, page_of(name), content=text_of(name)))
    for name in NOTEBOOKS:
        files.append(File.generated(config, f"notebooks/{name}.md", content=notebook_text(name)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    """Turns links to files of the repository into links to their pages, and names of files into titles of pages."""
    uri = page.file.src_uri
    folder = posixpath.dirname(origin_of(uri))

    def title(found: re.Match[str]) -> str:
        return f"[{title_of(posixpath.join(folder, found[2]))}]"

    def led(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(folder, found[1]))
        where = target.removeprefix("docs/") if target.startswith("docs/") else page_of(target)
        return posixpath.relpath(where, posixpath.dirname(uri) or ".")

    return LINK.sub(led, NAMED.sub(title, markdown))


def on_page_content(html: str, **_) -> str:
    """Keeps numbers in tables on one line, and lets a click on a picture open it in full size."""

    def joined(cell: re.Match[str]) -> str:
        parts = CODE.split(cell[0])
        parts[::2] = [DASH.sub("\u2060\\g<0>\u2060", part).replace(" %", "\u00a0%") for part in parts[::2]]
        return "".join(parts)

    def linked(picture: re.Match[str]) -> str:
        return picture[0] if picture[1] else f'<a href="{picture[3]}">{picture[2]}</a>'

    return PICTURE.sub(linked, CELL.sub(joined, html))


def title_of(name: str) -> str:
    """The first heading of a page of the repository."""
    return (ROOT / name).read_text().split("\n", 1)[0].removeprefix("# ")


def origin_of(uri: str) -> str:
    """Where in the repository the text of a page stands."""
    if not uri.startswith("repository/"):
        return f"docs/{uri.removeprefix('notebooks/')}"
    name = uri.removeprefix("repository/")
    return name if (ROOT / name).exists() else name.removesuffix(".md")


def links_out(text: str, origin: str) -> set[str]:
    """The files and folders outside docs/ that a text links to, as paths in the repository."""
    if not origin.endswith(".md"):
        return set()
    targets = {posixpath.normpath(posixpath.join(posixpath.dirname(origin), path)) for path in LINK.findall(text)}
    kept = {target for target in targets if not target.startswith(("docs/", ".", ADDED))}
    return {target for target in kept if (ROOT / target).exists()}


def page_of(name: str) -> str:
    """The page of a file or folder outside docs/."""
    if name.startswith(ADDED):
        return name
    return f"repository/{name}" if name.endswith(".md") else f"repository/{name}.md"


def text_of(name: str) -> str:
    """Its text as Markdown: code is fenced, a folder is all its files."""
    path = ROOT / name
    if name.endswith(".md"):
        return path.read_text()
    members = sorted(one for one in path.iterdir() if one.suffix in LANGUAGES) if path.is_dir() else [path]
    parts = [f"# {name}"]
    for one in members:
        parts += [f"## {one.name}"] if path.is_dir() else []
        parts.append(f"```{LANGUAGES.get(one.suffix, 'text')}\n{one.read_text()}```")
    return "\n\n".join(parts) + "\n"


def notebook_text(name: str) -> str:
    """An executed notebook as a page: its words, its code and what each cell showed."""
    parts = []
    for cell in json.loads((ROOT / "docs" / f"{name}.ipynb").read_text())["cells"]:
        source = "".join(cell["source"])
        parts.append(source if cell["cell_type"] == "markdown" else f"```python\n{source}\n```")
        parts += [shown(output) for output in cell.get("outputs", [])]
    note = f"*[{name}.md]({name}.md), executed: [{name}.ipynb]({name}.ipynb) to go on with it yourself.*"
    title, _, rest = "\n\n".join(parts).partition("\n")
    return f"{title}, as a notebook\n\n{note}\n{rest}\n"


def shown(output: dict) -> str:
    """What a cell showed: a picture, a table of ours, or text."""
    data = output.get("data", {})
    if "image/png" in data:
        picture = "".join(data["image/png"]).strip()
        return f'<img alt="what the cell drew" width="480" src="data:image/png;base64,{picture}">'
    if "text/html" in data:
        return "\n".join(line for line in "".join(data["text/html"]).splitlines() if line.strip())
    text = "".join(output.get("text", data.get("text/plain", "")))
    return f"```text\n{text.rstrip()}\n```"
