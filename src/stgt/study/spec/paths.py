"""Entries of a spec by their dotted names, as sentences about them begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel

BARE = re.compile(r"[A-Za-z0-9_-]+")
LONGEST = 60  # letters that are shown of a key


class EntryError(ValueError):
    """A sentence that begins with the entry of a spec that is wrong, such as "algorithm.gamma=-1: give …".

    Attributes:
        entry: the keys that lead to it.
        words: what follows.
    """

    def __init__(self, entry: Iterable[Any], words: str):
        self.entry, self.words = tuple(entry), words
        super().__init__(f"{dotted(self.entry)}{words}")


def dotted(keys: Sequence[Any]) -> str:
    """The keys as TOML joins them; one that is not a plain word stands in quotes, in one line."""
    return ".".join(key if BARE.fullmatch(key) and len(key) <= LONGEST else _quoted(key) for key in map(str, keys))


def _quoted(key: str) -> str:
    return repr(key if len(key) <= LONGEST else f"{key[: LONGEST - 1]}…")


def of_run(entry: Sequence[Any], runs: Sequence[Any], index: int) -> tuple[Any, ...]:
    """The entry of run `index`, by `runs.1.` and the like where other runs have another value there."""
    values = [repr(_at(run, entry)) for run in runs]
    shared = all(value == values[index] for value in values)
    return tuple(entry) if shared else ("runs", index, *entry)


@contextmanager
def in_file(path: Path, runs: Sequence[BaseModel], index: int) -> Iterator[None]:
    """Has an EntryError about run `index` of a file name the file, and the run where that matters."""
    try:
        yield
    except EntryError as error:
        entry = of_run(error.entry, [run.model_dump() for run in runs], index)
        raise ValueError(f"spec {path}: {EntryError(entry, error.words)}") from None


def _at(value: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        if isinstance(value, list | tuple) and str(key).isdecimal() and int(key) < len(value):
            value = value[int(key)]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value
