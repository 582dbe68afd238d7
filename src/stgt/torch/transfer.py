"""A newcomer's first model: a member sends it all that it needs to take part, through the newcomer's own store.

The tensors are sent as raw bytes, chunk by chunk, after a JSON header with their shapes and the SHA-256 of all bytes.
Received data cannot execute code. The member sends a copy from a separate thread, and continues to train.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed import PrefixStore  # pyright: ignore[reportPrivateImportUsage]

from stgt._internal.checks import first_line
from stgt.torch.addresses import reach_store
from stgt.torch.failure_detector import LostNodeError
from stgt.torch.waiting import start_thread

CHUNK = 4 << 20  # bytes; torch's store takes up to 8 MiB at once
AHEAD = 16  # chunks that a member sends before the newcomer has taken the first of them
PATIENCE = 20.0  # seconds without a chunk after which a side gives up
PAUSE = 0.005
_DTYPES = {str(one): one for one in (
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32, torch.int16, torch.int8,
    torch.uint8, torch.bool, torch.complex64, torch.complex128,
)}  # fmt: skip

_log = logging.getLogger("stgt")


class TransferError(RuntimeError):
    """A model was not received completely."""


def send(address: str, attempt: int, sender: str, metadata: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Sends copies of the tensors to the newcomer whose store is at this address, in a separate thread."""
    copies = {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}

    def run() -> None:
        try:
            _send(address, attempt, sender, metadata, copies)
        except (RuntimeError, TimeoutError) as error:  # the newcomer asks another member
            _log.info("the newcomer at %s has not taken the model: %s", address, first_line(error))

    start_thread(run)


def _send(address: str, attempt: int, sender: str, metadata: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    store = PrefixStore(f"model/{attempt}", reach_store(address, timedelta(seconds=PATIENCE)))
    if store.compare_set("sender", "", sender) != sender.encode():
        return
    digest, sizes = hashlib.sha256(), {}
    for name, value in tensors.items():
        data = _bytes(value)
        digest.update(data)
        sizes[name] = {"dtype": str(value.dtype), "shape": list(value.shape), "bytes": len(data)}
    header = {"tensors": sizes, "sha256": digest.hexdigest(), "metadata": metadata}
    text = json.dumps(header).encode()
    store.set("header", str(-(-len(text) // CHUNK)))
    number = _put(store, 0, text)
    for value in tensors.values():
        number = _put(store, number, _bytes(value))


def _put(store: Any, number: int, data: memoryview | bytes) -> int:
    """Sends bytes as chunks, numbered from `number`; returns the next number."""
    for low in range(0, len(data), CHUNK):
        end = time.monotonic() + PATIENCE
        while number - store.add("taken", 0) >= AHEAD:
            if time.monotonic() > end:
                raise TimeoutError(f"it has taken nothing for {PATIENCE:g} s")
            time.sleep(PAUSE)
        store.set(str(number), bytes(data[low : low + CHUNK]))
        number += 1
    return number


def receive(store: Any, attempt: int, alive: Callable[[], None]) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The metadata and the tensors that a member has sent to this process's store; a TransferError if incomplete.

    Args:
        store: of this process.
        attempt: the number of this process's request.
        alive: called repeatedly while it waits.
    """
    store, taken = PrefixStore(f"model/{attempt}", store), 0

    def wait(key: str) -> bytes:
        end = time.monotonic() + PATIENCE
        while not store.check([key]):
            alive()
            if time.monotonic() > end and key != "header":  # a member answers at the end of its round
                raise TransferError(f"no part of the model has come for {PATIENCE:g} s")
            time.sleep(PAUSE)
        return store.get(key)

    def take(size: int | None = None) -> bytearray:
        nonlocal taken
        found, whole = bytearray(), size is None
        while not found if whole else len(found) < (size or 0):
            found += wait(str(taken))
            store.delete_key(str(taken))
            taken += 1
            store.add("taken", 1)
        return found

    try:
        text = bytearray()
        parts = int(wait("header"))
        while taken < parts:
            text += take()
        header = json.loads(text)
        digest, tensors = hashlib.sha256(), {}
        for name, one in header["tensors"].items():
            data = take(one["bytes"]) if one["bytes"] else bytearray()
            digest.update(data)
            dtype = _DTYPES[one["dtype"]]
            flat = torch.frombuffer(data, dtype=dtype) if data else torch.empty(0, dtype=dtype)
            tensors[name] = flat.reshape(one["shape"])
    except (KeyError, ValueError, TypeError, RuntimeError) as error:
        if isinstance(error, TransferError | LostNodeError):
            raise
        raise TransferError(f"the received data are not a model ({first_line(error)})") from error
    finally:
        with suppress(RuntimeError):
            store.delete_key("header")
    if digest.hexdigest() != header["sha256"]:
        raise TransferError("the received bytes differ from those that were sent")
    return header["metadata"], tensors


def _bytes(value: Tensor) -> memoryview:
    data: Any = value.reshape(-1).view(torch.uint8).numpy() if value.numel() else b""
    return memoryview(data)
