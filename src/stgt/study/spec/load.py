"""TOML files that hold one run, or several as [[runs]], and what a command line sets in them."""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from stgt._internal.checks import did_you_mean
from stgt._internal.hyper import short_repr
from stgt.study.spec.error_format import EntryError, as_entry_error, dotted, of_run

Model = TypeVar("Model", bound=BaseModel)
DEEPEST = 20  # tables and lists within each other
WHOLE = 2**63  # TOML's whole numbers are below it


def read_spec(path: Path, kind: type[Model], sets: Iterable[str] = ()) -> Model:
    """Reads a TOML file that holds one run, or several as [[runs]].

    Entries outside of [[runs]] hold for all of them unless they have their own: a table of a run is merged over the one
    of that name outside; if both have a `name` (or `schedule`) and these differ, it takes its place.

    Args:
        path: of the file.
        kind: of spec, a model whose field `runs` holds the runs.
        sets: "key=value" each, put in the place of the file's entries: "algorithm.gamma=0.1" in every run,
            "runs.1.algorithm.gamma=0.1" in the second. A value is read as TOML, or as a word if it is none.

    Returns:
        The spec; a ValueError names the file and the entry.
    """
    given = _document(path)
    try:
        given = _with_runs(given, kind)
        for one in sets:
            _put(given, one, kind)
        _check_values(given)
        return _validated(kind, given)
    except EntryError as error:
        raise ValueError(f"spec {path}: {_placed(error, given)}") from None


def spec_text(spec: BaseModel, with_defaults: bool = False) -> str:
    """A spec as TOML, which `read_spec` reads back; `with_defaults` writes the entries it leaves to defaults too.

    What all runs have in common stands once, outside of them.
    """
    found = spec.model_dump(exclude_none=True) if with_defaults else spec.model_dump(exclude_defaults=True)
    first, *others = [{key: value for key, value in run.items() if value not in ("", {})} for run in found.pop("runs")]
    shared = {key: value for key, value in first.items() if all(key in run and run[key] == value for run in others)}
    runs = [{key: value for key, value in run.items() if key not in shared} for run in (first, *others)]
    own = {key: value for key, value in found.items() if value not in ("", {})}
    return tomli_w.dumps({**own, **shared, **({"runs": runs} if others else {})})


def run_model(kind: type[BaseModel]) -> type[BaseModel]:
    """The model of one run of a spec."""
    return get_args(kind.model_fields["runs"].annotation)[0]


def _document(path: Path) -> dict[str, Any]:
    try:
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"spec {path} cannot be read ({error.strerror}): give the path of a TOML file.") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"spec {path} is not UTF-8 (byte {error.start}): save it as UTF-8 text.") from None
    except ValueError as error:  # a path that no system has
        raise ValueError(f"spec {str(path)!r} cannot be read ({error}): give the path of a TOML file.") from None
    try:
        document = tomllib.loads(text)
    except RecursionError:
        raise ValueError(
            f"spec {path} has more tables or lists within each other than {DEEPEST}: nest fewer."
        ) from None
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"spec {path} is not TOML: {' '.join(str(error).split())}.") from None
    except ValueError:  # Python's own limit
        raise ValueError(f"spec {path} has a number of thousands of digits: give fewer.") from None
    if not document:
        raise ValueError(f"spec {path} is empty: give the tables of a run, such as [algorithm].")
    return document


def _with_runs(document: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """The document with all of each run in `runs`."""
    own, of_run = _fields(kind)
    for key in document:
        if key not in ("runs", *own, *of_run):
            raise _unknown((key,), [*of_run, *own, "runs"])
    shared = {key: value for key, value in document.items() if key in of_run}
    runs = document.get("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise EntryError(["runs"], f"={short_repr(runs)}: give a table [[runs]] for each run.")
    kept = {key: value for key, value in document.items() if key in own}
    return {**deepcopy(kept), "runs": [_merged(shared, run) for run in runs]}


def _fields(kind: type[BaseModel]) -> tuple[list[str], list[str]]:
    """What stands in a spec itself, and what in its runs."""
    return [name for name in kind.model_fields if name != "runs"], list(run_model(kind).model_fields)


def _merged(shared: Mapping[str, Any], own: Mapping[str, Any]) -> dict[str, Any]:
    found = deepcopy(dict(shared))
    for key, value in own.items():
        before = found.get(key)
        if isinstance(before, dict) and isinstance(value, Mapping) and not _others(before, value):
            found[key] = _merged(before, value)
        else:
            found[key] = deepcopy(value)
    return found


def _others(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Do the tables stand for different things?"""
    return any(key in one and key in other and one[key] != other[key] for key in ("name", "schedule"))


def _put(given: dict[str, Any], one: str, kind: type[BaseModel]) -> None:
    """Puts what a command line sets in its place."""
    key, equals, text = one.partition("=")
    try:
        keys = _keys(tomllib.loads(f"{key} = 0"))
    except ValueError:
        keys = []
    if not equals or not keys:
        raise ValueError(f"sets {one!r}: give key=value, such as algorithm.gamma=0.1.")
    value, (own, of_run) = _value(text), _fields(kind)
    count = len(given["runs"])
    if keys[0] == "runs":
        if len(keys) < 3 or not keys[1].isdecimal() or int(keys[1]) >= count:
            raise ValueError(f"sets {one!r}: runs go from runs.0 to runs.{count - 1}, such as runs.0.rounds=100.")
        places, keys = [given["runs"][int(keys[1])]], keys[2:]
        known = of_run
    else:
        places, known = ([given] if keys[0] in own else given["runs"]), [*of_run, *own, "runs"]
    if keys[0] not in known:
        choices = f"{', '.join(known)}{did_you_mean(keys[0], known)}"
        raise ValueError(f"sets {one!r}: {dotted(keys[:1])} is not known: choose from {choices}")
    for place in places:
        for depth, step in enumerate(keys[:-1]):
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                raise ValueError(f"sets {one!r}: {dotted(keys[: depth + 1])} is not a table, but {short_repr(place)}.")
        place[keys[-1]] = deepcopy(value)


def _keys(table: Any) -> list[str]:
    """The keys that lead to the one value of a document."""
    found = []
    while isinstance(table, dict):
        if len(table) != 1:
            return []
        ((key, table),) = table.items()
        found.append(key)
    return found


def _value(text: str) -> Any:
    """A value in TOML; a word, or several, where it is none."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if list(found) == ["value"] else text


def _check_values(value: Any, entry: tuple[Any, ...] = ()) -> None:
    """An EntryError at what no entry can be: a date, what is not finite, a number or a nesting too large."""
    if isinstance(value, dict | list):
        if len(entry) > DEEPEST:
            raise EntryError(entry[:4], f" has more tables or lists within each other than {DEEPEST}: nest fewer.")
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            _check_values(one, (*entry, key))
    elif isinstance(value, datetime.date | datetime.time):
        raise EntryError(entry, f"={value}: no entry is a date or a time; give a text in quotes or a number.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise EntryError(entry, f"={value}: give a finite number.")
    elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
        raise EntryError(entry, f"={short_repr(value)}: give a whole number below 2**63.")


def _validated(kind: type[Model], given: dict[str, Any]) -> Model:
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        raise as_entry_error(error.errors()[0], kind) from None


def _placed(error: EntryError, given: Mapping[str, Any]) -> EntryError:
    """The error by its entry's place in the file."""
    match error.entry:
        case "runs", int(index), *entry if entry:
            return EntryError(of_run(entry, given["runs"], index), error.words)
    return error


def _unknown(entry: Sequence[Any], known: Sequence[str]) -> EntryError:
    return EntryError(entry, f" is not known: choose from {', '.join(known)}{did_you_mean(entry[-1], known)}")
