"""Short notes that the processes of a run leave for one another in torch's store."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from torch.distributed import DistError, PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]

LOOPBACK = "127.0.0.1"


class Notes:
    """What JSON can hold, by key. A call returns when the store answers, which may be never."""

    def __init__(self, store: Store):
        self.store = store

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, json.dumps(value))

    def put_first(self, key: str, value: Any) -> Any:
        """Puts a note where there is none; returns the one that stands there."""
        return json.loads(self.store.compare_set(key, "", json.dumps(value)))

    def get(self, key: str) -> Any:
        """The note; None if there is none."""
        return json.loads(self.store.get(key)) if self.have([key]) else None

    def get_all(self, keys: Sequence[str]) -> list[Any]:
        """The notes; None for each that is not there."""
        if not keys or not self.have(keys):
            return [self.get(key) for key in keys]
        return [json.loads(text) for text in self.store.multi_get(list(keys))]

    def have(self, keys: Sequence[str]) -> bool:
        """Is there something under each of the keys?"""
        return self.store.check(list(keys))

    def remove(self, key: str) -> None:
        self.store.delete_key(key)


def open_store(rank: int, nodes: int, wait: timedelta) -> tuple[Store, bool]:
    """The store of a world that the environment describes, and whether this process keeps it.

    Processes of one machine have one that only this machine can reach. Else it is torchrun's, or rank 0's.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if not on_one_machine(nodes):
        keeps = rank == 0 and not from_launcher()
        try:
            store = TCPStore(
                address, port, is_master=keeps, timeout=wait, wait_for_workers=False, multi_tenant=not from_launcher()
            )
        except DistError as error:
            if keeps:
                raise ValueError(f"MASTER_PORT={port} cannot be used ({str(error).splitlines()[0]})") from None
            raise
        return PrefixStore(f"stgt/{attempt()}", store), keeps
    if not from_launcher():
        return _on_loopback(rank, port, wait), rank == 0
    outer = TCPStore(address, port, is_master=False, timeout=wait)
    place = f"stgt/{attempt()}/port"
    if rank == 0:
        store = _on_loopback(0, 0, wait)
        outer.set(place, str(store.port))
        return store, True
    return _on_loopback(rank, int(outer.get(place)), wait), False


def on_one_machine(nodes: int) -> bool:
    return os.environ.get("LOCAL_WORLD_SIZE") == str(nodes)


def from_launcher() -> bool:
    """Does torchrun keep the store of these processes?"""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def attempt() -> str:
    """How often torchrun has started these processes anew."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def _on_loopback(rank: int, port: int, wait: timedelta) -> TCPStore:
    """A store that listens to this machine alone."""
    if rank:
        return TCPStore(LOOPBACK, port, is_master=False, timeout=wait)
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((LOOPBACK, port))
    except OSError as error:
        raise ValueError(f"MASTER_PORT={port} cannot be used ({error.strerror}): give another.") from None
    listener.listen(1024)
    port = listener.getsockname()[1]
    return TCPStore(
        LOOPBACK, port, is_master=True, timeout=wait, wait_for_workers=False, master_listen_fd=listener.detach()
    )
