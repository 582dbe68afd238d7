"""Files in LIBSVM's format, and its data sets from your own folder. They are never downloaded and never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stgt._internal.checks import InputError, did_you_mean, first_line
from stgt._internal.files import readable
from stgt.problems.base import MOST_ENTRIES

# Rows and columns as LIBSVM publishes them, to notice a file that was cut short.
LIBSVM = {
    "a9a": (32561, 123),
    "w8a": (49749, 300),
    "mushrooms": (8124, 112),
    "phishing": (11055, 68),
    "ijcnn1": (49990, 22),
}


def load_libsvm(name: str, data_dir: Path | str | None) -> tuple[np.ndarray, np.ndarray]:
    """Features (samples, p) and labels (samples,) of a file in LIBSVM's format.

    Args:
        name: of the file, such as "a9a" or "covtype". "a9a", "w8a", "mushrooms", "phishing" and "ijcnn1" must be
            complete; of any other set the columns are those that occur in the file.
        data_dir: a folder with the file `name` or `name.bz2`, directly or in a subfolder `libsvm`.
    """
    path = find_libsvm(name, data_dir)
    rows, columns = LIBSVM.get(name, (None, None))
    with readable(path, "data_dir"):
        features, labels = read_libsvm(path, "data_dir", columns)
    if rows not in (None, len(labels)):
        raise InputError("data_dir", path, f" has {len(labels)} rows where {name} has {rows}: give another copy.")
    return features, labels


def find_libsvm(name: str, data_dir: Path | str | None) -> Path:
    """The file of a data set in a folder; a ValueError if it is not there."""
    if data_dir is None:
        raise InputError("data_dir", hint=f" was left out: give a folder that holds LIBSVM's {name} or {name}.bz2.")
    if not isinstance(name, str) or not name:
        raise InputError("name", name, "give the name of a file in LIBSVM's format, such as 'a9a'.")
    folders = (Path(data_dir), Path(data_dir) / "libsvm")
    for path in (folder / file for folder in folders for file in (name, f"{name}.bz2")):
        if path.is_file():
            return path
    there = [path.name.removesuffix(".bz2") for folder in folders if folder.is_dir() for path in folder.iterdir()]
    raise InputError(
        "data_dir",
        Path(data_dir),
        f" holds no {name} or {name}.bz2: download it from LIBSVM's page into it{did_you_mean(name, there)}",
    )


def read_libsvm(path: Path, argument: str, columns: int | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a file, as dense arrays. `argument` is the name of the file in an error."""
    from sklearn.datasets import load_svmlight_file

    path.open("rb").close()  # so that a missing file is not reported as a wrong format
    try:
        sparse, labels = load_svmlight_file(str(path), n_features=columns)[:2]
    except (ValueError, OverflowError) as error:
        hint = f" is not in LIBSVM's format ({first_line(error)}): give `label index:value` lines."
        raise InputError(argument, path, hint) from None
    rows, p = sparse.shape
    if rows == 0 or p == 0:
        raise InputError(argument, path, " has no entries: give `label index:value` lines.")
    if rows * p > MOST_ENTRIES:
        raise InputError(argument, path, f"{rows} rows of {p} features are more than {MOST_ENTRIES:.0e} entries.")
    features = sparse.toarray()
    check_finite(features, f"{argument} {path}: features")
    check_finite(labels, f"{argument} {path}: labels")
    return features, labels


def check_finite(array: np.ndarray, name: str) -> None:
    """A ValueError names the first entry that is not finite."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        at = tuple(int(i) for i in np.argwhere(~np.isfinite(array))[0])
        raise ValueError(f"{name} holds {array[at]} at {at}; all entries must be finite numbers.")
