"""The site is built strictly, and nothing in it is loaded from another host; tests/browser/test_site.py looks at it."""

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import pytest

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
