"""The one kind of file with arrays: what was written is read, by safetensors too; anything else is refused."""

import json
import os
import pickle
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch
from safetensors import safe_open

from stgt._internal import container
from stgt._internal.container import BadFile
from stgt._internal.digest import digest, digest_of_file

META = {"round": 3, "words": ["ü", None], "beyond": float("inf")}
ARRAYS = {
    "flags": np.array([True, False, True]),
    "none": np.zeros((0, 3)),
    "number": np.array(2.5),
    "every second": np.arange(6, dtype=np.uint32)[::2],
    "transposed": np.arange(6.0).reshape(2, 3).T,
    "short": np.arange(4).astype(ml_dtypes.bfloat16),
    "complex": np.array([1 + 2j], dtype=np.complex64),
    **{name: np.arange(3).astype(name) for name in ("int8", "uint8", "int16", "uint16", "int32", "int64", "uint64")},
    **{name: np.arange(3).astype(name) for name in ("float16", "float32", "float64")},
}


def written(path: Path) -> bytes:
    return container.write(path, "trace", ARRAYS, META).read_bytes()


def refusal(path: Path, kind: str = "trace") -> str:
    """Why a file is refused, for one reason by whatever reads all of it, and in one sentence about it."""
    with pytest.raises(BadFile, match=rf"^{path} [^.]*(\. ?[^. A-Z][^.]*)*\.$") as caught:
        container.read(path, kind)
    with pytest.raises(BadFile) as other:
        container.verify(path, kind)
    again = pickle.loads(pickle.dumps(other.value))  # as to a process of Ray's
    assert (str(again), again.reason) == (str(caught.value), caught.value.reason)
    return caught.value.reason


def test_what_was_written_is_read(tmp_path):
    written(tmp_path / "deep" / "file")
    arrays, meta = container.read(tmp_path / "deep" / "file", "trace")
    assert meta == META == container.read_meta(tmp_path / "deep" / "file", "trace")
    assert list(arrays) == list(ARRAYS)
    for name, array in arrays.items():
        assert (array.dtype, array.shape) == (ARRAYS[name].dtype, ARRAYS[name].shape)
        assert (array == ARRAYS[name]).all()
        assert array.flags.writeable
    container.verify(tmp_path / "deep" / "file", "trace")


def test_tensors_of_torch(tmp_path):
    """Also two that share their memory; safetensors' own reader finds them."""
    flat = torch.arange(6.0)
    tensors = {
        "flat": flat,
        "part": flat[2:4],
        "transposed": flat.reshape(2, 3).T,
        "number": torch.tensor(1).bfloat16(),
    }
    tensors |= {"none": torch.zeros(0, 2), "flag": torch.tensor([True]), "rng": torch.get_rng_state()}
    tensors |= {"parameter": torch.nn.Parameter(torch.ones(2).half()), "eight": torch.ones(3).to(torch.float8_e4m3fn)}
    path = container.write(tmp_path / "file.safetensors", "shard", tensors, None, private=True)
    assert path.stat().st_mode & 0o777 == 0o600
    with safe_open(str(path), framework="pt") as file:
        assert set(file.keys()) == tensors.keys()
        for name, tensor in tensors.items():
            assert file.get_tensor(name).dtype == tensor.dtype
            assert torch.equal(file.get_tensor(name).float(), tensor.detach().float())


def test_a_type_that_no_file_holds(tmp_path):
    with pytest.raises(ValueError, match=r"^words is of type <U3: a file holds bool, "):
        container.write(tmp_path / "file", "trace", {"words": np.array(["one"])}, None)
    assert not (tmp_path / "file").exists()


def test_no_bit_may_differ_and_no_byte_may_lack(tmp_path):
    path = tmp_path / "file"
    container.write(path, "trace", {"x": np.arange(4.0), "n": np.arange(3, dtype=np.int32)}, {"a": 1})
    content = path.read_bytes()
    for at in range(len(content)):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1 << at % 8]) + content[at + 1 :])
        assert refusal(path) in ({"damaged", "cut", "foreign"} if at < 8 + len(container._BEGIN) else {"damaged"})
        path.write_bytes(content[:at])
        assert refusal(path) == "cut"
    path.write_bytes(content + b"\0")
    assert refusal(path) == "damaged"


def forged(content: bytes, path: Path, change) -> Path:
    """The file with its header changed, under the right digest of it."""
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    change(header)
    header["__metadata__"]["sha256"] = ""
    text = json.dumps(header, separators=(",", ":")).encode()
    sealed = text[len(container._BEGIN) :]
    text = container._BEGIN + sha256(sealed).hexdigest().encode() + sealed
    path.write_bytes(len(text).to_bytes(8, "little") + text + content[8 + length :])
    return path


def set_entry(name, key, value):
    return lambda header: header[name].update({key: value})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda header: None, None),
        (set_entry("__metadata__", "format", "2"), "newer"),
        (set_entry("__metadata__", "format", "0"), "foreign"),
        (set_entry("__metadata__", "format", "one"), "foreign"),
        (set_entry("__metadata__", "format", None), "foreign"),
        (set_entry("__metadata__", "kind", "model"), "foreign"),
        (set_entry("__metadata__", "meta", "["), "foreign"),
        (set_entry("__metadata__", "meta", "[" * 100_000), "foreign"),
        (set_entry("__metadata__", "data", "0" * 64), "damaged"),
        (set_entry("number", "shape", [2]), "foreign"),
        (set_entry("number", "shape", [-1, -1]), "foreign"),
        (set_entry("number", "shape", [2**62, 4, 0]), "foreign"),
        (set_entry("none", "shape", [2**62, 4, 0]), "foreign"),
        (set_entry("number", "shape", "wide"), "foreign"),
        (set_entry("number", "dtype", "O"), "foreign"),
        (set_entry("number", "data_offsets", [8, 16]), "foreign"),
        (lambda header: header.pop("number"), "foreign"),
        (lambda header: header["__metadata__"].pop("meta"), "foreign"),
        (lambda header: header.update(number=3), "foreign"),
    ],
)
def test_a_forged_header(change, reason, tmp_path):
    path = forged(written(tmp_path / "file"), tmp_path / "file", change)
    if reason is None:
        assert container.read(path, "trace")[1] == META
    else:
        assert refusal(path) == reason


def test_sizes_beyond_all_memory_are_refused_before_they_are_taken(tmp_path):
    path = tmp_path / "file"
    container.write(path, "trace", {"x": np.zeros(2)}, None)
    assert (
        refusal(forged(path.read_bytes(), path, lambda h: h["x"].update(shape=[2**58], data_offsets=[0, 2**61])))
        == "cut"
    )


class Hostile:
    """Unpickling it makes a folder."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self):
        return os.mkdir, (str(self.folder),)


def test_other_files(tmp_path):
    path, made = tmp_path / "file", tmp_path / "made"
    assert refusal(path) == "missing"
    path.mkdir()
    assert refusal(path) == "unreadable"
    path.rmdir()
    for content in (b"round,residual\n0,1.0\n", b"{}", b"null" * 9, pickle.dumps(Hostile(made))):
        path.write_bytes(content)
        assert refusal(path) in ("foreign", "cut")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("letter.txt", "dear reader")
    assert refusal(path) == "foreign"
    hostile = np.array([Hostile(made)], dtype=object)
    with path.open("wb") as file:
        np.savez(file, x=hostile)
    assert refusal(path) == "foreign"
    assert not made.exists()
    written(path)
    assert refusal(path, "shard") == "foreign"


def test_the_digest_of_data_is_the_same_in_another_process():
    thing = "{'b': (1, None, 2.5), 'a': numpy.arange(3)}"
    code = f"import numpy; from stgt._internal.digest import digest; print(digest({thing}))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == digest({"a": np.arange(3), "b": (1, None, 2.5)})


def test_digests_differ_where_data_do(tmp_path):
    things = [0, 0.0, False, None, "", "0", (), {}, (0,), ((0,),), {"a": 0}, {"a": (0,)}, np.zeros(2), np.zeros((2, 1))]
    things += [np.zeros(2, np.float32), np.zeros(2, np.int64), np.array([0.0, -0.0]), np.dtype("float64")]
    assert len({digest(one) for one in things}) == len(things)
    assert digest(1, 2) != digest(12) != digest((1, 2))
    (tmp_path / "file").write_bytes(b"abc")  # FIPS 180-2, appendix B.1
    assert digest_of_file(tmp_path / "file") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
