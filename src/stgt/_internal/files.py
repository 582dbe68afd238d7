"""Files written atomically, CSV tables, and output folders. Standard library only."""

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
    """Lets `write` fill a temporary file in the folder of `path`, then renames it to `path` in one step.

    Args:
        path: of the file; missing folders are created.
        write: fills the file whose path it is given.
        durable: wait until the file is on the disk, so that it survives a power failure. Takes milliseconds, or more
            for large files.
        private: only the owner may read the file, and the folder if it is created here.
    """
    given, path = path, path.resolve()  # a symbolic link stays one
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
    """Waits until a file's content, or a folder's list of names, is on the disk."""
    handle = os.open(path, flags)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def _unless_refused() -> Iterator[None]:
    """Ignores a refused fsync of a folder: some network file systems have none, and a folder may be unreadable."""
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP, errno.EACCES):
            raise


def write_text(path: Path, text: str) -> Path:
    """Writes a text file atomically."""
    return write_atomically(path, lambda file: file.write_text(text, encoding="utf-8"))


def write_table(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    """Writes rows as CSV. The columns are all keys of the rows, in the order of their first occurrence."""
    names = list(dict.fromkeys(name for row in rows for name in row))

    def write(file: Path) -> None:
        with file.open("w", encoding="utf-8", newline="") as stream:
            table = csv.DictWriter(stream, names, lineterminator="\n")
            table.writeheader()
            table.writerows(rows)

    return write_atomically(path, write)


def read_table(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file; every cell is text."""
    with path.open(encoding="utf-8", newline="") as stream:
        return list(csv.DictReader(stream))


def read_rows(path: Path, argument: str) -> tuple[list[int], list[list[str]]]:
    """The non-blank lines of a CSV file: their line numbers and their cells. Each line has the same number of cells.

    Cells are separated by commas, semicolons or tabs. `argument` is the name of the file in an error.
    """
    with path.open(encoding="utf-8-sig", newline="") as stream:
        first = stream.readline()
        stream.seek(0)
        reader = csv.reader(stream, delimiter=max(",;\t", key=first.count))
        found = [(reader.line_num, row) for row in reader if any(cell.strip() for cell in row)]
    for line, row in found:
        if len(row) != len(found[0][1]):
            raise InputError(
                argument, path, f"line {line} has {len(row)} cells where the first has {len(found[0][1])}; correct it."
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
    """Turns the errors of a missing or malformed file into an InputError about the argument."""
    from zipfile import BadZipFile

    if "\0" in str(path):
        raise InputError(argument, str(path), "no path has such a character; give the path of a file.")
    try:
        yield
    except OSError as error:
        if error.strerror is None:  # raised by a decompressor
            raise InputError(argument, path, f" is damaged ({error}): give another copy.") from None
        missing = isinstance(error, FileNotFoundError) and path.parent.is_dir()
        end = did_you_mean(path.name, [other.name for other in path.parent.iterdir()] if missing else [])
        raise InputError(argument, path, f" cannot be read ({error.strerror}): give the path of a file{end}") from None
    except UnicodeDecodeError as error:
        raise InputError(argument, path, f" is not UTF-8 (byte {error.start}): save it as UTF-8 text.") from None
    except (BadZipFile, EOFError) as error:
        raise InputError(argument, path, f" is damaged ({error}): give another copy.") from None
    except csv.Error as error:
        raise InputError(argument, path, f" is not CSV ({error}): give a table with one row per line.") from None


@contextmanager
def writing(path: Path, argument: str = "path") -> Iterator[None]:
    """Turns the errors of a file that cannot be written into an InputError about the argument."""
    try:
        yield
    except OSError as error:
        raise InputError(argument, path, f" cannot be written ({error.strerror}): give another one.") from None


def check_writable(folder: Path) -> None:
    """Creates the folder if it is missing; raises OSError if no file can be written into it."""
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryFile(dir=folder):
        pass


def output_folder(out: Path, force: bool = False) -> Path:
    """A folder for results: new or empty, unless `force` allows overwriting what it holds."""
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
