"""Registries of names: algorithms, topologies, problems, oracles, metrics, and a user's models and data sets.

`register` gives a class, a function or a metric a name for spec files, the command line, `stgt list`, training and
Flower. An installed package registers its own by the entry points "stgt.algorithms", "stgt.topologies",
"stgt.problems", "stgt.oracles", "stgt.metrics", "stgt.models" and "stgt.datasets". Standard library only.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stgt._internal.checks import Argument, InputError, did_you_mean, spelt

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

Thing = TypeVar("Thing")


class Registry:
    """Maps names to classes, functions that make an object, or metrics."""

    def __init__(self, kind: str, group: str):
        self.kind, self.group = kind, group
        self._known: dict[str, Any] = {}

    def add(self, name: str, thing: Any) -> None:
        """Adds an entry. The same definition run again, as in a notebook, replaces the earlier one."""
        known = self._known.get(name)
        if known is not None and _origin(known) != _origin(thing):
            raise ValueError(
                f"{self.kind} {name!r} is registered already, by {_origin(known)[0]}: "
                "give yours another name, by @stgt.register(name=…)."
            )
        self._known[name] = thing

    def find(self, name: Any, argument: Argument, *, installed: bool = True) -> Any:
        """The entry with this name; otherwise an InputError lists the known names.

        With `installed=False` it searches only what this process has registered, and loads no package.
        """
        if isinstance(name, str) and name in self._known:
            return self._known[name]
        for entry in self._entries() if installed else ():
            if entry.name == name:
                self.add(entry.name, entry.load())
                return self._known[entry.name]
        known = self.names() if installed else list(self._known)
        choices = f"choose from {', '.join(map(repr, known))}" if known else f"no {self.kind} is registered"
        hint = f"{choices}; a name of your own is known once its script has registered it{did_you_mean(name, known)}"
        raise InputError(argument, name, hint)

    def name_of(self, thing: Callable[..., Any]) -> str:
        """The registered name of an entry; a ValueError if it has none."""
        for name, known in self._known.items():
            if known is thing:
                return name
        raise ValueError(f"{thing.__name__} is not registered: put @stgt.register above its definition.")

    def names(self) -> list[str]:
        """All names; those of installed packages come last."""
        return list(dict.fromkeys([*self._known, *(entry.name for entry in self._entries())]))

    def _entries(self) -> list[EntryPoint]:
        from importlib.metadata import entry_points  # takes half the time of `import stgt`

        return list(entry_points(group=self.group))

    def __getitem__(self, name: str) -> Any:
        return self._known[name]

    def get(self, name: str) -> Any:
        """The entry that this process has registered under the name, or None."""
        return self._known.get(name)

    def items(self) -> list[tuple[str, Any]]:
        return list(self._known.items())


ALGORITHMS = Registry("algorithm", "stgt.algorithms")
TOPOLOGIES = Registry("topology", "stgt.topologies")
PROBLEMS = Registry("problem", "stgt.problems")
ORACLES = Registry("oracle", "stgt.oracles")
METRICS = Registry("metric", "stgt.metrics")
MODELS = Registry("model", "stgt.models")
DATASETS = Registry("data set", "stgt.datasets")
_BY_BASE = {"Algorithm": ALGORITHMS, "Oracle": ORACLES, "Metric": METRICS}
_BY_RESULT = {"Topology": TOPOLOGIES, "Problem": PROBLEMS, "Module": MODELS, "LabelledData": DATASETS}


@overload
def register(thing: Thing, /) -> Thing: ...


@overload
def register(*, name: str) -> Callable[[Thing], Thing]: ...


def register(thing: Any = None, /, *, name: str | None = None) -> Any:
    """Gives an algorithm, a topology, a problem, an oracle, a metric, a model or a data set a name.

    The base of a class decides what it is: an algorithm (`stgt.Algorithm`) or an oracle (`stgt.Oracle`). The return
    annotation of a function decides what it makes: `-> stgt.Topology`, `-> stgt.Problem`, `-> torch.nn.Module` or
    `-> stgt.torch.train.LabelledData`. Pass a metric itself: `stgt.register(stgt.Metric(…))`.

    Args:
        thing: the class, function or metric; omitted if you give a name: `@stgt.register(name="led")`.
        name: replaces the object's own name.

    Returns:
        What was given, so that you can use it as a decorator. If you call the class or function with an unknown
        keyword argument, its error now suggests the nearest name.
    """
    if thing is None:
        return lambda given: _register(given, name)
    return _register(thing, name)


def _register(thing: Any, name: str | None) -> Any:
    bases = [base.__name__ for base in (thing if isinstance(thing, type) else type(thing)).__mro__]
    registry = next((_BY_BASE[base] for base in bases[isinstance(thing, type) :] if base in _BY_BASE), None)
    if isinstance(thing, type):
        if registry is None or registry is METRICS:
            raise ValueError(
                f"{thing.__name__} is neither an algorithm nor an oracle: derive it from stgt.Algorithm or stgt.Oracle."
            )
        getattr(thing, "check_class", lambda: None)()
        thing.__init__ = spelt(thing.__init__, thing.__name__)
    elif registry is METRICS:
        thing = replace(thing, name=name) if name else thing
        METRICS.add(thing.name, thing)
        return thing
    else:
        result = getattr(thing, "__annotations__", {}).get("return")
        word = result if isinstance(result, str) else getattr(result, "__name__", "")
        registry = _BY_RESULT.get(word.strip("'\"").rsplit(".", 1)[-1])
        if not callable(thing) or registry is None:
            raise ValueError(
                f"register was given {getattr(thing, '__name__', thing)!r}: give a class derived from stgt.Algorithm "
                "or stgt.Oracle, a stgt.Metric, or a function whose return annotation is stgt.Topology, stgt.Problem, "
                "torch.nn.Module or stgt.torch.train.LabelledData."
            )
        thing = spelt(thing)
    registry.add(name or thing.__name__, thing)
    return thing


def import_script(path: Path | str) -> None:
    """Runs a user's script, so that it registers what it defines.

    The script can import modules from its own folder, as if it were run directly.
    """
    given, path = path, Path(path).resolve()
    if not path.is_file():
        raise ValueError(f"script {given}: there is no such file; give the path of a Python script.")
    spec = importlib.util.spec_from_file_location(f"_imported_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"script {given}: it is not Python; give a file that ends in .py.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their annotations there
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[spec.name]
        if isinstance(error, ValueError):
            raise
        raise ValueError(f"script {given} failed ({type(error).__name__}: {error}): correct the script.") from error


def summary(thing: Callable[..., Any]) -> str:
    """The first sentence of a docstring, in one line; "" without one. For a metric, its formula."""
    import inspect

    words = getattr(thing, "formula", None) or inspect.getdoc(thing) or ""
    return " ".join(words.split("\n\n")[0].split()).rstrip(":")


def _origin(thing: Any) -> tuple[str, str]:
    defined = getattr(thing, "compute", thing)  # the function of a metric
    return defined.__module__, getattr(defined, "__qualname__", "")
