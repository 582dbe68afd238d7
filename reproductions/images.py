"""CIFAR-10 and MNIST from your own folder, checked before they are read; downloaded only on request."""

from __future__ import annotations

import gzip
import hashlib
import http.client
import io
import os
import pickle
import shutil
import tarfile
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy._core import multiarray

import stgt

if TYPE_CHECKING:
    from stgt.torch.train import LabelledData

# The published md5 sums: of CIFAR-10's archive and of the files in it, and of MNIST's files as they are compressed.
CIFAR10_ARCHIVE = "c58f30108f718f92721af3b95e74349a"
CIFAR10_FILES = {
    "data_batch_1": "c99cafc152244af753f735de768cd75f",
    "data_batch_2": "d4bba439e000b95fd0a9bffe97cbabec",
    "data_batch_3": "54ebc095f3ab1f0389bbae665268c751",
    "data_batch_4": "634d18415352ddfa80567beed471001a",
    "data_batch_5": "482c414d41f54cd18b22e5b47cb7c3cb",
    "test_batch": "40351d587109b95175f43aff81a1287e",
}
MNIST_FILES = {
    "train-images-idx3-ubyte": "f68b3c2dcbeaaa9fbdd348bbdeb94873",
    "train-labels-idx1-ubyte": "d53e105ee54ea40749a09fcbcd1e9432",
    "t10k-images-idx3-ubyte": "9fb629c4189551a2d022fa330f9573f3",
    "t10k-labels-idx1-ubyte": "ec29112dd5afa0611ce80d1b7f02629c",
}
MNIST_COUNTS = {"train": 60_000, "t10k": 10_000}
CLASSES = 10
ADDRESSES = {
    "cifar10": "https://www.cs.toronto.edu/~kriz/cifar-10-python.tar.gz",
    "mnist": "https://ossci-datasets.s3.amazonaws.com/mnist/",
}
FOLDERS = {"cifar10": ("cifar-10-batches-py",), "mnist": ("mnist", "MNIST/raw")}  # downloads go to the first
PATIENCE = 60  # a download stops after this many seconds without an answer


# Mean and standard deviation of each channel over the training images, pixels 0 to 255.
NORMALISATION = {
    "cifar10": tuple(255 * np.array(one, np.float32) for one in ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))),
    "mnist": tuple(255 * np.array(one, np.float32) for one in ((0.1307,), (0.3081,))),
}


@stgt.register
def cifar10(data_dir: Path | str | None = None, download: bool = False) -> LabelledData:
    """CIFAR-10: 60,000 colour images of 32 × 32, ten classes."""
    return load_images("cifar10", data_dir, download)


@stgt.register
def mnist(data_dir: Path | str | None = None, download: bool = False) -> LabelledData:
    """MNIST: 70,000 digits of 28 × 28."""
    return load_images("mnist", data_dir, download)


def load_images(name: str, data_dir: Path | str | None, download: bool = False) -> LabelledData:
    """The images, uint8 (samples, channels, height, width), and labels of "cifar10" or "mnist".

    Args:
        name: "cifar10" or "mnist".
        data_dir: a folder with CIFAR-10's `cifar-10-batches-py`, or with MNIST's four idx files (`.gz` or unpacked) in
            a folder `mnist` or `MNIST/raw`; or one of these folders itself.
        download: download missing files from the data set's public address to `data_dir`.
    """
    if data_dir is None:
        raise stgt.InputError("data_dir", hint=f" was left out: give {FOLDERS[name][0]}, or a folder that has it.")
    find, fetch, read = (
        (_find_cifar10, _fetch_cifar10, _read_cifar10)
        if name == "cifar10"
        else (_find_mnist, _fetch_mnist, _read_mnist)
    )
    paths = find(Path(data_dir))
    if paths is None and download:
        fetch(Path(data_dir))
        paths = find(Path(data_dir))
    if paths is None:
        files = ", ".join(_files(name))
        hint = f" does not contain all files of {name} ({files}): copy them there, or allow the download."
        raise stgt.InputError("data_dir", Path(data_dir), hint)
    from stgt.torch.train import LabelledData  # needs PyTorch, which other experiments do not need

    return LabelledData(*read(paths), CLASSES, *NORMALISATION[name])


def _files(name: str) -> dict[str, str]:
    return CIFAR10_FILES if name == "cifar10" else MNIST_FILES


def _folders(name: str, data_dir: Path) -> Iterator[Path]:
    """The possible places of the files: the folder itself, or one of the usual folders in it."""
    yield data_dir
    yield from (data_dir / folder for folder in FOLDERS[name])


def _find_cifar10(data_dir: Path) -> list[Path] | None:
    for folder in _folders("cifar10", data_dir):
        paths = [folder / file for file in CIFAR10_FILES]
        if all(path.is_file() for path in paths):
            return paths
    return None


def _find_mnist(data_dir: Path) -> list[Path] | None:
    """The four files in one folder. If a file exists in both forms, the compressed one, which can be checked."""
    for folder in _folders("mnist", data_dir):
        forms = ((folder / f"{file}.gz", folder / file) for file in MNIST_FILES)
        paths = [next((path for path in form if path.is_file()), None) for form in forms]
        found = [path for path in paths if path is not None]
        if len(found) == len(paths):
            return found
    return None


def _read_cifar10(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    batches = [_read_batch(path) for path in paths]
    pixels = [np.asarray(batch[b"data"], np.uint8).reshape(-1, 3, 32, 32) for batch in batches]
    labels = [np.asarray(batch[b"labels"], np.int64) for batch in batches]
    return np.concatenate(pixels[:-1]), np.concatenate(labels[:-1]), pixels[-1], labels[-1]


def _read_batch(path: Path) -> dict[bytes, Any]:
    content = path.read_bytes()
    _check_sum(content, CIFAR10_FILES[path.name], path)
    return _ArraysOnly(io.BytesIO(content), encoding="bytes").load()


class _ArraysOnly(pickle.Unpickler):
    """Reads pickles of plain values and NumPy arrays. It calls nothing else, whatever the file contains."""

    ALLOWED = {
        ("numpy.core.multiarray", "_reconstruct"): multiarray._reconstruct,
        ("numpy", "ndarray"): np.ndarray,
        ("numpy", "dtype"): np.dtype,
    }

    def find_class(self, module_name: str, global_name: str, /) -> Any:
        if (module_name, global_name) not in self.ALLOWED:
            asks = f"a file of CIFAR-10 requests {module_name}.{global_name}, which a genuine file does not"
            raise stgt.InputError("data_dir", hint=f"{asks}; give another copy.")
        return self.ALLOWED[module_name, global_name]


def _read_mnist(paths: list[Path]) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    x_train, y_train, x_test, y_test = (_read_idx(path) for path in paths)
    return x_train[:, None], y_train.astype(np.int64), x_test[:, None], y_test.astype(np.int64)


def _read_idx(path: Path) -> np.ndarray:
    """An array of bytes behind its header: 2048 plus the number of axes, then each axis's length, big-endian."""
    content, file = path.read_bytes(), path.name.removesuffix(".gz")
    if path.suffix == ".gz":
        _check_sum(content, MNIST_FILES[file], path)
        content = gzip.decompress(content)
    count = MNIST_COUNTS[file.split("-")[0]]
    shape = (count, 28, 28) if "images" in file else (count,)
    header = np.array([0x800 + len(shape), *shape], ">i4").tobytes()
    size = len(header) + int(np.prod(shape))
    if len(content) != size:
        raise _damaged(path, f"has {len(content)} bytes, but MNIST has {size}")
    if not content.startswith(header):
        raise _damaged(path, f"begins with {content[: len(header)].hex()}, but MNIST with {header.hex()}")
    array = np.frombuffer(content, np.uint8, offset=len(header)).reshape(shape).copy()
    if array.ndim == 1 and array.max() >= CLASSES:
        raise _damaged(path, f"holds the label {array.max()}, above 9")
    return array


def _damaged(where: Path | str, how: str) -> stgt.InputError:
    return stgt.InputError("data_dir", hint=f" {where} {how}: give another copy.")


def _fetch_cifar10(data_dir: Path) -> None:
    name = FOLDERS["cifar10"][0]
    with _downloaded(ADDRESSES["cifar10"], CIFAR10_ARCHIVE, data_dir) as archive:
        wanted = {f"{name}/{file}" for file in CIFAR10_FILES}
        with tarfile.open(archive) as tar:
            tar.extractall(archive.parent, [member for member in tar if member.name in wanted], filter="data")
        _put_in_place(list((archive.parent / name).iterdir()), data_dir / name)


def _fetch_mnist(data_dir: Path) -> None:
    target = data_dir / FOLDERS["mnist"][0]
    for file, checksum in MNIST_FILES.items():
        if not (target / f"{file}.gz").is_file():
            with _downloaded(f"{ADDRESSES['mnist']}{file}.gz", checksum, data_dir) as path:
                _put_in_place([path], target)


@contextmanager
def _downloaded(address: str, checksum: str, data_dir: Path) -> Iterator[Path]:
    """A complete and checked file, downloaded to a temporary folder in `data_dir`, which is removed after use."""
    try:
        data_dir.mkdir(parents=True, exist_ok=True)
        temporary = tempfile.TemporaryDirectory(dir=data_dir, prefix=".download-")
    except OSError as error:
        hint = f" cannot be written ({error.strerror}): give another folder."
        raise stgt.InputError("data_dir", data_dir, hint) from None
    with temporary as folder:
        path = Path(folder) / address.rsplit("/", 1)[-1]
        try:
            with urllib.request.urlopen(address, timeout=PATIENCE) as answer, path.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except (OSError, http.client.HTTPException) as error:
            hint = f"{address} cannot be downloaded ({error}); download the files yourself, and give their folder."
            raise stgt.InputError("data_dir", hint=hint) from None
        _check_sum(path.read_bytes(), checksum, address)
        yield path


def _put_in_place(files: list[Path], target: Path) -> None:
    target.mkdir(exist_ok=True)
    for file in files:
        os.replace(file, target / file.name)


def _check_sum(content: bytes, checksum: str, where: Path | str) -> None:
    found = hashlib.md5(content, usedforsecurity=False).hexdigest()
    if found != checksum:
        raise _damaged(where, f"has md5 {found}, but the published file has {checksum}")
