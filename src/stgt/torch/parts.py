"""One node's part of a checkpoint as files: written, looked at, checked and removed without talking to anybody.

A part is a safetensors file, then a JSON file, and once all nodes have theirs a third, empty one that says so. The JSON
holds the SHA-256 of the tensors' file and its own, so that no flipped byte is ever loaded. SHA-256 is the fastest of
hashlib's strong digests where the processor knows it, quicker than a disk writes, and `sha256sum` checks it by hand.
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
_SEAL = re.compile(rb', "sha256": "([0-9a-f]{64})"\}')
_SEAL_LENGTH = len(', "sha256": ""}') + 64
_ENTRIES = {
    "format",
    "node",
    "nodes",
    "signature",
    "round",
    "taken",
    "travelled",
    "warm",
    "base",
    "extra",
    "bytes",
    "tensors",
}


class Place(NamedTuple):
    """Which checkpoint: its step, and which attempt at that step. No attempt writes over another's files."""

    step: int
    attempt: int

    @property
    def folder(self) -> str:
        return f"step-{self.step:010d}" + (f"-{self.attempt}" if self.attempt > 1 else "")


class Look(NamedTuple):
    """What a first look at a part finds."""

    state: str  # "whole", "missing", "damaged" or "unreadable"
    final: bool = False  # had all nodes written, or is a file gone or changed that was there? Not a broken-off write.
    nodes: int = 0  # how many wrote the checkpoint, if it is known


ABSENT = Look("missing")


class Parts:
    """A node's parts of the checkpoints in a folder.

    Args:
        folder: of the checkpoints.
        rank: the node.
        name: of the optimiser, where several share the folder.
    """

    def __init__(self, folder: Path, rank: int, name: str):
        self.folder, self.node = folder, f"node-{rank:04d}"
        self.stem = self.node + (f"-{name}" if name else "")

    def path(self, place: Place, ending: str) -> Path:
        return self.folder / place.folder / f"{self.stem}.{ending}"

    def looks(self) -> dict[Place, Look]:
        """A look at each place where this node has written something, if only half of it, in order."""
        found: list[Place] = []
        for path in self.folder.glob("step-*") if self.folder.is_dir() else ():
            match = _FOLDER.fullmatch(path.name)
            if match is not None:
                place = Place(int(match[1]), int(match[2] or 1))
                found += [place] if any(one.exists() for one in self._files(place)) else []
        return {place: self.look(place) for place in sorted(found)}

    def others(self) -> list[str]:
        """Files of this node in the folder that are of an optimiser with another name."""
        found = [*self.folder.glob(f"step-*/{self.node}.json"), *self.folder.glob(f"step-*/{self.node}-*.json")]
        return sorted({path.name for path in found} - {f"{self.stem}.json"})

    def write(self, place: Place, tensors: dict[str, Tensor], about: dict[str, Any]) -> None:
        """The two files, each whole or not at all, the JSON last. An OSError or a SafetensorError if it fails."""
        digest = ""

        def fill(path: Path) -> None:
            nonlocal digest
            save_file(tensors, str(path))
            digest = _sha256_of(path)

        data = write_atomically(self.path(place, "safetensors"), fill, durable=True, private=True)
        text = sealed({"format": FORMAT, **about, "bytes": data.stat().st_size, "tensors": digest})
        write_atomically(self.path(place, "json"), lambda path: path.write_bytes(text), durable=True, private=True)

    def confirm(self, place: Place) -> None:
        """All nodes have written. Where that cannot be written down, a whole part still loads."""
        try:
            self.path(place, "complete").touch(0o600)
        except OSError as error:
            _log.info("%s: %s", self.path(place, "complete"), error)

    def look(self, place: Place) -> Look:
        """What is there, by the JSON file and the other's size."""
        confirmed = self.path(place, "complete").exists()
        try:
            about = self.about(place)
        except FileNotFoundError:
            return Look("missing", confirmed)
        except OSError:
            return Look("unreadable", True)
        except ValueError:
            return Look("damaged", True)
        try:
            size = self.path(place, "safetensors").stat().st_size
        except OSError as error:
            return Look("missing" if isinstance(error, FileNotFoundError) else "unreadable", True, about["nodes"])
        if size != about["bytes"]:
            return Look("damaged", True, about["nodes"])
        return Look("whole", confirmed, about["nodes"])

    def about(self, place: Place) -> dict[str, Any]:
        """The JSON file's content; an OSError or a ValueError if it cannot be had."""
        return unsealed(self.path(place, "json").read_bytes())

    def check(self, place: Place) -> Look:
        """A look at every byte."""
        first, data = self.look(place), self.path(place, "safetensors")
        if first.state != "whole":
            return first
        try:
            told = self.about(place)["tensors"]
            with safe_open(str(data), framework="pt"):
                fits = told == _sha256_of(data)
        except FileNotFoundError:
            return first._replace(state="missing", final=True)
        except OSError:
            return first._replace(state="unreadable", final=True)
        except (ValueError, SafetensorError):
            fits = False
        return first if fits else first._replace(state="damaged", final=True)

    def remove(self, place: Place) -> None:
        """This node's files, and the folder if nobody else has some in it. What cannot be removed stays."""
        try:
            for path in self._files(place):
                path.unlink(missing_ok=True)
        except OSError as error:
            _log.warning("%s cannot be removed (%s).", self.folder / place.folder, error)
            return
        try:
            (self.folder / place.folder).rmdir()
        except OSError:  # other nodes' parts are still there, or were removed by them
            return

    def prune(self, before: dict[Place, Look], newest: Place, keep: int) -> None:
        """Of what was there before, leaves what makes `keep` complete steps with the newest, and nothing half-written.

        Later ones are no newer: a run that was resumed from an earlier one may have left parts of them.
        """
        looks = {place: look for place, look in before.items() if place < newest}
        whole = {place.step: place for place, look in looks.items() if look.state == "whole" and look.final}
        kept = sorted((whole | {newest.step: newest}).values())[-keep:]
        first = kept[0] if len(kept) == keep else Place(-1, 0)
        for place, look in looks.items():
            superseded = any(place.step == one.step and place < one for one in kept)
            if place < first or superseded or not look.final:
                self.remove(place)

    def _files(self, place: Place) -> list[Path]:
        """The part's files in the order in which they go, and what a killed process left of one."""
        folder = self.folder / place.folder
        files = [self.path(place, ending) for ending in ("complete", "json", "safetensors")]
        return [*files, *folder.glob(f".{self.stem}-{'?' * 8}.*")]


def sealed(about: dict[str, Any]) -> bytes:
    """JSON that ends in the digest of all of it before."""
    text = json.dumps(about).encode()
    return text[:-1] + f', "sha256": "{hashlib.sha256(text).hexdigest()}"}}'.encode()


def unsealed(text: bytes) -> dict[str, Any]:
    """What was sealed; a ValueError if a byte of it differs."""
    seal, text = _SEAL.fullmatch(text[-_SEAL_LENGTH:]), text[:-_SEAL_LENGTH] + b"}"
    if seal is None or hashlib.sha256(text).hexdigest() != seal[1].decode():
        raise ValueError("its digest is missing or wrong")
    about = json.loads(text)
    if not isinstance(about, dict) or not about.keys() >= _ENTRIES:
        raise ValueError("it is no part of a checkpoint")
    return about


def _sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
