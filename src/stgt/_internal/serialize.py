"""Algorithms, oracles and stepsize schedules as plain data and back: for spec files, traces, checkpoints, Flower.

    {"name": "STGT", "gamma": {"schedule": "cosine", "start": 0.2, "rounds": 500}, "tau": 10, …}

A table with a name is a call of the object registered under that name, so a file or a server cannot run other code.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from typing import Any

from stgt._internal.checks import InputError, check_choice, did_you_mean, under
from stgt._internal.hyper import short_repr
from stgt._internal.registry import ALGORITHMS, ORACLES, Registry
from stgt._internal.schedules import StepsizeSchedule, cosine, inverse, step, stepsizes

SCHEDULES: dict[str, Callable[..., Any]] = {function.__name__: function for function in (cosine, step, inverse)}


def to_plain(value: Any, rounds: int = 0) -> Any:
    """A value in a form that JSON can hold: a table for an algorithm or an oracle, the short repr of other objects.

    A stepsize that is a user's function becomes its values in the first `rounds` rounds. The function cannot be
    restored from them. Neither can an object whose class is not registered; its table says so.
    """
    if isinstance(value, StepsizeSchedule):
        return {"schedule": type(value).__name__.lower(), **_options(value, rounds)}
    if is_dataclass(value) and not isinstance(value, type):
        kind = type(value)
        known = [name for registry in (ALGORITHMS, ORACLES) for name, one in registry.items() if one is kind]
        return {"name": known[0] if known else f"{kind.__name__} (not registered)", **_options(value, rounds)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(one, rounds) for key, one in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(one, rounds) for one in value]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    plain = getattr(value, "tolist", None)  # an array has it
    return short_repr(value) if plain is None else plain()


def _options(thing: Any, rounds: int) -> dict[str, Any]:
    found = {field.name: to_plain(getattr(thing, field.name), rounds) for field in fields(thing) if field.init}
    gamma = getattr(thing, "gamma", None)
    if "gamma" in found and callable(gamma) and not isinstance(gamma, StepsizeSchedule):
        found["gamma"] = {"function": stepsizes(gamma, 0, rounds).tolist()}
    return found


def from_plain(value: Any, find: Callable[[Any], Callable[..., Any]], **defaults: Any) -> Any:
    """The object that a table describes: a call of what is registered under its name, or a schedule.

    Arguments of the call may be tables too. Any value that is not a table is returned unchanged.

    Args:
        value: the table.
        find: gives the class or function of a name.
        defaults: arguments that are passed to each function that takes them and was not given them.

    Returns:
        The object. An InputError has the path to the wrong argument.
    """
    if isinstance(value, tuple | list):
        return [_under(index, one, find, defaults) for index, one in enumerate(value)]
    if not isinstance(value, Mapping) or not value.keys() & {"name", "schedule"}:
        return value
    key = "name" if "name" in value else "schedule"
    arguments = {name: _under(name, one, find, defaults) for name, one in value.items() if name != key}
    if key == "schedule":
        return call(SCHEDULES[check_choice(value[key], key, SCHEDULES)], arguments, value[key])
    function = find(value[key])
    taken = inspect.signature(function).parameters if defaults else ()
    return call(function, {name: one for name, one in defaults.items() if name in taken} | arguments, value[key])


def _under(key: str | int, value: Any, find: Callable[[Any], Callable[..., Any]], defaults: dict[str, Any]) -> Any:
    with under(key):
        return from_plain(value, find, **defaults)


def registered(registry: Registry) -> Callable[[Any], Callable[..., Any]]:
    """A `find` for tables from elsewhere: it searches what this process has registered, and loads no package."""
    return partial(registry.find, argument="name", installed=False)


def call(function: Callable[..., Any], arguments: dict[str, Any], name: str) -> Any:
    """`function(**arguments)`; an InputError names the wrong argument, or none if several are involved."""
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


def unknown_argument(key: str, name: str, taken: Sequence[str]) -> InputError:
    """The error for an argument that the named function does not take."""
    return InputError((key,), hint=f"{name} takes {', '.join(taken) or 'no arguments'}{did_you_mean(key, taken)}")
