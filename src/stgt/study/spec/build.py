"""The objects that the tables of a spec stand for."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict

from stgt._internal import schedules
from stgt._internal.checks import check_choice, did_you_mean
from stgt._internal.registry import ALGORITHMS, ORACLES, PROBLEMS, TOPOLOGIES, Registry
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.problems import Problem
from stgt.study.spec.error_format import EntryError
from stgt.topology import Topology

TAKES_OBJECTS = ("from_loss", "from_networkx", "schedule")  # functions and graphs, which a file cannot hold
SCHEDULES: dict[str, Callable[..., Any]] = {
    "cosine": schedules.cosine,
    "step": schedules.step,
    "inverse": schedules.inverse,
}


class Named(BaseModel):
    """A name and the arguments that go with it, such as {name = "exponential", neighbors = 3}."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


def build_algorithm(given: Named) -> Algorithm:
    """The algorithm that is named; one that it wraps, and a stepsize's schedule, may stand among its arguments."""
    return algorithm_of({"name": given.name, **given.arguments}, lambda *asked: _find(ALGORITHMS, *asked))


def algorithm_of(
    given: Mapping[str, Any], find: Callable[[str, str], Callable[..., Any]], table: str = "algorithm"
) -> Algorithm:
    """The algorithm of a table; `find(name, table)` gives the class of a name."""
    arguments = {
        key: algorithm_of(value, find, f"{table}.{key}")
        if isinstance(value, Mapping) and "name" in value
        else with_schedule(value, f"{table}.{key}")
        for key, value in given.items()
        if key != "name"
    }
    return call(find(given["name"], table), arguments, table, given["name"])


def with_schedule(value: Any, entry: str) -> Any:
    """The stepsize that a table such as {schedule = "cosine", start = 0.1, rounds = 500} stands for, or the value."""
    if not isinstance(value, Mapping) or "schedule" not in value:
        return value
    arguments = dict(value)
    name = _chosen(arguments.pop("schedule"), f"{entry}.schedule", SCHEDULES)
    return call(SCHEDULES[name], arguments, entry, name)


def build_problem(name: str, arguments: dict[str, Any]) -> Problem:
    """The problem that is named."""
    return call(find_problem(name), arguments, "problem", name)


def find_problem(name: str) -> Callable[..., Any]:
    """The function that makes a problem."""
    return _find(PROBLEMS, name, "problem")


def build_oracle(given: Named) -> Oracle:
    """The oracle that is named."""
    return call(_find(ORACLES, given.name, "oracle"), given.arguments, "oracle", given.name)


def build_topology(given: Mapping[str, Any], n: int, table: str = "topology") -> Topology:
    """The topology of n nodes that a table names; other topologies may stand among its arguments."""
    arguments = {key: _with_topologies(value, n, f"{table}.{key}") for key, value in given.items()}
    name = arguments.pop("name")
    function = _find(TOPOLOGIES, name, table)
    if "n" in inspect.signature(function).parameters:
        arguments.setdefault("n", n)
    return call(function, arguments, table, name)


def _with_topologies(value: Any, n: int, table: str) -> Any:
    if isinstance(value, list | tuple):
        return [_with_topologies(one, n, f"{table}.{index}") for index, one in enumerate(value)]
    return build_topology(value, n, table) if isinstance(value, Mapping) and "name" in value else value


def _find(registry: Registry, name: Any, table: str) -> Callable[..., Any]:
    entry = f"{table}.name"
    if name in TAKES_OBJECTS:
        raise EntryError(
            entry.split("."),
            f"={name!r} takes what a file cannot hold: register a function of your own that calls it, and import its "
            "script.",
        )
    return _named_entry(entry, lambda: registry.find(name, entry))


def _chosen(name: Any, entry: str, allowed: Mapping[str, Any]) -> str:
    return _named_entry(entry, lambda: check_choice(name, entry, allowed))


def _named_entry(entry: str, look: Callable[[], Any]) -> Any:
    """What `look` finds; its ValueError begins with the entry."""
    try:
        return look()
    except ValueError as error:
        if not str(error).startswith(entry):
            raise
        raise EntryError(entry.split("."), str(error)[len(entry) :]) from None


def about_argument(error: ValueError, table: Sequence[str], arguments: Iterable[str]) -> EntryError | None:
    """An error that begins with one of the arguments as one about the table's entry."""
    words = " ".join(str(error).split())
    begins = re.match(r"\w+", words)
    if begins is None or begins.group() not in arguments:
        return None
    return EntryError([*table, begins.group()], words[begins.end() :])


def unknown_argument(table: Sequence[str], key: str, name: str, taken: Sequence[str]) -> EntryError:
    """That what is named does not take an argument."""
    return EntryError([*table, key], f": {name} takes {', '.join(taken) or 'no arguments'}{did_you_mean(key, taken)}")


def call(function: Callable[..., Any], arguments: dict[str, Any], table: str, name: str) -> Any:
    """`function(**arguments)`; an EntryError names the entry of the table that is wrong.

    An error of the function's own that begins with an argument, such as "gamma=-1: give …", is one about the entry.
    """
    where, allowed = table.split("."), inspect.signature(function).parameters
    taken = [key for key, one in allowed.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    unknown = sorted(set(arguments) - set(taken))
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in allowed.values()):
        raise unknown_argument(where, unknown[0], name, taken)
    missing = [key for key in taken if allowed[key].default is inspect.Parameter.empty and key not in arguments]
    if missing:
        raise EntryError([*where, missing[0]], f" was left out: {name} needs it.")
    try:
        return function(**arguments)
    except EntryError:
        raise
    except ValueError as error:
        raise about_argument(error, where, taken) or EntryError(where, f": {error}") from None
    except (TypeError, OverflowError) as error:
        raise EntryError(where, f": {name} does not take these values ({error}).") from None
    except MemoryError:
        raise EntryError(where, f": {name} needs more memory than there is; give smaller numbers.") from None
