"""The user's own data: features and labels from CSV, npz or LIBSVM files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

FORMATS = (".csv", ".npz", ".libsvm", ".svm", ".txt", ".bz2")


def is_file(data: Any) -> bool:
    """Is this the path of a file of data, not the name of a known set?"""
    return isinstance(data, str) and (Path(data).suffix.lower() in FORMATS or "/" in data)
