"""Files written whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path


def write_atomically(path: Path, write: Callable[[Path], object]) -> Path:
    """Has `write` fill a temporary file beside `path`, then puts it in place in one step."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        temporary.chmod(0o644)
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def output_folder(path: Path, force: bool = False) -> Path:
    """A folder to write results into: new or empty, unless `force` allows to overwrite what it holds."""
    if path.exists() and not path.is_dir():
        raise ValueError(f"--out {path} is a file: give a folder.")
    if path.exists() and any(path.iterdir()) and not force:
        raise ValueError(f"--out {path} is not empty: give another folder, or --force to overwrite what is there.")
    try:
        path.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path):
            pass
    except OSError as error:
        raise ValueError(f"--out {path} cannot be written ({error.strerror}): give another folder.") from None
    return path
