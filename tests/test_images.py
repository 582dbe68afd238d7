"""CIFAR-10 and MNIST from folders and from a server on this machine: small files in the same formats."""

import gzip
import hashlib
import io
import os
import pickle
import shutil
import socket
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import numpy as np
import pytest

from reproductions import images
from reproductions.images import load_images

BATCHES = ["data_batch_1", "data_batch_2", "data_batch_3", "data_batch_4", "data_batch_5", "test_batch"]
CIFAR10 = np.random.default_rng(0).integers(0, 256, (6, 2, 3 * 32 * 32), dtype=np.uint8)  # two images a file
DIGITS = np.random.default_rng(1).integers(0, 256, (5, 28, 28), dtype=np.uint8)  # three for training, two for tests


def md5(content):
    return hashlib.md5(content).hexdigest()


def batch_file(which):
    """What Python 2 and an old NumPy would have written, but for the protocol."""
    content = pickle.dumps({b"data": CIFAR10[which], b"labels": [which, 9 - which]}, protocol=3)
    return content.replace(b"numpy._core.multiarray", b"numpy.core.multiarray")


def idx(array, *shape):
    return b"\0\0\x08" + bytes([len(shape)]) + b"".join(size.to_bytes(4, "big") for size in shape) + array.tobytes()


MNIST = {
    "train-images-idx3-ubyte": idx(DIGITS[:3], 3, 28, 28),
    "train-labels-idx1-ubyte": idx(np.array([7, 0, 9], np.uint8), 3),
    "t10k-images-idx3-ubyte": idx(DIGITS[3:], 2, 28, 28),
    "t10k-labels-idx1-ubyte": idx(np.array([1, 2], np.uint8), 2),
}


@pytest.fixture
def cifar10(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "cifar-10-batches-py"
    folder.mkdir(parents=True)
    for which, name in enumerate(BATCHES):
        (folder / name).write_bytes(batch_file(which))
        monkeypatch.setitem(images.CIFAR10_FILES, name, md5(batch_file(which)))
    return folder


@pytest.fixture
def mnist(tmp_path, monkeypatch):
    folder = tmp_path / "data" / "mnist"
    folder.mkdir(parents=True)
    for name, content in MNIST.items():
        packed = gzip.compress(content)
        (folder / f"{name}.gz").write_bytes(packed)
        monkeypatch.setitem(images.MNIST_FILES, name, md5(packed))
    monkeypatch.setattr(images, "MNIST_COUNTS", {"train": 3, "t10k": 2})
    return folder


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder that is served, as the place where the data sets are published, and the list of what was asked for."""
    folder, asked = tmp_path / "served", []
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format, *arguments):
            asked.append(self.path)

    serving = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=serving.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("no_proxy", "*")
    address = f"http://127.0.0.1:{serving.server_port}"
    monkeypatch.setattr(images, "ADDRESSES", {"cifar10": f"{address}/cifar.tar.gz", "mnist": f"{address}/mnist/"})
    yield folder, asked
    serving.shutdown()
    thread.join()
    serving.server_close()


def check_cifar10(data):
    assert (data.shape, data.classes) == ((3, 32, 32), 10)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(data.x_train, CIFAR10[:5].reshape(10, 3, 32, 32))
    np.testing.assert_array_equal(data.x_test, CIFAR10[5].reshape(2, 3, 32, 32))
    assert data.y_train.tolist() == [0, 9, 1, 8, 2, 7, 3, 6, 4, 5]
    assert data.y_test.tolist() == [5, 4]


def check_mnist(data):
    assert (data.shape, data.classes) == ((1, 28, 28), 10)
    assert (data.x_train.dtype, data.y_train.dtype) == (np.uint8, np.int64)
    np.testing.assert_array_equal(data.x_train, DIGITS[:3, None])
    np.testing.assert_array_equal(data.x_test, DIGITS[3:, None])
    assert data.y_train.tolist() == [7, 0, 9]
    assert data.y_test.tolist() == [1, 2]


def test_cifar10(cifar10):
    check_cifar10(load_images("cifar10", cifar10))
    check_cifar10(load_images("cifar10", str(cifar10.parent)))


def test_mnist_packed_or_not_and_in_any_of_its_folders(mnist):
    check_mnist(load_images("mnist", mnist))
    check_mnist(load_images("mnist", mnist.parent, download=True))  # nothing is missing, so nothing is fetched
    raw = mnist.parent / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, content in MNIST.items():
        (mnist / f"{name}.gz").unlink()
        (raw / name).write_bytes(content)
    check_mnist(load_images("mnist", mnist.parent))


def test_other_files_than_the_published_ones_are_refused(cifar10, mnist):
    for name, path in (("cifar10", cifar10 / "data_batch_3"), ("mnist", mnist / "t10k-labels-idx1-ubyte.gz")):
        path.write_bytes(path.read_bytes()[:-1] + b"!")
        with pytest.raises(ValueError, match=rf"{path.name} has md5 {md5(path.read_bytes())}, but the published"):
            load_images(name, path.parent)


class Trap:
    def __init__(self, folder):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


@pytest.mark.parametrize("published", [False, True])
def test_a_pickle_never_runs_anything(cifar10, tmp_path, monkeypatch, published):
    trap = pickle.dumps({b"data": Trap(tmp_path / "sprung")}, protocol=3)
    pickle.loads(trap)
    (tmp_path / "sprung").rmdir()  # so it would have worked
    (cifar10 / "data_batch_1").write_bytes(trap)
    if published:
        monkeypatch.setitem(images.CIFAR10_FILES, "data_batch_1", md5(trap))
    with pytest.raises(ValueError, match=rf"requests {os.name}\.mkdir" if published else "has md5"):
        load_images("cifar10", cifar10)
    assert not (tmp_path / "sprung").exists()


def test_an_idx_file_that_is_not_mnist_s_is_refused(mnist):
    for name, content in MNIST.items():
        (mnist / f"{name}.gz").unlink()
        (mnist / name).write_bytes(content)
    for name, content, words in (
        ("train-images-idx3-ubyte", MNIST["train-images-idx3-ubyte"][:-1], "has 2367 bytes, but MNIST has 2368"),
        ("train-images-idx3-ubyte", b"", "has 0 bytes, but MNIST has 2368"),
        ("t10k-labels-idx1-ubyte", b"\0\0\x08\x03" + MNIST["t10k-labels-idx1-ubyte"][4:], "begins with 00000803"),
        ("t10k-labels-idx1-ubyte", idx(np.array([1, 10], np.uint8), 2), "holds the label 10"),
    ):
        (mnist / name).write_bytes(content)  # 4 + 3·4 bytes of header and 3·28² of pixels are 2368
        with pytest.raises(ValueError, match=words):
            load_images("mnist", mnist)
        (mnist / name).write_bytes(MNIST[name])


def test_what_is_missing_is_said(cifar10, tmp_path):
    (cifar10 / "test_batch").unlink()
    for name, where, words in (
        ("cifar10", None, "^data_dir was left out"),
        ("cifar10", cifar10, "does not contain all files of cifar10"),
        ("mnist", tmp_path / "nowhere", "does not contain all files of mnist"),
    ):
        with pytest.raises(ValueError, match=words):
            load_images(name, where)
    assert not (tmp_path / "nowhere").exists()


def archive(folder):
    """CIFAR-10's archive, with two members more than are wanted."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, f"cifar-10-batches-py/{path.name}")
        for name in ("cifar-10-batches-py/readme.html", "../outside"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    return file.getvalue()


def test_cifar10_is_downloaded_once(cifar10, server, tmp_path, monkeypatch):
    folder, asked = server
    packed = archive(cifar10)
    (folder / "cifar.tar.gz").write_bytes(packed)
    monkeypatch.setattr(images, "CIFAR10_ARCHIVE", md5(packed))
    new = tmp_path / "a" / "new folder"
    check_cifar10(load_images("cifar10", new, download=True))
    check_cifar10(load_images("cifar10", new, download=True))
    assert asked == ["/cifar.tar.gz"]
    assert [path.name for path in new.iterdir()] == ["cifar-10-batches-py"]
    assert sorted(path.name for path in (new / "cifar-10-batches-py").iterdir()) == BATCHES
    assert not (new.parent / "outside").exists()


def test_mnist_is_downloaded_file_by_file(mnist, server, tmp_path):
    folder, asked = server
    shutil.copytree(mnist, folder / "mnist")
    new = tmp_path / "new"
    (new / "mnist").mkdir(parents=True)
    shutil.copy(mnist / "train-images-idx3-ubyte.gz", new / "mnist")
    check_mnist(load_images("mnist", new, download=True))
    assert asked == [f"/mnist/{name}.gz" for name in list(MNIST)[1:]], "what is there is not fetched again"
    assert sorted(path.name for path in new.rglob("*")) == sorted(["mnist", *(f"{name}.gz" for name in MNIST)])


@pytest.mark.parametrize("name", ["cifar10", "mnist"])
def test_a_download_that_fails_leaves_nothing_behind(cifar10, mnist, server, tmp_path, monkeypatch, name):
    folder, _ = server
    new = tmp_path / "new"
    with pytest.raises(ValueError, match=r"data_dir: .* cannot be downloaded \(HTTP Error 404.*download the files "):
        load_images(name, new, download=True)
    (folder / "mnist").mkdir()
    for file in ("cifar.tar.gz", "mnist/train-images-idx3-ubyte.gz"):
        (folder / file).write_bytes(archive(cifar10))
    with pytest.raises(ValueError, match=rf"http.* has md5 {md5((folder / 'cifar.tar.gz').read_bytes())}, but"):
        load_images(name, new, download=True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        nobody = f"http://127.0.0.1:{taken.getsockname()[1]}/"
    monkeypatch.setattr(images, "ADDRESSES", {"cifar10": f"{nobody}cifar.tar.gz", "mnist": nobody})
    with pytest.raises(ValueError, match="cannot be downloaded"):
        load_images(name, new, download=True)
    assert list(new.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match=r"file cannot be written \(File exists\): give another folder"):
        load_images(name, tmp_path / "file", download=True)
