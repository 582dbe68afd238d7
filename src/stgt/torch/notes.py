"""Short notes that the processes of a run leave for one another in torch's store, signed with a secret of the run.

The store takes anybody's writes and shows everybody what is in it. A note without the right signature counts as none.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import secrets
import socket
import tempfile
from collections.abc import Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import PrefixStore, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

LOOPBACK = "127.0.0.1"
SECRET = "STGT_SECRET"  # the environment's name for the secret of a run
MAC = hashlib.sha256().digest_size * 2  # letters of a signature


class Notes:
    """What JSON can hold, by key. One for each thread: see `apart`."""

    def __init__(self, store: Store, secret: bytes):
        self.store, self.secret = store, secret

    def apart(self, wait: timedelta) -> Notes:
        """The same notes over a connection of their own: a call that blocks must not keep another thread waiting."""
        store = self.store.clone()  # pyright: ignore[reportAttributeAccessIssue]
        store.set_timeout(wait)
        return Notes(store, self.secret)

    def put(self, key: str, value: Any) -> None:
        self.store.set(key, self._signed(key, value))

    def put_first(self, key: str, value: Any) -> Any:
        """Puts a note where there is none; returns the one that stands there."""
        mine = self._signed(key, value)
        found = self._read(key, self.store.compare_set(key, "", mine))
        if found is None:  # a stranger's scribble
            self.store.set(key, mine)
            return value
        return found

    def get(self, key: str) -> Any:
        """The note; None if there is none of ours."""
        return self._read(key, self.store.get(key)) if self.store.check([key]) else None

    def get_all(self, keys: Sequence[str]) -> list[Any]:
        """The notes; None for each that is not there."""
        if not keys or not self.have(keys):
            return [self.get(key) for key in keys]
        return [self._read(key, text) for key, text in zip(keys, self.store.multi_get(list(keys)), strict=True)]

    def have(self, keys: Sequence[str]) -> bool:
        """Is there something under each of the keys?"""
        return self.store.check(list(keys))

    def remove(self, key: str) -> None:
        self.store.delete_key(key)

    def _signed(self, key: str, value: Any) -> str:
        text = json.dumps(value)
        return self._signature(key, text) + text

    def _signature(self, key: str, text: str) -> str:
        return hmac.new(self.secret, f"{key}\0{text}".encode(), hashlib.sha256).hexdigest()

    def _read(self, key: str, found: bytes) -> Any:
        try:
            text = found.decode()
            signed = hmac.compare_digest(text[:MAC].encode(), self._signature(key, text[MAC:]).encode())
            return json.loads(text[MAC:]) if signed else None
        except ValueError:
            return None


def open_store(rank: int, nodes: int, wait: timedelta) -> tuple[Store, bool]:
    """The store of a world that the environment describes, and whether this process keeps it.

    Processes of one machine have one that only this machine can reach. Else it is torchrun's, or rank 0's.
    """
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    from_launcher = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    if not on_one_machine(nodes):
        store, _, _ = next(iter(rendezvous("env://", timeout=wait)))
        return PrefixStore(f"stgt/{attempt()}", store), rank == 0 and not from_launcher
    if not from_launcher:
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


def attempt() -> str:
    """How often torchrun has started these processes anew."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")


def secret_of_run(store: Store, rank: int, nodes: int) -> tuple[bytes, Path | None]:
    """The secret by which this run's notes are known, and the file to remove once all have read it.

    It comes from the environment, else from a file that only this user can read. A run over several machines that was
    given none has none.
    """
    if os.environ.get(SECRET):
        return os.environ[SECRET].encode(), None
    if not on_one_machine(nodes):
        return b"", None
    place = f"stgt-secret/{attempt()}"
    if rank != 0:
        return Path(store.get(place).decode()).read_bytes(), None
    handle, name = tempfile.mkstemp(prefix="stgt-")
    secret = secrets.token_hex(32).encode()
    with os.fdopen(handle, "wb") as file:
        file.write(secret)
    store.set(place, name)
    return secret, Path(name)


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
