"""Files written whole or not at all, tables in them, and the folder they go into. Standard library only."""

from __future__ import annotations

import csv
import errno
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stgt._internal.checks import InputError, did_you_mean


def write_atomically(path: Path, write: Callable[[Path], object], durable: bool = False, private: bool = False) -> Path:
    """Has `write` fill a temporary file beside `path`, then puts it in place in one step.

    Args:
        path: of the file; folders that are missing are made.
        write: fills the file whose path it is given.
        durable: wait until the disk has it, so that it survives a power failure; milliseconds, or more for large files.
        private: nobody else may read it, nor look into the folder if that is made here.
    """
    given, path = path, path.resolve()  # a link stays one
    made = [folder for folder in (path.parent, *path.parent.parents) if not folder.exists()]
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if private else 0o777)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        if not private:
            os.umask(mask := os.umask(0))
            temporary.chmod(0o666 & ~mask)
        if durable:
            _to_disk(temporary, os.O_RDWR)
        os.replace(temporary, path)
        for folder in (path.parent, *(new.parent for new in made)) if durable and os.name != "nt" else ():
            with _unless_refused():
                _to_disk(folder, os.O_RDONLY)
    finally:
        temporary.unlink(missing_ok=True)
    return given


def _to_disk(path: Path, flags: int) -> None:
    """Waits until a file's content, or the names in a folder, are on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _unless_refused() -> Iterator[None]:
    """Some network file systems do not do it for folders, and a folder may be writable and not readable."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def write_text(path: Path, text: str) -> Path:
    """Writes a text file whole or not at all."""
    return write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV; their columns are all names that occur, in the order in which they do."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)

    return write_atomically(path, write)


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file, as text."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def read_rows(path: Path, argument: str) -> tuple[list[int], list[list[str]]]:
    """The lines of a CSV file that are not blank: their numbers and their cells, as many in each.

    Cells are separated by commas, semicolons or tabs; `argument` is what a ValueError calls the file.
    """
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        reader = csv.reader(stream, delimiter=max(",;\t", key=first.count))
        found = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    for line, row in found:
        if len(row) != len(found[0][1]):
            raise InputError(
                argument, path, f"line {line} has {len(row)} cells where the first has {len(found[0][1])}; mend it."
            )
    return [line for line, _ in found], [row for _, row in found]


def is_number(cell: str) -> bool:
    """Does a cell of a table hold a number?"""
    try:
        float(cell)
    except ValueError:
        return False
    return True


@contextmanager
def readable(path: Path, argument: str) -> Iterator[None]:
    """Turns the errors of a missing or malformed file into a ValueError about the argument."""
    from zipfile import BadZipFile

    if "\0" in str(path):
        raise InputError(argument, str(path), "no path has such a character; give the path of a file.")
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # a decompressor's
            raise InputError(argument, path, f" is damaged ({error}): give another copy.") from None
        missing = isinstance(error, FileNotFoundError) and path.parent.is_dir()
        end = did_you_mean(path.name, [other.name for other in path.parent.iterdir()] if missing else [])
        raise InputError(argument, path, f" cannot be read ({error.strerror}): give the path of a file{end}") from None
    except UnicodeDecodeError as error:
        raise InputError(argument, path, f" is not UTF-8 (byte {error.start}): save it as UTF-8 text.") from None
    except (BadZipFile, EOFError) as error:
        raise InputError(argument, path, f" is damaged ({error}): give another copy.") from None
    except csv.Error as error:
        raise InputError(argument, path, f" is not CSV ({error}): give a table with a row a line.") from None


@contextmanager
def writing(path: Path, argument: str = "path") -> Iterator[None]:
    """Turns the errors of a file that cannot be written into a ValueError about the argument."""
    try:
        yield
    except OSError as error:
        raise InputError(argument, path, f" cannot be written ({error.strerror}): give another one.") from None


def check_writable(folder: Path) -> None:
    """Makes the folder if there is none; an OSError if no file can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def output_folder(out: Path, force: bool = False) -> Path:
    """A folder to write results into: new or empty, unless `force` allows to overwrite what it holds."""
    if out.exists() and not out.is_dir():
        raise InputError("out", out, " is a file: give a folder.")
    if out.exists() and any(out.iterdir()) and not force:
        raise InputError(
            "out", out, " is not empty: give another folder, or {other} to overwrite what is there.", other="force=True"
        )
    try:
        check_writable(out)
    except OSError as error:
        raise InputError("out", out, f" cannot be written ({error.strerror}): give another folder.") from None
    return out
