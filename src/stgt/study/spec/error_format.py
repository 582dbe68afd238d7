"""What Pydantic finds wrong, in sentences: the entry, what was given, what is allowed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from pydantic import BaseModel

from stgt._internal.checks import did_you_mean
from stgt._internal.hyper import short_repr
from stgt.study.spec.paths import EntryError

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


def as_entry_error(found: Mapping[str, Any], kind: type[BaseModel]) -> EntryError:
    """One of the `errors()` of a ValidationError of a model as a sentence about the entry."""
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
    """The words that a field may hold."""
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
