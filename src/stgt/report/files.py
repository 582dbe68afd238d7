"""The folder that results go into."""

from __future__ import annotations

import tempfile
from pathlib import Path


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
