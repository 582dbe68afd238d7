"""The objects that the tables of a spec stand for."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from stgt._internal import schedules
from stgt._internal.checks import InputError, check_choice, did_you_mean, under
from stgt._internal.registry import ALGORITHMS, ORACLES, PROBLEMS, TOPOLOGIES, Registry
from stgt.algorithms import Algorithm
from stgt.oracles import Oracle
from stgt.study.spec.load import Named
from stgt.topology import Topology

TAKES_OBJECTS = ("from_loss", "from_networkx", "schedule")  # functions and graphs, which a file cannot hold
SCHEDULES: dict[str, Callable[..., Any]] = {
    "cosine": schedules.cosine,
    "step": schedules.step,
    "inverse": schedules.inverse,
}


def build_algorithm(given: Named) -> Algorithm:
    """The algorithm that is named; one that it wraps, and a stepsize's schedule, may stand among its arguments."""
    with under("algorithm"):
        return algorithm_of(given.model_dump(), partial(_find, ALGORITHMS))


def algorithm_of(given: Mapping[str, Any], find: Callable[[str], Callable[..., Any]]) -> Algorithm:
    """The algorithm of a table; `find` gives the class of a name."""
    arguments = {}
    for key, value in given.items():
        if key != "name":
            with under(key):
                is_algorithm = isinstance(value, Mapping) and "name" in value
                arguments[key] = algorithm_of(value, find) if is_algorithm else with_schedule(value)
    return call(find(given["name"]), arguments, given["name"])


def with_schedule(value: Any) -> Any:
    """The stepsize that a table such as {schedule = "cosine", start = 0.1, rounds = 500} stands for, or the value."""
    if not isinstance(value, Mapping) or "schedule" not in value:
        return value
    arguments = dict(value)
    name = check_choice(arguments.pop("schedule"), "schedule", SCHEDULES)
    return call(SCHEDULES[name], arguments, name)


def find_problem(name: str) -> Callable[..., Any]:
    """The function that makes a problem."""
    return _find(PROBLEMS, name)


def build_oracle(given: Named) -> Oracle:
    """The oracle that is named."""
    with under("oracle"):
        return call(_find(ORACLES, given.name), given.arguments, given.name)


def build_topology(given: Mapping[str, Any], n: int) -> Topology:
    """The topology of n nodes that a table names; other topologies may stand among its arguments."""
    with under("topology"):
        return _topology(given, n)


def _topology(given: Mapping[str, Any], n: int) -> Topology:
    arguments = {}
    for key, value in given.items():
        with under(key):
            arguments[key] = _with_topologies(value, n)
    name = arguments.pop("name")
    function = _find(TOPOLOGIES, name)
    if "n" in inspect.signature(function).parameters:
        arguments.setdefault("n", n)
    return call(function, arguments, name)


def _with_topologies(value: Any, n: int) -> Any:
    if isinstance(value, list | tuple):
        found = []
        for index, one in enumerate(value):
            with under(index):
                found.append(_with_topologies(one, n))
        return found
    return _topology(value, n) if isinstance(value, Mapping) and "name" in value else value


def _find(registry: Registry, name: Any) -> Callable[..., Any]:
    if name in TAKES_OBJECTS:
        what = "register a function of your own that calls it, and import its script."
        raise InputError("name", name, f" takes what a file cannot hold: {what}")
    return registry.find(name, "name")


def unknown_argument(key: str, name: str, taken: Sequence[str]) -> InputError:
    """That what is named does not take an argument."""
    return InputError((key,), hint=f"{name} takes {', '.join(taken) or 'no arguments'}{did_you_mean(key, taken)}")


def call(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    """`function(**arguments)`; an InputError names the argument that is wrong, or none if it is about no single one."""
    allowed = inspect.signature(function).parameters
    taken = [key for key, one in allowed.items() if one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)]
    unknown = sorted(set(arguments) - set(taken))
    if unknown and not any(one.kind is one.VAR_KEYWORD for one in allowed.values()):
        raise unknown_argument(unknown[0], name, taken)
    missing = [key for key in taken if allowed[key].default is inspect.Parameter.empty and key not in arguments]
    if missing:
        raise InputError((missing[0],), hint=f" was left out: {name} needs it.")
    try:
        return function(**arguments)
    except ValueError as error:
        if isinstance(error, InputError) and error.path and error.path[0] in taken:
            raise
        raise InputError((), hint=f"{error}") from None
    except (TypeError, OverflowError) as error:
        raise InputError((), hint=f"{name} does not take these values ({error}).") from None
    except MemoryError:
        raise InputError((), hint=f"{name} needs more memory than there is; give smaller numbers.") from None
