"""One node's shard of a checkpoint as files: written, inspected, checked and removed without communication.

A shard is a safetensors file, then a JSON file, and an empty third one once all nodes have written theirs. The JSON
file holds the SHA-256 of the tensors' file and its own, so that no flipped byte is ever loaded. SHA-256 is the fastest
of hashlib's strong digests where the processor has instructions for it, faster than a disk writes, and `sha256sum`
checks it by hand.
"""

from __future__ import annotations

import hashlib
import json
import logging
import re
from pathlib import Path
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stgt._internal.files import write_atomically

FORMAT = 1
_log = logging.getLogger("stgt")
_FOLDER = re.compile(r"step-(\d{10})(?:-(\d+))?")
_DIGEST = re.compile(rb', "sha256": "([0-9a-f]{64})"\}')
_DIGEST_LENGTH = len(', "sha256": ""}') + 64


class Version(NamedTuple):
    """Which checkpoint: its step, and which attempt at that step. No attempt writes over another's files."""

    step: int
    attempt: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:010d}" + (f"-{self.attempt}" if self.attempt > 1 else "")


class ShardStatus(NamedTuple):
    """What is there of a shard."""

    state: str  # "whole", "missing", "damaged" or "unreadable"
    final: bool = False  # had all nodes written, or has a file changed since? False for a write that broke off
    nodes: int = 0  # how many wrote the checkpoint; 0 if that cannot be read


ABSENT = ShardStatus("missing")


class Shards:
    """A node's shards of the checkpoints in a folder.

    Args:
        folder: of the checkpoints.
        rank: the node.
        name: of the optimiser, where several share the folder.
    """

    def __init__(self, folder: Path, rank: int, name: str):
        self.folder, self.node = folder, f"node-{rank:04d}"
        self.stem = self.node + (f"-{name}" if name else "")

    def path(self, version: Version, ending: str) -> Path:
        return self.folder / version.folder / f"{self.stem}.{ending}"

    def statuses(self) -> dict[Version, ShardStatus]:
        """The status of each version of which this node has some file, in order."""
        found: list[Version] = []
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            match = _FOLDER.fullmatch(path.name)
            if match is not None:
                version = Version(int(match[1]), int(match[2] or 1))
                found += [version] if any(one.exists() for one in self._files(version)) else []
        return {version: self.status(version) for version in sorted(found)}

    def other_names(self) -> list[str]:
        """Files of this node in the folder that are of an optimiser with another name."""
        found = [*self.folder.glob(f"step-*/{self.node}.json"), *self.folder.glob(f"step-*/{self.node}-*.json")]
        return sorted({path.name for path in found} - {f"{self.stem}.json"})

    def write(self, version: Version, tensors: dict[str, Tensor], metadata: dict[str, Any]) -> None:
        """The two files, each whole or not at all, the JSON last. An OSError or a SafetensorError if it fails."""
        digest = ""

        def fill(path: Path) -> None:
            nonlocal digest
            save_file(tensors, str(path))
            digest = _sha256_of(path)

        data = write_atomically(self.path(version, "safetensors"), fill, durable=True, private=True)
        text = seal({"format": FORMAT, **metadata, "bytes": data.stat().st_size, "tensors": digest})
        write_atomically(self.path(version, "json"), lambda path: path.write_bytes(text), durable=True, private=True)

    def confirm(self, version: Version) -> None:
        """Marks that all nodes have written. Without the mark a whole shard still loads."""
        try:
            self.path(version, "complete").touch(0o600)
        except OSError as error:
            _log.info("%s: %s", self.path(version, "complete"), error)

    def status(self, version: Version) -> ShardStatus:
        """What is there, by the JSON file and the size of the other."""
        confirmed = self.path(version, "complete").exists()
        try:
            metadata = self.metadata(version)
        except FileNotFoundError:
            return ShardStatus("missing", confirmed)
        except OSError:
            return ShardStatus("unreadable", True)
        except ValueError:
            return ShardStatus("damaged", True)
        try:
            size = self.path(version, "safetensors").stat().st_size
        except OSError as error:
            state = "missing" if isinstance(error, FileNotFoundError) else "unreadable"
            return ShardStatus(state, True, metadata["nodes"])
        if size != metadata["bytes"]:
            return ShardStatus("damaged", True, metadata["nodes"])
        return ShardStatus("whole", confirmed, metadata["nodes"])

    def metadata(self, version: Version) -> dict[str, Any]:
        """The JSON file's content; an OSError or a ValueError if it cannot be read."""
        return unseal(self.path(version, "json").read_bytes())

    def check(self, version: Version) -> ShardStatus:
        """The status after a check of every byte."""
        first, data = self.status(version), self.path(version, "safetensors")
        if first.state != "whole":
            return first
        try:
            expected = self.metadata(version)["tensors"]
            with safe_open(str(data), framework="pt"):
                fits = expected == _sha256_of(data)
        except FileNotFoundError:
            return first._replace(state="missing", final=True)
        except OSError:
            return first._replace(state="unreadable", final=True)
        except (ValueError, SafetensorError):
            fits = False
        return first if fits else first._replace(state="damaged", final=True)

    def remove(self, version: Version) -> None:
        """Removes this node's files, and the folder if it is empty then. What cannot be removed stays."""
        try:
            for path in self._files(version):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be removed (%s).", self.folder / version.folder, error)
            return
        try:
            (self.folder / version.folder).rmdir()
        except OSError:  # other nodes' shards are still there, or the last of them has removed it
            return

    def prune(self, before: dict[Version, ShardStatus], newest: Version, keep: int) -> None:
        """Removes all but the last `keep` complete steps up to the newest, and all half-written versions before it.

        Versions of later steps are not newer: a run that was resumed from an earlier step may have left some.
        """
        statuses = {version: status for version, status in before.items() if version < newest}
        whole = {one.step: one for one, status in statuses.items() if status.state == "whole" and status.final}
        kept = sorted((whole | {newest.step: newest}).values())[-keep:]
        first = kept[0] if len(kept) == keep else Version(-1, 0)
        for version, status in statuses.items():
            superseded = any(version.step == one.step and version < one for one in kept)
            if version < first or superseded or not status.final:
                self.remove(version)

    def _files(self, version: Version) -> list[Path]:
        """The shard's files in the order of removal, and the temporary ones that a killed process left."""
        folder = self.folder / version.folder
        files = [self.path(version, ending) for ending in ("complete", "json", "safetensors")]
        return [*files, *folder.glob(f".{self.stem}-{'?' * 8}.*")]


def seal(metadata: dict[str, Any]) -> bytes:
    """JSON that ends in the digest of all that comes before."""
    text = json.dumps(metadata).encode()
    return text[:-1] + f', "sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode()


def unseal(text: bytes) -> dict[str, Any]:
    """The content of such JSON; a ValueError if a byte of it differs."""
    digest, text = _DIGEST.fullmatch(text[-_DIGEST_LENGTH:]), text[:-_DIGEST_LENGTH] + b"}"
    if digest is None or hashlib.sha256(text).hexdigest() != digest[1].decode():
        raise ValueError("its digest is missing or wrong")
    return json.loads(text)


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
