"""The JSON schema of spec files, from the models and from the signatures and docstrings of registered names.

With it, an editor completes names and arguments, and underlines entries that `stgt` would reject.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel, PydanticUserError, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from stgt._internal.registry import ALGORITHMS, DATASETS, MODELS, ORACLES, PROBLEMS, TOPOLOGIES, Registry, summary
from stgt._internal.serialize import SCHEDULES
from stgt.algorithms import Algorithm
from stgt.problems import load_table
from stgt.study.spec.build import TAKES_OBJECTS
from stgt.study.spec.load import Named, run_model
from stgt.study.spec.runs import Spec
from stgt.study.spec.training import Data, TrainingSpec
from stgt.topology import Topology

Schema = dict[str, Any]
TABLES = ("algorithm", "topology", "problem", "model", "optimizer", "data")


def spec_schema(kind: str = "run") -> Schema:
    """The schema (draft 2020-12) of a spec for `stgt run` and similar commands, or for `stgt train`."""
    model: type[BaseModel] = TrainingSpec if kind == "train" else Spec
    one = run_model(model)
    whole, of_run = (each.model_json_schema(schema_generator=_SpecSchema) for each in (model, one))
    for name, field in one.model_fields.items():
        if field.annotation in (Named, Data, Named | None):
            of_run["properties"][name] = {"$ref": f"#/$defs/{name}", "description": field.description or ""}
    runs = {
        "type": "array",
        "minItems": 1,
        "description": "The runs, one table [[runs]] each. Entries outside the runs apply to all of them.",
        "items": {"type": "object", "properties": of_run["properties"], "additionalProperties": False},
    }
    needed = of_run["required"]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"stgt {kind}",
        "type": "object",
        "properties": {**of_run["properties"], **whole["properties"], "runs": runs},
        "additionalProperties": False,
        "if": {"not": {"required": ["runs"]}},
        "then": {
            "required": needed,
            "properties": {name: {"required": ["name"]} for name in needed if name in TABLES},
        },
        "$defs": {
            **whole["$defs"],
            "model": _models(),
            "data": _data(),
            "algorithm": _table(_known(ALGORITHMS)),
            "topology": _table(_known(TOPOLOGIES)),
            "problem": _problems(),
            "oracle": _table(_known(ORACLES)),
            "schedule": _table(SCHEDULES, key="schedule"),
            "optimizer": {"type": "object", "properties": {"name": {"type": "string"}}},
        },
    }


class _SpecSchema(GenerateJsonSchema):
    """Pydantic's schema, without null, which TOML does not have."""

    def nullable_schema(self, schema: Any) -> Schema:
        return self.generate_inner(schema["schema"])

    def default_schema(self, schema: Any) -> Schema:
        return (
            super().default_schema(schema)
            if schema.get("default") is not None
            else self.generate_inner(schema["schema"])
        )

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


def _known(registry: Registry) -> dict[str, Callable[..., Any]]:
    return {name: registry.find(name, registry.kind) for name in registry.names() if name not in TAKES_OBJECTS}


def _table(things: Mapping[str, Callable[..., Any]], *, key: str = "name") -> Schema:
    """A table with a name and the arguments that belong to it."""
    branches = []
    for name, thing in things.items():
        properties = {**_arguments(thing), key: {"const": name, "description": summary(thing)}}
        branches.append(_branch(key, name, properties))
    return {
        "type": "object",
        "properties": {key: {"enum": list(things), "description": "The name."}},
        "allOf": branches,
    }


def _branch(key: str, name: str, properties: Schema) -> Schema:
    return {
        "if": {"properties": {key: {"const": name}}, "required": [key]},
        "then": {"properties": properties, "additionalProperties": False},
    }


def _problems() -> Schema:
    """Problems. Those with arguments features and labels may have data instead."""
    found = _table(_known(PROBLEMS))
    of_data = {**_arguments(load_table), "rows": {"type": "integer", "minimum": 2}}
    of_data["data"]["type"] = "string"
    for branch in found["allOf"]:
        properties = branch["then"]["properties"]
        if {"features", "labels"} <= set(properties) and "data" not in properties:
            branch["then"]["properties"] = {**of_data, **properties}
    return found


def _models() -> Schema:
    """Models: the registered ones with the arguments that do not come from the data, and any other name."""
    found: Schema = _table(_known(MODELS)) | {"properties": {"name": _any_of(MODELS)}}
    for branch in found["allOf"]:
        for argument in ("shape", "classes"):
            branch["then"]["properties"].pop(argument, None)
    return found if found["allOf"] else {key: value for key, value in found.items() if key != "allOf"}


def _data() -> Schema:
    """A data set's name, and its partition over the nodes."""
    found = Data.model_json_schema(schema_generator=_SpecSchema)
    found["properties"]["name"] = _any_of(DATASETS)
    return found


def _any_of(registry: Registry) -> Schema:
    """A name that an editor completes. Other names are valid too, as a script may register them later."""
    names = registry.names()
    return {"anyOf": [{"enum": names}, {"type": "string"}]} if names else {"type": "string"}


def _arguments(thing: Callable[..., Any]) -> Schema:
    """The arguments of a class or function, from its types and its docstring."""
    try:
        hints = typing.get_type_hints(thing)
    except (NameError, TypeError):  # from a script that imports them for type checkers only
        hints = {}
    words, found = argument_descriptions(thing), {}
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
    """The schema of a type; {} for types that a file cannot contain, such as arrays."""
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        some = [_typed(part) for part in typing.get_args(hint) if part is not types.NoneType]
        return {} if {} in some else {"anyOf": some} if len(some) > 1 else some[0]
    if typing.get_origin(hint) is Callable:
        return {"$ref": "#/$defs/schedule"}
    if isinstance(hint, type) and is_dataclass(hint):
        kinds = {"algorithm": Algorithm, "topology": Topology}
        return next(({"$ref": f"#/$defs/{name}"} for name, kind in kinds.items() if issubclass(hint, kind)), {})
    try:
        return TypeAdapter(hint).json_schema()
    except PydanticUserError:
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
