"""The one file format for arrays: traces, the trainer's shards, the states of Flower's server and clients.

It is a safetensors file, which any reader of that format opens, with JSON and two digests in its header:

    8 bytes   the length of the header
    header    {"__metadata__": {"sha256": of the header after these digits, "data": of the data,
               "format": "1", "kind": …, "meta": JSON}, NAME: {"dtype": …, "shape": …, "data_offsets": …}, …}
    data      the arrays, those with the widest elements first; the header lists them in the order they were given

Nothing in the file can execute code, and every changed byte is noticed. The package writes the file itself, without
safetensors' functions, so that the digest of the data is computed during the write: no second pass, no copy.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, Literal

import numpy as np

from stgt._internal.digest import bytes_of
from stgt._internal.files import write_atomically

FORMAT = 1
_BEGIN = b'{"__metadata__":{"sha256":"'
_DIGITS = 64
_BLOCK = 2**20
# safetensors' names of the types of NumPy and torch.
_CODES = {
    "bool": "BOOL", "uint8": "U8", "int8": "I8", "uint16": "U16", "int16": "I16", "uint32": "U32", "int32": "I32",
    "uint64": "U64", "int64": "I64", "float16": "F16", "bfloat16": "BF16", "float32": "F32", "float64": "F64",
    "complex64": "C64", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2",
}  # fmt: skip
_NAMES = {code: name for name, code in _CODES.items()}

Reason = Literal["missing", "unreadable", "foreign", "newer", "cut", "damaged"]
_WORDS: dict[Reason, str] = {
    "missing": "is missing: restore it, or give another file.",
    "unreadable": "cannot be read ({}): give another file.",
    "foreign": "is not a {} of stgt: give another file.",
    "newer": f"has format {{}}, and this version of stgt reads format {FORMAT}: use a newer stgt.",
    "cut": "is cut off: take another copy, or remove it to start again.",
    "damaged": "is damaged or was edited, as its checksum is wrong: take another copy, or remove it to start again.",
}


class BadFile(ValueError):  # noqa: N818
    """A file cannot be used; `reason` is the keyword of the cause."""

    def __init__(self, path: Path, reason: Reason, detail: str = ""):
        super().__init__(path, reason, detail)  # needed to pickle it for another process
        self.reason: Reason = reason

    def __str__(self) -> str:
        path, reason, detail = self.args
        return f"{path} {_WORDS[reason].format(detail)}"


def write(path: Path, kind: str, arrays: Mapping[str, Any], meta: Any, *, private: bool = False) -> Path:
    """Writes arrays and JSON to a file, atomically. The file is on the disk when this returns.

    Args:
        path: of the file; missing folders are created.
        kind: of the content; it appears in messages such as "is not a trace of stgt".
        arrays: NumPy arrays or torch tensors, by name.
        meta: anything that JSON can hold.
        private: only the owner may read the file.
    """
    types = {name: str(array.dtype).removeprefix("torch.") for name, array in arrays.items()}
    for name, dtype in types.items():
        if dtype not in _CODES:
            raise ValueError(f"{name} is of type {dtype}: a file holds {', '.join(_CODES)}.")
    order, offsets = _order(arrays), _offsets(arrays)
    entries = {
        name: {"dtype": _CODES[types[name]], "shape": list(array.shape), "data_offsets": offsets[name]}
        for name, array in arrays.items()
    }
    text = json.dumps(meta)

    def header(data: str) -> bytes:
        about = {"sha256": "", "data": data, "format": str(FORMAT), "kind": kind, "meta": text}
        sealed = json.dumps({"__metadata__": about, **entries}, separators=(",", ":")).encode()[len(_BEGIN) :]
        sealed += b" " * (-(len(_BEGIN) + _DIGITS + len(sealed)) % 8)  # so that the data begin at a multiple of 8
        found = _BEGIN + sha256(sealed).hexdigest().encode() + sealed
        return len(found).to_bytes(8, "little") + found

    def fill(file: Path) -> None:
        found = sha256()
        with file.open("wb") as stream:
            stream.write(header("0" * _DIGITS))
            for name in order:
                block = bytes_of(arrays[name])
                stream.write(block)
                found.update(block)
            stream.seek(0)
            stream.write(header(found.hexdigest()))

    return write_atomically(path, fill, durable=True, private=private)


def read(path: Path, kind: str) -> tuple[dict[str, np.ndarray], Any]:
    """The arrays and the JSON of a file of this kind; raises BadFile if they are not exactly what was written."""
    with _opened(path, kind) as (stream, layout, meta, expected):
        arrays = {name: np.empty(one.shape, one.dtype) for name, one in layout.items()}
        found = sha256()
        for name in _order(layout):
            block = bytes_of(arrays[name])
            stream.readinto(block)
            found.update(block)
        if found.hexdigest() != expected:
            raise BadFile(path, "damaged")
    return arrays, meta


def read_meta(path: Path, kind: str) -> Any:
    """The JSON of a file. Checks that the file is complete, but does not read its arrays."""
    with _opened(path, kind) as (_, _, meta, _):
        return meta


def verify(path: Path, kind: str) -> Any:
    """The JSON of a file, after checking the digest of every byte; takes little memory."""
    with _opened(path, kind) as (stream, _, meta, expected):
        found = sha256()
        for block in iter(lambda: stream.read(_BLOCK), b""):
            found.update(block)
        if found.hexdigest() != expected:
            raise BadFile(path, "damaged")
    return meta


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[tuple[BufferedReader, dict[str, np.ndarray], Any, str]]:
    """The file, positioned at its data, and the content of its header."""
    try:
        with path.open("rb") as stream:
            size, length = os.fstat(stream.fileno()).st_size, int.from_bytes(stream.read(8), "little")
            header = stream.read(min(length, size))
            if not _BEGIN.startswith(header[: len(_BEGIN)]):
                raise BadFile(path, "foreign", kind)
            if len(header) < max(length, len(_BEGIN)):
                raise BadFile(path, "cut")
            seal, sealed = header[len(_BEGIN) :][:_DIGITS], header[len(_BEGIN) + _DIGITS :]
            if seal != sha256(sealed).hexdigest().encode():
                raise BadFile(path, "damaged")
            layout, meta, expected = _parse(path, kind, header)
            end = 8 + length + sum(one.nbytes for one in layout.values())
            if size != end:
                raise BadFile(path, "cut" if size < end else "damaged")
            yield stream, layout, meta, expected
    except FileNotFoundError:
        raise BadFile(path, "missing") from None
    except OSError as error:
        raise BadFile(path, "unreadable", str(error.strerror)) from None


def _parse(path: Path, kind: str, header: bytes) -> tuple[dict[str, np.ndarray], Any, str]:
    """Arrays of the right shapes and types that take no memory, the JSON, and the digest of the data."""
    try:
        parts = json.loads(header)
        about = parts.pop("__metadata__")
        if int(about["format"]) > FORMAT:
            raise BadFile(path, "newer", about["format"])
        if (about["format"], about["kind"]) != (str(FORMAT), kind):
            raise BadFile(path, "foreign", kind)
        layout = {
            name: np.broadcast_to(np.zeros((), _dtype(one["dtype"])), one["shape"]) for name, one in parts.items()
        }
        if _offsets(layout) != {name: one["data_offsets"] for name, one in parts.items()}:
            raise BadFile(path, "foreign", kind)
        return layout, json.loads(about["meta"]), about["data"]
    except BadFile:
        raise
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):  # written by another program, or forged
        raise BadFile(path, "foreign", kind) from None


def _order(arrays: Mapping[str, Any]) -> list[str]:
    """The names in the order of the data: widest elements first, so that every array is aligned to its width."""
    return sorted(arrays, key=lambda name: -arrays[name].dtype.itemsize)


def _offsets(arrays: Mapping[str, Any]) -> dict[str, list[int]]:
    """Where each array begins and ends in the data."""
    found, end = {}, 0
    for name in _order(arrays):
        begin, end = end, end + prod(arrays[name].shape) * arrays[name].dtype.itemsize
        found[name] = [begin, end]
    return found


def _dtype(code: str) -> np.dtype:
    name = _NAMES[code]
    try:
        return np.dtype(name)
    except TypeError:
        import ml_dtypes  # comes with JAX; has the types that NumPy lacks

        return np.dtype(getattr(ml_dtypes, name))
