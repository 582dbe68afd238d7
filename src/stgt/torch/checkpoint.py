"""Checkpoints: one shard for each node, complete when every node has written its own.

On loading, the nodes agree on the newest checkpoint of which all have a whole shard, whether they share a folder or
not. Reading and writing is separate from communication: what fails at one node becomes a sentence that all nodes
receive, and all stop with it.
"""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import torch
from safetensors import safe_open
from torch import Tensor

from stgt._internal.checks import InputError
from stgt._internal.container import verify
from stgt.torch.finite import first_nonfinite
from stgt.torch.membership import Membership
from stgt.torch.run_state import Trained, mismatch, pack, unpack
from stgt.torch.shards import ABSENT, Shards, ShardStatus, Version

SHOWN = 3  # checkpoints that an error names

_log = logging.getLogger("stgt")
_users: WeakValueDictionary[tuple[Path, str], Membership] = WeakValueDictionary()


def check_name(name: Any) -> str:
    """The name, which becomes a part of file names; a ValueError if it cannot."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]*", name):
        raise InputError("name", name, "use letters, digits, - and _ only.")
    return name


def save(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], extra: Any, keep: int
) -> None:
    """Writes this node's shard, waits until all nodes have, and only then removes older ones."""
    problem, before = _open(membership, shards)
    everybody = membership.barrier("save()", [problem, state["steps_taken"], list(before)])
    _raise_first(problem for problem, _, _ in everybody)
    step = max(steps for _, steps, _ in everybody)  # nodes may differ: all name the checkpoint by the most steps
    tried = [attempt for _, _, versions in everybody for one, attempt in versions if one == step]
    here = Version(step, max(tried, default=0) + 1)
    problem = _write(f"rank {membership.rank}", trained, shards, here, {**state, "extra": extra})
    try:
        _raise_first(membership.barrier("the end of save()", problem))
    except ValueError:
        shards.remove(here)
        raise
    shards.confirm(here)
    membership.saved(shards.folder)
    shards.prune(before, here, keep)


def load(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], start_anew: bool
) -> dict[str, Any] | None:
    """Takes over this node's shard of the newest checkpoint of which all nodes have a whole one; returns its JSON."""
    problem, mine = _open(membership, shards)
    rows = [[*version, *status] for version, status in mine.items()]
    everybody = membership.barrier("load()", [problem, start_anew, rows])
    _raise_first(problem for problem, _, _ in everybody)
    statuses = [{Version(*row[:2]): ShardStatus(*row[2:]) for row in rows} for _, _, rows in everybody]
    versions = sorted({version for one in statuses for version in one}, reverse=True)
    found = {version: [one.get(version, ABSENT) for one in statuses] for version in versions}
    here = next((version for version in versions if _is_whole(membership, shards, version, found)), None)
    if here is None:
        _check_nothing_lost(membership, shards, found, all(anew for _, anew, _ in everybody))
        return None
    metadata = shards.metadata(here)
    problem = mismatch(state, metadata, str(shards.folder / here.folder), "another checkpoint folder")
    _raise_first(membership.barrier("load()", problem))
    newer = {version: statuses for version, statuses in found.items() if version > here}
    metadata["skipped"] = _skipped(shards.folder, newer, membership.rank == 0)
    with safe_open(str(shards.path(here, "safetensors")), framework="pt") as file, torch.no_grad():
        for number, bucket in enumerate(trained.buckets):
            for name, buffer in bucket.tensors.items():
                buffer.copy_(file.get_tensor(f"bucket.{number}.{name}"))
        for name, buffer in trained.buffers.all.items():
            buffer.copy_(file.get_tensor(f"buffer.{name}"))
        torch.set_rng_state(file.get_tensor("rng"))
        trained.base.load_state_dict(unpack(metadata["base"], file.get_tensor))
    shards.confirm(here)
    return metadata


# -- what all nodes do together --------------------------------------------------------------------------------------


def _raise_first(problems: Iterable[str | None]) -> None:
    """All nodes stop with the first node's problem, if there is one."""
    for problem in problems:
        if problem is not None:
            raise ValueError(problem)


def _is_whole(
    membership: Membership, shards: Shards, version: Version, found: dict[Version, list[ShardStatus]]
) -> bool:
    """Has every node a whole shard, to the last byte? Writes into `found` what the check of the bytes has shown."""
    if any(status.state != "whole" for status in found[version]):
        return False
    found[version] = [ShardStatus(*one) for one in membership.barrier("load()", shards.status(version, verify))]
    return all(status.state == "whole" for status in found[version])


# -- what a node does by itself ----------------------------------------------------------------------------------------


def _open(membership: Membership, shards: Shards) -> tuple[str | None, dict[Version, ShardStatus]]:
    """A sentence if this node cannot use the folder, else None; and what it has written there before."""
    key = shards.folder.resolve(), shards.stem
    if _users.get(key) not in (None, membership):
        # An optimiser that is out of use may still be alive in a cycle of references, such as that with its scheduler.
        gc.collect()
    if _users.setdefault(key, membership) is not membership:
        return (
            f"two optimisers of rank {membership.rank} use the checkpoint folder {shards.folder}: give each a name= of "
            "its own, or a folder of its own."
        ), {}
    try:
        return None, shards.statuses()
    except OSError as error:
        return f"rank {membership.rank}: the checkpoint folder {shards.folder} cannot be read ({error.strerror}).", {}


def _write(who: str, trained: Trained, shards: Shards, here: Version, metadata: dict[str, Any]) -> str | None:
    """Writes this node's shard; a sentence if that fails, else None."""
    tensors: dict[str, Tensor] = {}
    try:
        base = pack(trained.base.state_dict(), "base", tensors)
    except ValueError as error:
        return f"{who}: {error}"
    for number, bucket in enumerate(trained.buckets):
        tensors |= {f"bucket.{number}.{name}": value for name, value in bucket.tensors.items()}
    bad = first_nonfinite((_label(trained, name), value) for name, value in tensors.items())
    if bad:
        return f"{who}: {bad}; nothing was saved, and earlier checkpoints stay: load one, or lower lr."
    tensors |= {f"buffer.{name}": buffer for name, buffer in trained.buffers.all.items()}
    tensors["rng"] = torch.get_rng_state()
    try:
        json.dumps(metadata["extra"])
    except (TypeError, ValueError) as error:
        return f"extra cannot be written as JSON ({error}): use numbers, words, lists and dicts."
    try:
        shards.write(here, tensors, {**metadata, "base": base})
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return f"{who}: the checkpoint folder {shards.folder} cannot be written ({why})."
    return None


def _label(trained: Trained, name: str) -> str:
    """c of parameter group 0, exp_avg of parameter 3"""
    match name.split(".", 3):
        case ["bucket", number, *field]:
            return f"{field[-1]} of parameter group {trained.buckets[int(number)].group}"
        case ["base", "state", number, field]:
            return f"{field} of parameter {number}"
    return name


def _check_nothing_lost(
    membership: Membership, shards: Shards, found: dict[Version, list[ShardStatus]], start_anew: bool
) -> None:
    """A ValueError if a checkpoint was lost. One that never became complete, as its writers died, does not count."""
    statuses = [status for one in found.values() for status in one]
    if start_anew or not any(status.final for status in statuses):
        others = [] if found else shards.other_names()
        if others and membership.rank == 0:
            _log.warning("%s has %s, and nothing of this optimiser: has it another name=?", shards.folder, others[0])
        return
    for nodes in sorted({status.nodes for status in statuses} - {0, membership.nodes}):
        raise ValueError(f"{shards.folder} was written by {nodes} nodes, but {membership.nodes} run: start as many.")
    words = [f"step {version.step} is {_states(statuses)}" for version, statuses in found.items()]
    raise ValueError(
        f"{shards.folder} has no checkpoint that is whole at all nodes ({'; '.join(words[:SHOWN])}): bring the files "
        "back, or begin from the start with load(folder, start_anew=True)."
    )


def _skipped(folder: Path, newer: dict[Version, list[ShardStatus]], logs: bool) -> list[dict[str, Any]]:
    """The newer checkpoints that are not whole, newest first; rank 0 logs them."""
    skipped = []
    for version, statuses in newer.items():
        lost = any(status.final for status in statuses)
        skipped += [
            {"step": version.step, "rank": rank, "why": status.state if lost else "unfinished"}
            for rank, status in enumerate(statuses)
            if status.state != "whole"
        ]
        if logs:
            level, why = (logging.WARNING, _states(statuses)) if lost else (logging.INFO, "unfinished")
            _log.log(level, "%s: step %d is skipped, as it is %s; an older one is loaded.", folder, version.step, why)
    return skipped


def _states(statuses: list[ShardStatus]) -> str:
    """damaged at rank 2, missing at ranks 3, 4"""
    words = []
    for state in ("damaged", "unreadable", "missing", "of a newer stgt"):
        ranks = [str(rank) for rank, status in enumerate(statuses) if status.state == state]
        words += [f"{state} at rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
    return ", ".join(words)
