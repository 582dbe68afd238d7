"""TOML files with one run, or several as [[runs]], and the entries that the command line changes."""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Annotated, Any, TypeVar, get_args

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import core_schema

from stgt._internal.checks import (
    InputError,
    check_choice,
    check_count,
    check_flag,
    check_number,
    did_you_mean,
    first_line,
    toml_path,
)
from stgt._internal.hyper import short_repr

DEEPEST = 20  # levels of nested tables and lists
WHOLE = 2**63  # whole numbers in TOML are below it
MOST = 10**9  # the largest number of rounds, seeds and so on
WANTED = {"dict": "a table", "list": "a list", "model": "a table", "string": "a text in quotes", "tuple": "a list"}

# The types of entries: an editor reads the limits, and the checks write the error message about a value outside.
Flag = Annotated[bool, BeforeValidator(partial(check_flag, name=()))]
Count = Annotated[int, Field(ge=1, le=MOST), BeforeValidator(partial(check_count, name=(), most=MOST))]
CountOrNone = Annotated[int, Field(ge=0, le=MOST), BeforeValidator(partial(check_count, name=(), least=0, most=MOST))]
Positive = Annotated[float, Field(gt=0), BeforeValidator(partial(check_number, name=(), above=0))]
NonNegative = Annotated[float, Field(ge=0), BeforeValidator(partial(check_number, name=(), least=0))]


class OneOf:
    """The type of an entry that is one of a few words."""

    def __init__(self, *words: str):
        self.words = words

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> core_schema.CoreSchema:
        return core_schema.no_info_plain_validator_function(partial(check_choice, name=(), allowed=self.words))

    def __get_pydantic_json_schema__(self, schema: Any, handler: Any) -> dict[str, Any]:
        return {"enum": list(self.words)}


class Table(BaseModel):
    """A table of a spec. An InputError names an entry that is unknown or missing."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @model_validator(mode="before")
    @classmethod
    def _check_keys(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        fields = cls.model_fields
        for key in given if cls.model_config.get("extra") == "forbid" else ():
            if key not in fields:
                raise unknown_key(key, list(fields))
        for name, field in fields.items():
            if field.is_required() and name not in given:
                holds_table = isinstance(field.annotation, type) and issubclass(field.annotation, Table)
                example = "the name" if name == "name" else f"{name} = …{f', or a table [{name}]' * holds_table}"
                raise InputError((name,), hint=f" was left out: give {example}.")
        return given


class Named(Table):
    """A name and its arguments, such as {name = "exponential", neighbors = 3}."""

    model_config = ConfigDict(extra="allow", frozen=True)
    name: str

    @property
    def arguments(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


Model = TypeVar("Model", bound=BaseModel)


def read_spec(path: Path, kind: type[Model], sets: Iterable[str] = ()) -> Model:
    """Reads a TOML file with one run, or several as [[runs]].

    Entries outside [[runs]] apply to all runs that do not define them. A table of a run is merged over the table of
    the same name outside. If both have a `name` (or `schedule`) and these differ, it replaces that table.

    Args:
        path: the file.
        kind: the model of the spec, whose field `runs` has the runs.
        sets: "key=value" each, which replace the file's entries: "algorithm.gamma=0.1" in every run,
            "runs.1.algorithm.gamma=0.1" in the second. A value is parsed as TOML; if it is not TOML, it is text.

    Returns:
        The spec; a ValueError names the file and the entry.
    """
    document = _document(path)
    with in_spec(path):
        given = _with_runs(document, kind)
    for one in sets:
        _put(given, one, kind)
    with in_spec(path, given["runs"]):
        _check_values(given)
        try:
            return kind.model_validate(given)
        except ValidationError as error:
            raise _input_error(error.errors()[0]) from None


@contextmanager
def in_spec(path: Path, runs: Sequence[Any] = ()) -> Iterator[None]:
    """Adds the file to an InputError; its path keeps the run, as `runs.1.`, only if the runs differ at this entry."""
    try:
        yield
    except InputError as error:
        match error.path:
            case "runs", int(), *entry if entry and len({repr(_at(run, entry)) for run in runs}) == 1:
                error.path = tuple(entry)
        error.file = error.file or path
        raise


def _at(value: Any, keys: Sequence[Any]) -> Any:
    for key in keys:
        if isinstance(value, BaseModel):
            value = value.model_dump()
        if isinstance(value, list | tuple) and isinstance(key, int) and key < len(value):
            value = value[key]
        else:
            value = value.get(key) if isinstance(value, dict) else None
    return value


def _input_error(found: Mapping[str, Any]) -> InputError:
    """One of the `errors()` of a ValidationError."""
    cause = found.get("ctx", {}).get("error")
    if isinstance(cause, InputError):
        cause.path = (*found["loc"], *cause.path)
        return cause
    wanted = "at least one" if found["type"] == "too_short" else WANTED.get(found["type"].removesuffix("_type"))
    return InputError(found["loc"], found["input"], f"give {wanted}." if wanted else f"{found['msg']}.")


def spec_text(spec: BaseModel, with_defaults: bool = False) -> str:
    """A spec as TOML, which `read_spec` can read; `with_defaults` also writes the entries that have default values.

    Entries that all runs have in common are written once, outside the runs.
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
        document = tomllib.loads(path.read_bytes().decode("utf-8-sig"))
    except OSError as error:
        raise InputError("spec", path, f" cannot be read ({error.strerror}): give the path of a TOML file.") from None
    except UnicodeDecodeError as error:
        raise InputError("spec", path, f" is not UTF-8 (byte {error.start}): save it as UTF-8 text.") from None
    except RecursionError:
        raise _too_deep("spec", path) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError("spec", path, f" is not TOML: {first_line(error)}.") from None
    except ValueError as error:  # an impossible path, or a number with thousands of digits
        raise InputError(
            "spec", path, f" cannot be read ({first_line(error)}): give the path of a TOML file."
        ) from None
    if not document:
        raise InputError("spec", path, " is empty: give the tables of a run, such as [algorithm].")
    return document


def _with_runs(document: Mapping[str, Any], kind: type[BaseModel]) -> dict[str, Any]:
    """The document with every run complete in `runs`."""
    own, of_run = _fields(kind)
    for key in document:
        if key not in ("runs", *own, *of_run):
            raise unknown_key(key, [*of_run, *own, "runs"])
    shared = {key: value for key, value in document.items() if key in of_run}
    runs = document.get("runs", [{}])
    if not isinstance(runs, list) or not runs or not all(isinstance(run, dict) for run in runs):
        raise InputError("runs", runs, "give a table [[runs]] for each run.")
    kept = {key: value for key, value in document.items() if key in own}
    return {**deepcopy(kept), "runs": [_merged(shared, run) for run in runs]}


def _fields(kind: type[BaseModel]) -> tuple[list[str], list[str]]:
    """The names of the entries of the spec itself, and of those of its runs."""
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
    """Do the tables describe different things?"""
    return any(key in one and key in other and one[key] != other[key] for key in ("name", "schedule"))


def _put(given: dict[str, Any], one: str, kind: type[BaseModel]) -> None:
    """Sets an entry from the command line."""
    key, equals, text = one.partition("=")
    try:
        keys = _keys(tomllib.loads(f"{key} = 0"))
    except ValueError:
        keys = []
    if not equals or not keys:
        raise InputError("sets", one, "give key=value, such as algorithm.gamma=0.1.")
    value, (own, of_run) = _value(text), _fields(kind)
    count = len(given["runs"])
    if keys[0] == "runs":
        if len(keys) < 3 or not keys[1].isdecimal() or int(keys[1]) >= count:
            raise InputError("sets", one, f"runs are numbered 0 to {count - 1}, as in runs.0.rounds=100.")
        places, keys = [given["runs"][int(keys[1])]], keys[2:]
        known = of_run
    else:
        places, known = ([given] if keys[0] in own else given["runs"]), [*of_run, *own, "runs"]
    if keys[0] not in known:
        raise InputError("sets", one, toml_path(keys[:1]) + unknown_key(keys[0], known).hint)
    for place in places:
        for depth, step in enumerate(keys[:-1]):
            place = place.setdefault(step, {})
            if not isinstance(place, dict):
                where = toml_path(keys[: depth + 1])
                raise InputError("sets", one, f"{where} is not a table, but {short_repr(place)}.")
        place[keys[-1]] = deepcopy(value)


def _keys(table: Any) -> list[str]:
    """The keys that lead to the only value of a document."""
    found = []
    while isinstance(table, dict):
        if len(table) != 1:
            return []
        ((key, table),) = table.items()
        found.append(key)
    return found


def _value(text: str) -> Any:
    """The value of TOML text; if it is not TOML, the text itself."""
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if list(found) == ["value"] else text


def _check_values(value: Any, entry: tuple[Any, ...] = ()) -> None:
    """An InputError for a value that no entry can have: a date, deep nesting, a number not finite or too large."""
    if isinstance(value, dict | list):
        if len(entry) > DEEPEST:
            raise _too_deep(entry[:4])
        for key, one in value.items() if isinstance(value, dict) else enumerate(value):
            _check_values(one, (*entry, key))
    elif isinstance(value, datetime.date | datetime.time):
        raise InputError(entry, str(value), "no entry is a date or a time; give a text in quotes or a number.")
    elif isinstance(value, float) and not math.isfinite(value):
        raise InputError(entry, value, "give a finite number.")
    elif isinstance(value, int) and not -WHOLE <= value < WHOLE:
        raise InputError(entry, value, "give a whole number below 2**63.")


def _too_deep(argument: Any, value: Any = ...) -> InputError:
    return InputError(argument, value, f" nests tables or lists more than {DEEPEST} levels deep: use fewer levels.")


def unknown_key(key: str, known: Sequence[str]) -> InputError:
    return InputError((key,), hint=f" is not known: choose from {', '.join(known)}{did_you_mean(key, known)}")
