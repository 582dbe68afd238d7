"""The API pages: one for each public module, and every name of `stgt` is said to be somewhere."""

import inspect
import re
from pathlib import Path

import stgt

ROOT = Path(__file__).parents[1]
API = ROOT / "docs" / "api"


def test_every_public_module_has_a_page():
    pages = {path.stem for path in API.glob("*.md")} - {"stgt"}
    modules = {name for name in stgt.__all__ if inspect.ismodule(getattr(stgt, name))}
    assert pages == modules | {"algorithms", "compare", "flower", "register", "simulator", "torch"}
    for name in pages:
        assert re.search(r"^::: stgt\.", (API / f"{name}.md").read_text(), flags=re.M)


def test_the_first_page_says_where_each_name_is():
    text = (API / "stgt.md").read_text()
    named = set(re.findall(r"`stgt\.(\w+)`", text))
    ours = set(stgt.list_algorithms())
    assert named - {"torch", "flower"} <= set(stgt.__all__)
    assert set(stgt.__all__) - ours <= named, "a name that the page does not have"
