"""One digest of data, equal for equal data in every process: SHA-256, as hexadecimal digits.

SHA-256 has instructions in most processors, so it is faster than writing to a disk. `sha256sum` can check it by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

import numpy as np


def digest(*things: Any) -> str:
    """Equal for equal arrays, numbers and strings, and for containers of them. A function counts by its name only."""
    found = sha256()
    for piece in _pieces(things):
        found.update(piece)
    return found.hexdigest()


def digest_of_file(path: Path) -> str:
    """The digest of a file, as `sha256sum` prints it."""
    with path.open("rb") as stream:
        return file_digest(stream, "sha256").hexdigest()


def bytes_of(array: Any) -> memoryview:
    """The bytes of a NumPy array or a torch tensor: a view if it is contiguous in main memory, else a copy."""
    if not hasattr(array, "detach"):
        return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data
    import torch

    return array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _pieces(thing: Any) -> Iterator[Any]:
    if is_dataclass(thing) and not isinstance(thing, type):
        yield f"{type(thing).__name__}(".encode()
        for field in fields(thing):
            yield field.name.encode()
            yield from _pieces(getattr(thing, field.name))
        yield b")"
    elif isinstance(thing, np.ndarray | np.generic) and not thing.dtype.hasobject:  # a scalar is an array without axes
        yield f"{thing.shape} {thing.dtype}".encode()
        yield bytes_of(thing)
    elif isinstance(thing, Mapping):
        yield f"{{{len(thing)}".encode()
        for key in sorted(thing, key=repr):
            yield repr(key).encode()
            yield from _pieces(thing[key])
    elif isinstance(thing, tuple | list):
        yield f"[{len(thing)}".encode()
        for one in thing:
            yield from _pieces(one)
    elif thing is None or isinstance(thing, bool | int | float | str | np.dtype):
        yield repr(thing).encode()
    else:
        yield getattr(thing, "__qualname__", type(thing).__qualname__).encode()
