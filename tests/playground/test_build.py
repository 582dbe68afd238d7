"""The build of the playground: what it makes without npm, and that the library's files need nothing else."""

import importlib.util
import json
import logging
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RUN = """
import json, sys
sys.path.insert(0, sys.argv[1])
from playground.engine.worker import answer
print(answer(json.dumps({"settings": json.loads(sys.argv[2])})))
"""


@pytest.fixture
def hook(tmp_path, monkeypatch):
    """The hook of mkdocs, with an empty cache."""
    spec = importlib.util.spec_from_file_location("playground_hook", ROOT / "playground" / "build" / "hook.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "CACHE", tmp_path)
    return module


def test_without_npm_the_page_has_its_first_run(hook, monkeypatch, caplog):
    """And the library runs from its zip file without any installed package."""
    monkeypatch.setattr(shutil, "which", lambda name: None)
    with caplog.at_level(logging.INFO):
        files = hook.built()
    assert caplog.messages == ["The playground is built without Python, because npm is not installed."]
    assert {"index.html", "worker.js", "stories.json", "default.json", "library.zip"} <= set(files)
    assert not [name for name in files if name.startswith("pyodide")]
    first = json.loads(files["default.json"].read_text())
    assert first["live"] is False
    command = [sys.executable, "-I", "-S", "-c", RUN, str(files["library.zip"]), json.dumps(first["settings"])]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert json.loads(printed)["result"] == first["result"]


def test_another_package_is_refused(hook, tmp_path):
    package = tmp_path / f"pyodide-{hook.PYODIDE}.tgz"
    package.write_bytes(b"another")
    with pytest.raises(ValueError, match="has the checksum"):
        hook.built()
    assert not package.exists(), "the next build asks npm again"
