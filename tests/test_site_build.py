"""The site is built strictly, and nothing in it is loaded from another host; tests/browser/test_site.py looks at it."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

from docs.hooks import on_page_content

ROOT = Path(__file__).parents[1]
LOADS = {"script": "src", "img": "src", "link": "href", "iframe": "src", "source": "src", "video": "src"}


class Loaded(HTMLParser):
    """What a page makes a browser load."""

    def __init__(self):
        super().__init__()
        self.addresses = []

    def handle_starttag(self, tag, attrs):
        address = dict(attrs).get(LOADS.get(tag, ""))
        if address:
            self.addresses.append(address)


def test_numbers_in_tables_stay_on_one_line():
    """By word joiners (U+2060) and no-break spaces (U+00A0), but not in code, which readers copy."""
    cell = "<td>3e-7, 0.9–1.1, 9 %, <code>1e-7</code></td>"
    joined = "<td>3e\u2060-\u20607, 0.9\u2060–\u20601.1, 9\u00a0%, <code>1e-7</code></td>"
    assert on_page_content(f"<p>3e-7</p>{cell}") == f"<p>3e-7</p>{joined}"


def test_a_picture_leads_to_itself_unless_it_leads_elsewhere():
    drawn, inside = '<img alt="a" src="a.png" />', '<img alt="b" src="data:image/png;base64,b">'
    assert on_page_content(f"<p>{drawn}</p>") == f'<p><a href="a.png">{drawn}</a></p>'
    for page in (f'<a href="other/">{drawn}</a>', inside):
        assert on_page_content(page) == page


@pytest.mark.release
def test_the_site(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    pages = list(tmp_path.rglob("*.html"))
    assert len(pages) > 40
    assert tmp_path / "playground" / "index.html" in pages
    assert 'href="playground/"' in (tmp_path / "index.html").read_text()
    for page in pages:
        parser = Loaded()
        parser.feed(page.read_text())
        assert parser.addresses
        assert [one for one in parser.addresses if re.match(r"(https?:)?//", one)] == [], page
        assert not re.search(r"<a [^>]*>[\w/]+\.md</a>", page.read_text()), (
            f"{page} names a file where a title should be"
        )
    for sheet in tmp_path.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*['\"]?(https?:)?//", sheet.read_text()), sheet
