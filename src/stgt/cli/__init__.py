"""The command line: parse, call, print. A module for each kind of command; they appear in the order of the imports."""

from __future__ import annotations

import sys
import warnings

from stgt.cli import paper, check, study, topology, training, lighthouse, names  # isort: skip  # noqa: F401
from stgt.cli.common import app, console

__all__ = ["app", "console", "main"]


def _show_warning(message: object, *_: object, **__: object) -> None:
    """Prints a warning as one line."""
    print(f"warning: {message}", file=sys.stderr)


def main() -> None:
    """The entry point: an error in the input gives one message and exit code 2, not a traceback."""
    warnings.showwarning = _show_warning
    try:
        app()
    except ValueError as error:
        print(f"stgt: {error}", file=sys.stderr)
        sys.exit(2)
    except ImportError as error:
        if error.__cause__ is None:  # a bug; with a cause, it names the optional package to install
            raise
        print(f"stgt: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:  # for example a full disk, or a folder that was removed
        where = f"{error.filename}: " if error.filename else ""
        print(f"stgt: {where}{error.strerror or error}; files that were written before are kept.", file=sys.stderr)
        sys.exit(1)
