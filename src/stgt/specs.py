"""Names and arguments of spec files, and the objects they stand for."""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import tomli_w
from pydantic import BaseModel, ConfigDict, ValidationError

from stgt.algorithms import Algorithm
from stgt.problems import Problem
from stgt.registry import ALGORITHMS, PROBLEMS, TOPOLOGIES, Registry
from stgt.topology import Topology

TAKES_OBJECTS = ("from_loss", "from_networkx", "schedule")  # functions and graphs, which a file cannot hold

Model = TypeVar("Model", bound=BaseModel)


class Named(BaseModel):
    """A name and the arguments that go with it, such as {name = "exponential", neighbors = 3}."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def make_algorithm(given: Named) -> Algorithm:
    """The algorithm that is named; one that it wraps may stand among its arguments."""
    return algorithm_of({"name": given.name, **given.arguments}, lambda *asked: _find(ALGORITHMS, *asked))


def algorithm_of(
    given: Mapping[str, Any], find: Callable[[str, str], Callable[..., Any]], table: str = "algorithm"
) -> Algorithm:
    """The algorithm of a table; `find` gives the class of a name, and is told the table."""
    arguments = {
        key: algorithm_of(value, find, f"{table}.{key}") if isinstance(value, Mapping) and "name" in value else value
        for key, value in given.items()
        if key != "name"
    }
    return call(find(given["name"], table), arguments, table, given["name"])


def make_problem(name: str, arguments: dict[str, Any]) -> Problem:
    """The problem that is named."""
    return call(_find(PROBLEMS, name), arguments, "problem", name)


def make_topology(given: Mapping[str, Any], n: int) -> Topology:
    """The topology of n nodes that a table names; other topologies may stand among its arguments."""
    arguments = {key: _with_topologies(value, n) for key, value in given.items()}
    name = arguments.pop("name")
    function = _find(TOPOLOGIES, name)
    if "n" in inspect.signature(function).parameters:
        arguments.setdefault("n", n)
    return call(function, arguments, "topology", name)


def _with_topologies(value: Any, n: int) -> Any:
    if isinstance(value, list | tuple):
        return [_with_topologies(one, n) for one in value]
    return make_topology(value, n) if isinstance(value, Mapping) and "name" in value else value


def _find(registry: Registry, name: str, table: str | None = None) -> Callable[..., Any]:
    table = table or registry.kind
    if name in TAKES_OBJECTS:
        raise ValueError(
            f"{table}.name={name!r} takes what a file cannot hold: register a function of your own that calls "
            "it, and import its script."
        )
    return registry.find(name, f"{table}.name")


def call(function: Callable[..., Any], arguments: dict[str, Any], table: str, name: str) -> Any:
    """`function(**arguments)`; a ValueError names the entry of the table that is wrong."""
    allowed = inspect.signature(function).parameters
    unknown = sorted(set(arguments) - set(allowed))
    if unknown:
        raise ValueError(f"{table}.{unknown[0]}: {name} takes {', '.join(allowed)}.")
    missing = [key for key, one in allowed.items() if one.default is one.empty and key not in arguments]
    if missing:
        raise ValueError(f"{table}.{missing[0]} was left out: {name} needs it.")
    try:
        return function(**arguments)
    except TypeError as error:
        raise ValueError(f"{table}: {name} does not take these values ({error}).") from None


def read_spec(path: Path, kind: type[Model]) -> Model:
    """Reads a TOML file that holds one run, or several as [[runs]]."""
    try:
        given = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"spec {path} cannot be read ({error.strerror}): give the path of a TOML file.") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"spec {path} is not TOML: {error}.") from None
    if "runs" not in given:
        given = {"runs": [given]}
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(step) for step in first["loc"] if step not in ("runs", 0)) or "the file"
        raise ValueError(f"spec {path}: {where}: {first['msg'].lower()}.") from None


def spec_text(spec: BaseModel) -> str:
    """A spec as TOML, which `read_spec` reads back."""
    return tomli_w.dumps(spec.model_dump(exclude_defaults=True))
