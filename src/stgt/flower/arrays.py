"""Named arrays and a note in one safetensors file: loading it can execute nothing."""

from __future__ import annotations

from collections.abc import Mapping
from logging import WARNING
from pathlib import Path

import numpy as np
from flwr.common.logger import log
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from stgt._internal.files import write_atomically

NOTE = "note"


def save_arrays(path: Path, arrays: Mapping[str, np.ndarray], note: str) -> Path:
    """Writes the file whole or not at all, and to the disk: who goes on after a power failure goes on from it.

    Only its owner may read it.
    """
    named = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    return write_atomically(path, lambda file: save_file(named, str(file), {NOTE: note}), durable=True, private=True)


def load_arrays(path: Path) -> tuple[dict[str, np.ndarray], str]:
    """The arrays and the note; a ValueError if the file is not whole."""
    try:
        with safe_open(str(path), framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata()[NOTE]  # noqa: SIM118
    except (OSError, SafetensorError, KeyError, TypeError) as error:
        raise ValueError(f"{path} cannot be read ({error}): remove it to start anew, or bring another copy.") from None


def read_or_warn(path: Path) -> tuple[dict[str, np.ndarray], str] | None:
    """The same; None if there is no such file or, with a warning, if it is not whole."""
    if not path.exists():
        return None
    try:
        return load_arrays(path)
    except ValueError as error:
        log(WARNING, "%s", error)
        return None
