"""The JSON schema of spec files, from the models and from the signatures and docstrings of registered names.

An editor completes names and arguments by it, and underlines what `stgt` would refuse.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel

from stgt._internal.registry import ALGORITHMS, DATASETS, MODELS, ORACLES, PROBLEMS, TOPOLOGIES, Registry, summary
from stgt.algorithms import Algorithm
from stgt.problems import load_table
from stgt.study.spec.build import SCHEDULES, TAKES_OBJECTS
from stgt.study.spec.load import run_model
from stgt.study.spec.runs import Spec
from stgt.study.spec.training import TrainingSpec
from stgt.topology import Topology

Schema = dict[str, Any]
PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}
REQUIRED = {
    "run": ("algorithm", "problem", "topology"),
    "train": ("algorithm", "data", "model", "optimizer", "topology"),
}


def spec_schema(kind: str = "run") -> Schema:
    """The schema (draft 2020-12) of a spec for `stgt run` and the like, or of one for `stgt train`."""
    model: type[BaseModel] = TrainingSpec if kind == "train" else Spec
    whole, one = model.model_json_schema(), run_model(model).model_json_schema()
    of_run = {name: _field(name, field) for name, field in one["properties"].items()}
    of_spec = {name: _plain(field) for name, field in whole["properties"].items() if name != "runs"}
    runs = {
        "type": "array",
        "minItems": 1,
        "description": "The runs, a table [[runs]] each; what stands outside of them holds for all of them.",
        "items": {"type": "object", "properties": of_run, "additionalProperties": False},
    }
    needed = REQUIRED[kind]
    tables = {name: _plain(found) for name, found in whole.get("$defs", {}).items() if name in ("Data", "NetworkSpec")}
    if "Data" in tables:
        tables["Data"]["properties"]["name"] = _any_of(DATASETS)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"stgt {kind}",
        "type": "object",
        "properties": {**of_run, **of_spec, "runs": runs},
        "additionalProperties": False,
        "if": {"not": {"required": ["runs"]}},
        "then": {
            "required": list(needed),
            "properties": {name: {"required": ["name"]} for name in needed},
        },
        "$defs": {
            **tables,
            "model": _models(),
            "algorithm": _table({name: ALGORITHMS.find(name, "algorithm") for name in ALGORITHMS.names()}),
            "topology": _table(_known(TOPOLOGIES)),
            "problem": _problems(),
            "oracle": _table(_known(ORACLES)),
            "schedule": _table(SCHEDULES, key="schedule"),
            "named": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }


def _known(registry: Registry) -> dict[str, Callable[..., Any]]:
    return {name: registry.find(name, registry.kind) for name in registry.names() if name not in TAKES_OBJECTS}


def _field(name: str, field: Schema) -> Schema:
    """A field of a run; those that hold a name and arguments know which there are."""
    if name in ("algorithm", "topology", "problem", "oracle", "model"):
        return {"$ref": f"#/$defs/{name}", **({"description": field["description"]} if "description" in field else {})}
    if name == "optimizer":
        return {"$ref": "#/$defs/named"}
    return _plain(field)


def _plain(schema: Any) -> Any:
    """A schema of Pydantic's without its titles, and without null, which TOML does not have."""
    if isinstance(schema, list):
        return [_plain(one) for one in schema if one != {"type": "null"}]
    if not isinstance(schema, dict):
        return schema
    dropped = {key: one for key, one in schema.items() if key != "title" and not (key == "default" and one is None)}
    return {key: _plain(one) for key, one in dropped.items()}


def _table(things: Mapping[str, Callable[..., Any]], *, key: str = "name") -> Schema:
    """A table with a name and the arguments of what it names."""
    branches = []
    for name, thing in things.items():
        properties = {**_arguments(thing), key: {"const": name, "description": summary(thing)}}
        branches.append(_branch(key, name, properties))
    return {
        "type": "object",
        "properties": {key: {"enum": list(things), "description": "Which one."}},
        "allOf": branches,
    }


def _branch(key: str, name: str, properties: Schema) -> Schema:
    return {
        "if": {"properties": {key: {"const": name}}, "required": [key]},
        "then": {"properties": properties, "additionalProperties": False},
    }


def _problems() -> Schema:
    """Problems, of which those that take features and labels may be given data instead."""
    found = _table(_known(PROBLEMS))
    of_data = {**_arguments(load_table), "rows": {"type": "integer", "minimum": 2}}
    of_data["data"]["type"] = "string"
    for branch in found["allOf"]:
        properties = branch["then"]["properties"]
        if {"features", "labels"} <= set(properties) and "data" not in properties:
            branch["then"]["properties"] = {**of_data, **properties}
    return found


def _models() -> Schema:
    """Models: those that are registered, with the arguments that do not come from the data, and any others."""
    found: Schema = _table(_known(MODELS)) | {"properties": {"name": _any_of(MODELS)}}
    for branch in found["allOf"]:
        for argument in ("shape", "classes"):
            branch["then"]["properties"].pop(argument, None)
    return found if found["allOf"] else {key: value for key, value in found.items() if key != "allOf"}


def _any_of(registry: Registry) -> Schema:
    """A name that an editor completes; a script that the schema does not know of may register others."""
    names = registry.names()
    return {"anyOf": [{"enum": names}, {"type": "string"}]} if names else {"type": "string"}


def _arguments(thing: Callable[..., Any]) -> Schema:
    """The arguments of a class or function, by the types and the docstring that it has."""
    try:
        hints = typing.get_type_hints(thing)
    except (NameError, TypeError):  # of a script that imports them for type checkers only
        hints = {}
    words = argument_descriptions(thing)
    found = {}
    for name, one in inspect.signature(thing).parameters.items():
        if one.kind in (one.VAR_KEYWORD, one.VAR_POSITIONAL):
            continue
        found[name] = _typed(hints.get(name, Any))
        if name in words:
            found[name]["description"] = words[name]
        if isinstance(one.default, bool | int | float | str):
            found[name]["default"] = one.default
    return found


def _typed(hint: Any) -> Schema:
    """The schema of a type; {} for one without a schema."""
    if hint in PLAIN:
        return {"type": PLAIN[hint]}
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        some = [_typed(part) for part in parts if part is not type(None)]
        return {} if {} in some else some[0] if len(some) == 1 else {"anyOf": some}
    if origin is Callable:
        return {"$ref": "#/$defs/schedule"}
    if origin in (tuple, list, Sequence, Iterable):
        return {"type": "array"}
    if isinstance(hint, type) and issubclass(hint, Algorithm | Topology):
        return {"$ref": f"#/$defs/{'algorithm' if issubclass(hint, Algorithm) else 'topology'}"}
    return {}


def argument_descriptions(thing: Callable[..., Any]) -> dict[str, str]:
    """The description of each argument in the `Args:` of a docstring."""
    section = re.search(r"^Args:\n((?:(?: {4}.*)?\n?)+)", inspect.getdoc(thing) or "", flags=re.M)
    if section is None:
        return {}
    found = {}
    for entry in re.split(r"\n(?= {4}\S)", section.group(1).rstrip()):
        names, _, words = entry.strip().partition(":")
        for name in names.split(","):
            found[name.strip()] = " ".join(words.split())
    return found
