"""Checks of arguments, and the errors that they raise. Standard library only."""

from __future__ import annotations

import inspect
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from stgt._internal.hyper import short_repr

if TYPE_CHECKING:
    from click import Command

Function = TypeVar("Function", bound=Callable[..., Any])

Argument = str | Iterable[str | int]  # a name such as "algorithm.gamma", or the keys that lead to it
LONGEST_KEY = 60  # characters of a key that are shown
LONGEST = 100  # characters of a wrong value that are compared with the allowed words


class NotCovered(ValueError):  # noqa: N818
    """The theory does not cover the case. A caller may give an estimate instead, and marks it as one.

    Only this error may turn an exact answer into an estimate or None. Any other error is wrong input or a bug.
    """


class InputError(ValueError):
    """An argument that cannot be used. As text: `gamma=-1: give a finite number above 0.`

    Attributes:
        path: the keys that lead to the argument, such as ("algorithm", "gamma"). A caller prepends its own by `under`.
        value: what was given; ... if it is not shown.
        hint: what to give instead. A hint that begins with a space or a comma first says what is wrong with the value.
        other: another argument, which replaces `{other}` in the hint. Written as in Python: "force=True".
        file: the spec file that holds the argument, if there is one.
    """

    def __init__(self, argument: Argument, value: Any = ..., hint: str = "", *, other: str = ""):
        super().__init__(argument, value, hint)
        self.path = tuple(argument.split(".")) if isinstance(argument, str) else tuple(argument)
        self.value, self.hint, self.other = value, hint, other
        self.file: PurePath | None = None

    @property
    def argument(self) -> str:
        """The path as one string, such as "algorithm.gamma" or "edges[2]"; "edges.2" for an entry of a file."""
        if self.file is not None:
            return toml_path(self.path)
        return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.path).removeprefix(".")

    def text(self, flags: Mapping[str, str]) -> str:
        """The error text; arguments are written as the command line's flags where `flags` has them."""
        name = str(self.path[0]) if self.path and self.file is None else ""
        argument = flags.get(name, name) + self.argument[len(name) :]
        is_path = isinstance(self.value, PurePath)
        given = "" if self.value is ... else f" {self.value}" if is_path else f"={_plain(self.value)}"
        follows = ": " if (argument or given) and not self.hint.startswith((" ", ",")) else ""
        hint = self.hint.replace("{other}", flags.get(self.other.removesuffix("=True"), self.other))
        where = "" if self.file is None else f"{flags.get('spec', 'spec')} {self.file}: "
        return f"{where}{argument}{given}{follows}{hint}"

    def __str__(self) -> str:
        return self.text({})

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled for another process: plain values as they are, any other value as its repr."""
        is_plain = self.value is ... or isinstance(self.value, str | int | float | PurePath | None)
        kept = {**vars(self), "value": self.value if is_plain else _Given(_plain(self.value))}
        return type(self), (self.path,), kept


class _Given(str):
    """The repr of a value that was not sent to this process."""

    __repr__ = str.__str__


@contextmanager
def under(*keys: str | int) -> Iterator[None]:
    """Prepends the keys to the path of every InputError raised inside."""
    try:
        yield
    except InputError as error:
        error.path = (*keys, *error.path)
        raise


def one_line(error: BaseException) -> str:
    """An exception's text in one line, to quote."""
    return " ".join(str(error).split())


def first_line(error: BaseException) -> str:
    """The first line of an exception's text, to quote inside another message."""
    return next(iter(str(error).strip().splitlines()), "").rstrip(". ")


def quoted(error: BaseException) -> str:
    """An exception's type and the first line of its text, to quote inside another message."""
    return f"{type(error).__name__}: {first_line(error)}".removesuffix(": ")


def in_flags(error: ValueError, command: Command) -> str:
    """The text of an error, with the flags of a command instead of arguments."""
    flags = {
        str(one.name): one.opts[0] if one.param_type_name == "option" else one.human_readable_name
        for one in command.params
    }
    if "out" in flags:
        flags.setdefault("path", flags["out"])  # what functions call the file to write
    return error.text(flags) if isinstance(error, InputError) else str(error)


def check_count(value: Any, name: Argument, least: int = 1, most: float = math.inf) -> int:
    """Checks a whole number from `least` to `most`, and returns it as an int."""
    wanted = f"a whole number of at least {least}." if most == math.inf else f"a whole number from {least} to {most}."
    try:
        if _is_flag(value):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise _no_number(name, value, wanted) from None
    if not least <= number <= most:
        raise InputError(name, number, f"give {wanted}")
    return number


def check_seed(seed: Any) -> int:
    """Checks a seed in [0, 2**32)."""
    number = check_count(seed, "seed", 0)
    if number >= 2**32:
        raise InputError("seed", number, "give a seed below 2**32.")
    return number


def check_number(
    value: Any,
    name: Argument,
    *,
    above: float = -math.inf,
    least: float = -math.inf,
    most: float = math.inf,
    below: float = math.inf,
) -> float:
    """Checks a finite number with value > above, value >= least, value <= most and value < below; returns a float."""
    try:
        if _is_flag(value) or isinstance(value, str):
            raise TypeError
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        raise _no_number(name, value, f"a number{_range(above, least, most, below)}.") from None
    if not (math.isfinite(number) and above < number < below and least <= number <= most):
        raise InputError(name, number, f"give a finite number{_range(above, least, most, below)}.")
    return number


def first_repeated(values: Iterable[Any]) -> Any:
    """The first value that occurs twice; None if no value does."""
    seen = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


def check_flag(value: Any, name: Argument) -> bool:
    """Checks that a value is True or False."""
    if not _is_flag(value):
        raise InputError(name, value, "give True or False.")
    return bool(value)


def check_choice(value: Any, name: Argument, allowed: Iterable[str]) -> str:
    """Checks that a value is one of the allowed words."""
    words = list(allowed)
    if not isinstance(value, str) or value not in words:
        choices = ", ".join(repr(word) for word in words)
        raise InputError(name, value, f"choose from {choices}{did_you_mean(value, words)}")
    return value


def did_you_mean(given: Any, allowed: Iterable[str]) -> str:
    """The end of an error text that lists the allowed words: a suggestion if one is similar, otherwise a full stop."""
    from difflib import get_close_matches  # imported only when there is an error

    if not isinstance(given, str):
        return "."
    words = {word.lower(): word for word in allowed}
    close = get_close_matches(given.lower()[:LONGEST], words, n=1)
    return f"; did you mean {words[close[0]]!r}?" if close else "."


def spelt(function: Function, called: str = "", also: Iterable[str] = ()) -> Function:
    """Wraps a function so that the error for an unknown keyword argument suggests the nearest name.

    Args:
        function: the function; returned unchanged if its arguments have no names.
        called: the name in the error text, if it is not the function's own.
        also: names that the function takes through its `**options`.
    """
    code = getattr(function, "__code__", None)
    if code is None or (code.co_flags & inspect.CO_VARKEYWORDS and not also):
        return function
    names = list(dict.fromkeys([*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount], *also]))

    @wraps(function)
    def checked(*values: Any, **named: Any) -> Any:
        for name in named:
            if name not in names:
                allowed = [one for one in names if one != "self"]
                raise TypeError(
                    f"{called or function.__name__}() has no option {name!r}: it takes {', '.join(allowed)}"
                    f"{did_you_mean(name, allowed)}"
                )
        return function(*values, **named)

    return checked  # pyright: ignore[reportReturnType]


def _no_number(name: Argument, value: Any, wanted: str) -> InputError:
    """The error for a value that is not a number. For a number given as text it says to drop the quotes."""
    try:
        numeral = isinstance(value, str) and math.isfinite(float(value))
    except ValueError:
        numeral = False
    if numeral:
        return InputError(name, value, f" is text: drop the quotes, and give {wanted}")
    return InputError(name, value, f"give {wanted}")


def _plain(value: Any) -> str:
    """The repr of a value; a float has six digits if that is exact."""
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value or math.isnan(value) else repr(float(value))
    return short_repr(value)


def toml_path(keys: Iterable[str | int]) -> str:
    """Keys as TOML joins them, in one line; a key that is not a plain word is quoted."""
    found = []
    for key in map(str, keys):
        is_bare = len(key) <= LONGEST_KEY and key.isascii() and key.replace("-", "_").replace("_", "a").isalnum()
        found.append(key if is_bare else repr(key if len(key) <= LONGEST_KEY else f"{key[: LONGEST_KEY - 1]}…"))
    return ".".join(found)


def _is_flag(value: Any) -> bool:
    return type(value).__name__ in ("bool", "bool_")  # NumPy's bool too


def _range(above: float, least: float, most: float, below: float) -> str:
    limits = []
    if above > -math.inf:
        limits.append(f"above {above:g}")
    if least > -math.inf:
        limits.append(f"of at least {least:g}")
    if most < math.inf:
        limits.append(f"up to {most:g}")
    if below < math.inf:
        limits.append(f"below {below:g}")
    return " " + " and ".join(limits) if limits else ""
