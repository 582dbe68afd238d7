"""compile.mjs runs this in Pyodide: it replaces /library.zip and /standard.zip by forms that load faster."""

import json
import marshal
import sys
from importlib.util import MAGIC_NUMBER
from zipfile import ZIP_DEFLATED, ZipFile

# No time of a source file to compare with: a checksum instead, which is not checked.
HEADER = MAGIC_NUMBER + (1).to_bytes(4, "little") + bytes(8)


def use(settings: dict) -> None:
    """Uses all parts of the playground, so that all modules that they need are loaded."""
    sys.path.insert(0, "/library.zip")
    from playground.engine.worker import answer

    noisy = {**settings, "problem": {**settings["problem"], "noise": 0.1}}
    wrong = {**settings, "graph": {"kind": "rign"}}
    for message in (
        {"settings": noisy},
        {"settings": wrong},
        *({"export": kind, "settings": noisy} for kind in ("toml", "python")),
    ):
        answer(json.dumps(message))


def pack(path: str, *, keep_source: bool) -> None:
    """The modules of a zip file that are loaded, as bytecode."""
    with ZipFile(path) as archive:
        files = {name: archive.read(name) for name in archive.namelist() if name.endswith(".py")}
    with ZipFile(path, "w", ZIP_DEFLATED) as archive:
        for name, source in files.items():
            if name.removesuffix(".py").removesuffix("/__init__").replace("/", ".") not in sys.modules:
                continue
            archive.writestr(f"{name}c", HEADER + marshal.dumps(compile(source, name, "exec", dont_inherit=True)))
            if keep_source:
                archive.writestr(name, source)


use(json.loads(globals()["first"])["settings"])
pack("/standard.zip", keep_source=False)
pack("/library.zip", keep_source=True)
