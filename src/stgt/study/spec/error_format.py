"""Errors about the entries of a spec: the path of the entry, what was given, what is allowed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from stgt._internal.checks import did_you_mean
from stgt._internal.hyper import short_repr

BARE = re.compile(r"[A-Za-z0-9_-]+")
LONGEST = 60  # letters that are shown of a key
WANTED = {
    "bool": "true or false",
    "dict": "a table",
    "float": "a number",
    "int": "a whole number",
    "list": "a list",
    "model": "a table",
    "string": "a text in quotes",
    "tuple": "a list",
}  # by the first word of an error's type
TABLES = ("algorithm", "data", "model", "optimizer", "problem", "topology")
LIMITS = {
    "greater_than": ("gt", "above"),
    "greater_than_equal": ("ge", "of at least"),
    "less_than": ("lt", "below"),
    "less_than_equal": ("le", "of at most"),
}


class EntryError(ValueError):
    """An error that begins with the entry of a spec that is wrong, such as "algorithm.gamma=-1: give …".

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


def as_entry_error(found: Mapping[str, Any], kind: type[BaseModel]) -> EntryError:
    """One of the `errors()` of a ValidationError of a model as an EntryError."""
    entry, given = found["loc"], short_repr(found["input"])
    match found["type"], found.get("ctx", {}):
        case "missing", _:
            words = f" was left out: give {_example(entry[-1])}."
        case "extra_forbidden", _:
            known = list(_model_at(kind, entry[:-1]).model_fields)
            words = f" is not known: choose from {', '.join(known)}{did_you_mean(entry[-1], known)}"
        case "literal_error", _:
            allowed = _allowed(kind, entry)
            choices = ", ".join(map(repr, allowed))
            words = f"={given}: choose from {choices}{did_you_mean(found['input'], allowed)}"
        case "too_short", _:
            words = f"={given}: give at least one."
        case type_, context if type_ in LIMITS:
            name, than = LIMITS[type_]
            words = f"={given}: give a number {than} {context[name]:g}."
        case "value_error", context:
            words = f"={given}: {context['error']}"
        case type_, _:
            wanted = WANTED.get(type_.split("_")[0])
            words = f"={given}: give {wanted}." if wanted else f"={given}: {found['msg'].lower()}."
    return EntryError(entry, words)


def _example(key: Any) -> str:
    return "the name" if key == "name" else f"{key} = …, or a table [{key}]" if key in TABLES else f"{key} = …"


def _allowed(kind: type[BaseModel], entry: tuple[Any, ...]) -> list[str]:
    """The literals that a field may hold."""
    keys = [key for key in entry if isinstance(key, str)]
    model = _model_at(kind, entry[: entry.index(keys[-1])])
    return _literals(model.model_fields[keys[-1]].annotation)


def _literals(annotation: Any) -> list[str]:
    if isinstance(annotation, str):
        return [annotation]
    return [word for part in get_args(annotation) for word in _literals(part)]


def _model_at(kind: type[BaseModel], entry: tuple[Any, ...]) -> type[BaseModel]:
    """The model that an entry of another model holds."""
    for key in entry:
        if isinstance(key, str):
            kind = _models(kind.model_fields[key].annotation)[0]
    return kind


def _models(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models(part)]
