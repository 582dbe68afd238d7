"""The worker's side in Python: a message as JSON, and its answer as JSON."""

from __future__ import annotations

import json
from typing import Any

from playground.engine.export import export
from playground.engine.result import simulate


def answer(message: str) -> str:
    """{"result": …}, {"text": …} of an export, or {"error": …}."""
    asked = json.loads(message)
    try:
        found = _answer(asked)
    except ValueError as error:
        found = {"error": str(error)}
    return json.dumps(found, allow_nan=False, separators=(",", ":"))


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    if "export" in asked:
        return {"text": export(asked["export"], asked["settings"])}
    return {"result": simulate(asked["settings"])}
