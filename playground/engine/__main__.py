"""`python -m playground.engine FOLDER` writes default.json, story-N.json and library.zip into the folder of the page.

default.json has the settings with which the page opens and their result. "live" says whether the folder has Python for
the browser, in pyodide/. Each other story has a file too, so that it plays before Python has loaded. library.zip has
the engine and the part of the library that it uses.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from playground.engine.settings import stories
from playground.engine.worker import simulate  # with the worker all that the browser needs is loaded

PARTS = ("stgt", "playground")


def main(folder: Path) -> None:
    for k, story in enumerate(stories()):
        settings = story["settings"]
        recorded = {"settings": settings, "live": (folder / "pyodide").is_dir(), "result": simulate(settings)}
        path = folder / (f"story-{k}.json" if k else "default.json")
        path.write_text(json.dumps(recorded, allow_nan=False, separators=(",", ":")), encoding="utf-8")
    with ZipFile(folder / "library.zip", "w", ZIP_DEFLATED) as library:
        for name, module in sorted(sys.modules.items()):
            if name.split(".")[0] in PARTS and module.__file__:
                path, place = Path(module.__file__), name.replace(".", "/")
                place = f"{place}/__init__.py" if path.name == "__init__.py" else f"{place}.py"
                library.writestr(ZipInfo(place), path.read_bytes(), ZIP_DEFLATED)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
