"""Files written whole or not at all, tables in them, and the folder they go into. Standard library only."""

from __future__ import annotations

import csv
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Has `write` fill a temporary file beside `path`, then puts it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    given, path = path, path.resolve()  # a link stays one
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        os.umask(mask := os.umask(0))
        temporary.chmod(0o666 & ~mask)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return given


def write_text(path: Path, text: str) -> Path:
    """Writes a text file whole or not at all."""
    return write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV; their columns are all names that occur, in the order in which they do."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)

    return write_atomically(path, write)


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, as text."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def check_writable(folder: Path) -> None:
    """Makes the folder if there is none; an OSError if no file can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def output_folder(out: Path, force: bool = False) -> Path:
    """A folder to write results into: new or empty, unless `force` allows to overwrite what it holds."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"out {out} is a file: give a folder.")
    if out.exists() and any(out.iterdir()) and not force:
        raise ValueError(f"out {out} is not empty: give another folder, or force=True to overwrite what is there.")
    try:
        check_writable(out)
    except OSError as error:
        raise ValueError(f"out {out} cannot be written ({error.strerror}): give another folder.") from None
    return out
