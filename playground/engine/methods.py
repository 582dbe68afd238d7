"""The methods by their names in the settings, made of the library's classes, and the lines of their source."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import fields
from textwrap import dedent
from typing import Any

import stgt
from stgt.algorithms.outer import OuterStep

KINDS: dict[str, tuple[type[stgt.Algorithm], dict[str, Any]]] = {
    "FedAvg": (stgt.FedAvg, {}),
    "DPSGD": (stgt.DPSGD, {}),
    "Scaffold": (stgt.Scaffold, {}),
    "STGT": (stgt.STGT, {}),
    "STGT_adjoint": (stgt.STGT, {"adjoint": True}),
    "LED": (stgt.LED, {}),
    "DiLoCo": (stgt.DiLoCo, {}),
}


def arguments(entry: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The class's name and its arguments; `beta` and `momentum` only where the class has them."""
    kind, fixed = KINDS[entry["name"]]
    known = {one.name for one in fields(kind)}
    given = {name: entry[name] for name in ("gamma", "tau", "beta", "momentum") if entry.get(name) is not None}
    return kind.__name__, {name: value for name, value in given.items() if name in known} | fixed


def outer_momentum(entry: Mapping[str, Any]) -> float:
    """The momentum around a method that has none of its own; 0 for none."""
    kind, _ = KINDS[entry["name"]]
    return 0.0 if issubclass(kind, stgt.Outer) else float(entry.get("momentum") or 0.0)


def make(entry: Mapping[str, Any]) -> stgt.Algorithm:
    """The method of an entry of the settings; with momentum it is wrapped in `stgt.Outer`."""
    name, options = arguments(entry)
    method = getattr(stgt, name)(**options)
    momentum = outer_momentum(entry)
    return stgt.Outer(method, momentum=momentum) if momentum else method


def source(method: stgt.Algorithm) -> dict[str, Any]:
    """The lines of a method's round, as they stand in the library."""
    inner = method.inner if isinstance(method, OuterStep) else method
    parts = [("correction", inner.correction), ("message", inner.message), ("merge", inner.merge)]
    if isinstance(method, OuterStep):
        parts.append(("step", method.step))
    owner = type(inner)
    return {
        "file": f"{owner.__module__.replace('.', '/')}.py",
        "name": owner.__name__,
        "lines": [{"part": name, "code": _code(function)} for name, function in parts],
    }


def _code(function: Any) -> str:
    """The source of a function without its docstring."""
    code = dedent(inspect.getsource(function)).rstrip()
    said = function.__doc__
    if not said:
        return code
    before, _, after = code.partition('"""')
    return before.rstrip() + after.partition('"""')[2]
