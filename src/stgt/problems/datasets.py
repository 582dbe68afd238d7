"""LIBSVM's data sets from your own folder. They are never downloaded and never written."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from stgt._internal.checks import InputError, check_choice

# Rows and columns as LIBSVM publishes them, to notice a file that was cut short.
LIBSVM = {
    "a9a": (32561, 123),
    "w8a": (49749, 300),
    "mushrooms": (8124, 112),
    "phishing": (11055, 68),
    "ijcnn1": (49990, 22),
}


def load_libsvm(name: str, data_dir: Path | str | None) -> tuple[np.ndarray, np.ndarray]:
    """Features (samples, p) and labels (samples,) of one of LIBSVM's binary sets.

    Args:
        name: "a9a", "w8a", "mushrooms", "phishing" or "ijcnn1".
        data_dir: a folder with the file `name` or `name.bz2`, directly or in a subfolder `libsvm`.
    """
    check_choice(name, "data", LIBSVM)
    path = find_libsvm(name, data_dir)
    from sklearn.datasets import load_svmlight_file

    rows, columns = LIBSVM[name]
    try:
        sparse, labels = load_svmlight_file(str(path), n_features=columns)
    except (OSError, EOFError, ValueError) as error:
        hint = f" is not a whole file in LIBSVM's format ({error}): give another copy."
        raise InputError("data_dir", path, hint) from None
    if len(labels) != rows:
        raise InputError("data_dir", path, f" has {len(labels)} rows where {name} has {rows}: give another copy.")
    features = np.asarray(sparse.todense())
    if not np.isfinite(features).all():
        raise InputError("data_dir", path, " holds entries that are not finite: give another copy.")
    return features, labels


def find_libsvm(name: str, data_dir: Path | str | None) -> Path:
    """The file of a data set in a folder; a ValueError if it is not there."""
    if data_dir is None:
        raise InputError("data_dir", hint=f" was left out: give a folder that holds LIBSVM's {name} or {name}.bz2.")
    folders = (Path(data_dir), Path(data_dir) / "libsvm")
    for path in (folder / file for folder in folders for file in (name, f"{name}.bz2")):
        if path.is_file():
            return path
    raise InputError(
        "data_dir", Path(data_dir), f" holds no {name} or {name}.bz2: download it from LIBSVM's page into it."
    )
