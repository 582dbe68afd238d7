"""The command line: parse, call, print. A module for each kind of command; they appear in the order of the imports."""

from __future__ import annotations

import sys

from stgt.cli import paper, advice, pictures, training, names  # isort: skip  # noqa: F401
from stgt.cli.common import app, console

__all__ = ["app", "console", "main"]


def main() -> None:
    """The entry point: what the user can mend is one sentence and exit code 2, not a traceback."""
    try:
        app()
    except ValueError as error:
        print(f"stgt: {error}", file=sys.stderr)
        sys.exit(2)
