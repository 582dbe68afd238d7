"""The playground as a part of the site: the page, its first result, and Python for the browser.

Pyodide comes from npm, in one version with one checksum. Without npm or a network the site is built without it. The
page then shows its first result, and says that it cannot compute others.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Link, Navigation

FOLDER = Path(__file__).parents[1]
ROOT = FOLDER.parent
CACHE = FOLDER / ".cache"  # git ignores it
PYODIDE = "0.29.5"
SHA512 = (
    "4e462b52ff66f1099f2260032919a9c19ba52f8f04d2e51a0523be76f4502b20"
    "09734aa1f60bbb8e7f1bb721cf8773599b5af6207d98ac9848afb43607dbab03"
)
NPM_TIMEOUT = 300  # seconds
RUNTIME = ("pyodide.mjs", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
PAGE = ("*.html", "*.css", "*.js", "*.json", "*.svg")
log = logging.getLogger("mkdocs.hooks.playground")
_made = Path(tempfile.mkdtemp(prefix="playground-"))  # of this process, as several may build at once
atexit.register(shutil.rmtree, _made, ignore_errors=True)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the page and what it loads."""
    for name, path in sorted(built().items()):
        files.append(File.generated(config, f"playground/{name}", abs_src_path=str(path)))
    return files


def on_nav(nav: Navigation, config: MkDocsConfig, files: Files) -> Navigation:
    """Adds the page to the navigation, after Home. It is not a page of mkdocs, which mkdocs.yml could name."""
    nav.items.insert(1, Link("Playground", "playground/"))
    return nav


def built() -> dict[str, Path]:
    """All files of the playground, by their names in its folder."""
    made = _made / "site"
    shutil.rmtree(made, ignore_errors=True)
    made.mkdir()
    live = add_runtime(made / "pyodide")
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "src")))}
    subprocess.run([sys.executable, "-m", "playground.engine", str(made)], check=True, cwd=ROOT, env=environment)
    if live:
        subprocess.run(["node", str(FOLDER / "build" / "compile.mjs"), str(made)], check=True)
    own = [path for pattern in PAGE for path in FOLDER.glob(pattern) if path.name != "default.json"]
    return {path.name: path for path in own} | {
        path.relative_to(made).as_posix(): path for path in made.rglob("*") if path.is_file()
    }


def add_runtime(folder: Path) -> bool:
    """Puts what is needed of Pyodide into the folder; False, and no folder, if there is no npm or no network."""
    package = CACHE / f"pyodide-{PYODIDE}.tgz"
    if not package.exists():
        if not (shutil.which("npm") and shutil.which("node")):
            return _without("npm is not installed")
        command = ["npm", "pack", f"pyodide@{PYODIDE}", "--pack-destination", str(_made)]
        try:
            subprocess.run(command, capture_output=True, check=True, timeout=NPM_TIMEOUT)
        except subprocess.SubprocessError:
            return _without("npm could not load Pyodide")
        CACHE.mkdir(exist_ok=True)
        shutil.copy(_made / package.name, f"{package}.{os.getpid()}")
        os.replace(f"{package}.{os.getpid()}", package)  # at once: another build may look for it
    found = hashlib.sha512(package.read_bytes()).hexdigest()
    if found != SHA512:
        package.unlink()
        raise ValueError(f"Pyodide {PYODIDE} from npm has the checksum {found}, not the one in {Path(__file__).name}.")
    folder.mkdir()
    with tarfile.open(package) as archive:
        for name in RUNTIME:
            member = archive.extractfile(f"package/{name}")
            assert member is not None
            (folder / name).write_bytes(member.read())
    shutil.copy(FOLDER / "build" / "NOTICE.txt", folder)
    return True


def _without(why: str) -> bool:
    log.info("The playground is built without Python, because %s.", why)
    return False
