"""Real-valued parameters of a frozen dataclass, which an engine may trace or batch. Standard library only."""

from __future__ import annotations

import copy
from dataclasses import fields
from typing import Any, Self


class Hyper:
    """Gives a frozen dataclass `hyper`, its real-valued fields, and `bind`, a copy with other values."""

    def hyper(self) -> dict[str, Any]:
        """The real-valued fields by name."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}  # pyright: ignore[reportArgumentType]
        return {name: value for name, value in values.items() if isinstance(value, float | tuple)}

    def bind(self, **values: Any) -> Self:
        """A copy with these values put in unchecked; for engines, whose values may be tracers."""
        other = copy.copy(self)
        other._set(**values)
        return other

    def _set(self, **values: Any) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
