"""The command line: parse, call, print. A module for each kind of command; they appear in the order of the imports."""

from __future__ import annotations

import sys

from stgt.cli import paper, advice, study, pages, training, names  # isort: skip  # noqa: F401
from stgt.cli.common import app, console

__all__ = ["app", "console", "main"]


def main() -> None:
    """The entry point: what the user can mend is one sentence and exit code 2, not a traceback."""
    try:
        app()
    except ValueError as error:
        print(f"stgt: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # a full disk, a folder that is gone
        where = f"{error.filename}: " if error.filename else ""
        print(f"stgt: {where}{error.strerror or error}; what was written before is kept.", file=sys.stderr)
        sys.exit(1)
