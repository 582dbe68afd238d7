"""One node's shard of a checkpoint as files: written, inspected, checked and removed without communication.

A shard is a file of `stgt._internal.container`. A second, empty file is added once all nodes have written theirs.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from stgt._internal import container

KIND = "shard of a checkpoint"
_log = logging.getLogger("stgt")
_FOLDER = re.compile(r"step-(\d{10})(?:-(\d+))?")
_STATES: dict[str, str] = {reason: reason for reason in ("missing", "unreadable")} | {"newer": "of a newer stgt"}


class Version(NamedTuple):
    """A checkpoint's step, and the number of the attempt at that step. No attempt overwrites the files of another."""

    step: int
    attempt: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:010d}" + (f"-{self.attempt}" if self.attempt > 1 else "")


class ShardStatus(NamedTuple):
    """The state of a shard's file."""

    state: str  # "whole", "missing", "damaged", "unreadable" or "of a newer stgt"
    final: bool = False  # had all nodes written theirs, or has a file changed since? False for an interrupted write
    nodes: int = 0  # the number of nodes that wrote the checkpoint; 0 if that cannot be read


Survey = dict[Version, dict[int, ShardStatus]]  # what a node sees of each version, by the rank that wrote the shard
ABSENT = ShardStatus("missing")


class Shards:
    """A node's shards of the checkpoints in a folder.

    Args:
        folder: of the checkpoints.
        rank: the node.
        name: of the optimiser, if several share the folder.
    """

    def __init__(self, folder: Path, rank: int, name: str):
        self.folder, self.rank, self.name = folder, rank, name
        ending = f"-{name}" if name else ""
        self.node = f"node-{rank:04d}"
        self.stem = self.node + ending
        # The files of any node's shard, and temporary files left by a killed process.
        self._anyone = re.compile(rf"(?:node-(\d{{4,}}){ending}|\.node-(\d{{4,}}){ending}-\w{{8}})\.\w+")

    def of(self, rank: int) -> Shards:
        """Another node's shards in the same folder."""
        return Shards(self.folder, rank, self.name)

    def path(self, version: Version, ending: str) -> Path:
        return self.folder / version.folder / f"{self.stem}.{ending}"

    def survey(self, nodes: int) -> Survey:
        """The status of this node's shard of each version, in order. If another number of nodes than these has written
        a version, all its shards that are seen here are included: the nodes that wrote them may not run any more."""
        found: Survey = {}
        for version, ranks in sorted(self._present().items()):
            statuses: dict[int, ShardStatus] = {}
            for rank in sorted(ranks, key=lambda rank: (rank != self.rank, rank)):
                statuses[rank] = self.of(rank).status(version)
                if statuses[rank].nodes == nodes:  # each node reports its own, so one header is enough
                    statuses = {rank: status for rank, status in statuses.items() if rank == self.rank}
                    break
            if statuses:
                found[version] = statuses
        return found

    def _present(self) -> dict[Version, set[int]]:
        """The ranks whose files exist, for each version."""
        found: dict[Version, set[int]] = {}
        for folder in self.folder.glob("step-*") if self.folder.is_dir() else ():
            match = _FOLDER.fullmatch(folder.name)
            if match is None:
                continue
            with suppress(FileNotFoundError, NotADirectoryError):  # another node may just have removed it
                files = [self._anyone.fullmatch(path.name) for path in folder.iterdir()]
                ranks = {int(one[1] or one[2]) for one in files if one is not None}
                found |= {Version(int(match[1]), int(match[2] or 1)): ranks} if ranks else {}
        return found

    def other_names(self) -> list[str]:
        """Files of this node in the folder that belong to an optimiser with another name."""
        stems = (self.node, f"{self.node}-*")
        found = {path.name for stem in stems for path in self.folder.glob(f"step-*/{stem}.safetensors")}
        return sorted(found - {f"{self.stem}.safetensors"})

    def write(self, version: Version, tensors: Mapping[str, Tensor], metadata: dict[str, Any]) -> None:
        """Writes the shard. Raises an OSError, or a ValueError about a tensor's type, if it fails."""
        container.write(self.path(version, "safetensors"), KIND, tensors, metadata, private=True)

    def confirm(self, version: Version) -> None:
        """Records that all nodes have written theirs. A whole shard without this mark still loads."""
        try:
            self.path(version, "complete").touch(0o600)
        except OSError as error:
            _log.info("%s: %s", self.path(version, "complete"), error)

    def status(self, version: Version, read: Callable[[Path, str], Any] = container.read_meta) -> ShardStatus:
        """The status by the header and the size; with `read=container.verify`, by every byte."""
        confirmed = self.path(version, "complete").exists()
        try:
            metadata = read(self.path(version, "safetensors"), KIND)
        except container.BadFile as error:
            return ShardStatus(_STATES.get(error.reason, "damaged"), confirmed or error.reason != "missing")
        return ShardStatus("whole", confirmed, metadata["nodes"])

    def metadata(self, version: Version) -> dict[str, Any]:
        """The metadata that was written with the tensors."""
        return container.read_meta(self.path(version, "safetensors"), KIND)

    def remove(self, version: Version) -> None:
        """Removes this node's files, and then the folder if it is empty. Files that cannot be removed stay."""
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

    def prune(self, before: Survey, newest: Version, keep: int) -> None:
        """Removes all but the last `keep` complete steps up to the newest, and all incomplete versions before it.

        Versions of later steps are not newer: a run that was resumed from an earlier step may have left some. If
        another number of nodes wrote a version, every node removes all its files that it sees.
        """
        older = {version: statuses for version, statuses in before.items() if version < newest}
        whole = {
            version.step: version
            for version, statuses in older.items()
            if all(status.state == "whole" and status.final for status in statuses.values())
        }
        kept = sorted((whole | {newest.step: newest}).values())[-keep:]
        first = kept[0] if len(kept) == keep else Version(-1, 0)
        for version, statuses in older.items():
            superseded = any(version.step == one.step and version < one for one in kept)
            if version < first or superseded or not any(status.final for status in statuses.values()):
                for rank in statuses:
                    self.of(rank).remove(version)

    def _files(self, version: Version) -> list[Path]:
        """The shard's files in the order of removal, and temporary files left by a killed process."""
        folder = self.folder / version.folder
        files = [self.path(version, ending) for ending in ("complete", "safetensors")]
        return [*files, *folder.glob(f".{self.stem}-{'?' * 8}.*")]
