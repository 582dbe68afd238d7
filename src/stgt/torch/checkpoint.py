"""Checkpoints: one shard for each node. A checkpoint is complete when every node has written its shard.

On loading, the nodes agree on the newest checkpoint of which all have a whole shard. They may share a folder or not. If
another number of nodes has written it, each of its shards must be whole at some node, and `other_numbers` loads it.
Reading and writing is separate from communication: an error at one node is sent to all nodes as text, and all stop with
it.
"""

from __future__ import annotations

import gc
import json
import logging
import re
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
from stgt.torch.other_numbers import Visible, take_over, visible
from stgt.torch.run_state import Trained, mismatch, pack, raise_first, unpack
from stgt.torch.shards import Shards, ShardStatus, Survey, Version

SHOWN = 3  # checkpoints that an error names

_log = logging.getLogger("stgt")
_users: WeakValueDictionary[tuple[Path, str], Membership] = WeakValueDictionary()


def check_name(name: Any) -> str:
    """The name; a ValueError if it cannot be part of a file name."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]*", name):
        raise InputError("name", name, "use letters, digits, - and _ only.")
    return name


def save(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], extra: Any, keep: int
) -> None:
    """Writes this node's shard, waits until all nodes have written theirs, and only then removes older ones."""
    problem, before = _open(membership, shards)
    everybody = membership.barrier("save()", [problem, state["steps_taken"], list(before)])
    raise_first(problem for problem, _, _ in everybody)
    step = max(steps for _, steps, _ in everybody)  # nodes may differ: all use the largest number of steps as the name
    tried = [attempt for _, _, versions in everybody for one, attempt in versions if one == step]
    here = Version(step, max(tried, default=0) + 1)
    problem = _write(f"rank {membership.rank}", trained, shards, here, {**state, "extra": extra})
    try:
        raise_first(membership.barrier("the end of save()", problem))
    except ValueError:
        shards.remove(here)
        raise
    shards.confirm(here)
    membership.saved(shards.folder)
    shards.prune(before, here, keep)


def load(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], start_anew: bool
) -> dict[str, Any] | None:
    """Loads the newest whole checkpoint and returns the JSON of a shard. If the checkpoint is from the same number of
    nodes, each node loads its own shard."""
    problem, mine = _open(membership, shards)
    rows = [[*version, rank, *status] for version, statuses in mine.items() for rank, status in statuses.items()]
    everybody = membership.barrier("load()", [problem, start_anew, rows])
    raise_first(problem for problem, _, _ in everybody)
    found = visible([rows for _, _, rows in everybody])
    here = next((version for version in found if _is_whole(membership, shards, version, found[version])), None)
    if here is None:
        _check_nothing_lost(membership, shards, found, all(fresh for _, fresh, _ in everybody))
        return None
    if found[here].nodes == membership.nodes:
        metadata = _take_over_own(membership, shards, trained, state, here)
    else:
        metadata = take_over(membership, shards, trained, state, here, found[here])
    newer = {version: one for version, one in found.items() if version > here}
    metadata["skipped"] = _skipped(shards.folder, newer, membership.rank == 0)
    metadata["written_by"] = found[here].nodes
    for rank in found[here].read_by(membership.rank):
        shards.of(rank).confirm(here)
    return metadata


# -- what all nodes do together --------------------------------------------------------------------------------------


def _is_whole(membership: Membership, shards: Shards, version: Version, found: Visible) -> bool:
    """Is every shard whole, in every byte? Updates `found` with the result of that check."""
    if any(status.state != "whole" for status in found.statuses):
        return False
    checked = {rank: shards.of(rank).status(version, verify) for rank in found.read_by(membership.rank)}
    for rows in membership.barrier("load()", [[rank, *status] for rank, status in checked.items()]):
        for rank, *status in rows:
            if found.statuses[rank].state == "whole":  # if several nodes read it, one may have found an error
                found.statuses[rank] = ShardStatus(*status)
    return all(status.state == "whole" for status in found.statuses)


def _take_over_own(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], here: Version
) -> dict[str, Any]:
    """Loads the shard that this node has written, bit for bit; returns its JSON."""
    metadata = shards.metadata(here)
    problem = mismatch(state, metadata, str(shards.folder / here.folder), "another checkpoint folder")
    raise_first(membership.barrier("load()", problem))
    with safe_open(str(shards.path(here, "safetensors")), framework="pt") as file, torch.no_grad():
        for number, bucket in enumerate(trained.buckets):
            for name, buffer in bucket.tensors.items():
                buffer.copy_(file.get_tensor(f"bucket.{number}.{name}"))
        for name, buffer in trained.buffers.all.items():
            buffer.copy_(file.get_tensor(f"buffer.{name}"))
        torch.set_rng_state(file.get_tensor("rng"))
        trained.base.load_state_dict(unpack(metadata["base"], file.get_tensor))
    return metadata


# -- what a node does alone --------------------------------------------------------------------------------------------


def _open(membership: Membership, shards: Shards) -> tuple[str | None, Survey]:
    """An error message if this node cannot use the folder, else None; and the shards that exist already."""
    key = shards.folder.resolve(), shards.stem
    if _users.get(key) not in (None, membership):
        # An unused optimiser may still be alive in a reference cycle, such as the one with its scheduler.
        gc.collect()
    if _users.setdefault(key, membership) is not membership:
        return (
            f"two optimisers of rank {membership.rank} use the checkpoint folder {shards.folder}: give each its own "
            "name= or its own folder."
        ), {}
    try:
        return None, shards.survey(membership.nodes)
    except OSError as error:
        return f"rank {membership.rank}: the checkpoint folder {shards.folder} cannot be read ({error.strerror}).", {}


def _write(who: str, trained: Trained, shards: Shards, here: Version, metadata: dict[str, Any]) -> str | None:
    """Writes this node's shard. Returns an error message if that fails, else None."""
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
        return f"extra cannot be written as JSON ({error}): use numbers, strings, lists and dicts."
    try:
        shards.write(here, tensors, {**metadata, "base": base})
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or error
        return f"{who}: the checkpoint folder {shards.folder} cannot be written ({why})."
    return None


def _label(trained: Trained, name: str) -> str:
    """A tensor's name for messages, such as "c of parameter group 0" or "exp_avg of parameter 3"."""
    match name.split(".", 3):
        case ["bucket", number, *field]:
            return f"{field[-1]} of parameter group {trained.buckets[int(number)].group}"
        case ["base", "state", number, field]:
            return f"{field} of parameter {number}"
    return name


def _check_nothing_lost(
    membership: Membership, shards: Shards, found: dict[Version, Visible], start_anew: bool
) -> None:
    """A ValueError if a checkpoint was lost. A checkpoint that was never completed does not count."""
    if start_anew or not any(one.final for one in found.values()):
        others = [] if found else shards.other_names()
        if others and membership.rank == 0:
            _log.warning("%s has %s, but no files of this optimiser: has it another name=?", shards.folder, others[0])
        return
    words = []
    for version, one in found.items():
        number = f" of {one.nodes} nodes" if one.nodes != membership.nodes else ""
        words.append(f"step {version.step}{number} is {_states(one.statuses)}")
    raise ValueError(
        f"{shards.folder} has no checkpoint that is whole at all nodes ({'; '.join(words[:SHOWN])}): restore the "
        "files, or start a new run with load(folder, start_anew=True)."
    )


def _skipped(folder: Path, newer: dict[Version, Visible], logs: bool) -> list[dict[str, Any]]:
    """The newer checkpoints that are not whole, newest first; rank 0 logs them."""
    skipped = []
    for version, one in newer.items():
        skipped += [
            {"step": version.step, "rank": rank, "why": status.state if one.final else "unfinished"}
            for rank, status in enumerate(one.statuses)
            if status.state != "whole"
        ]
        if logs:
            level, why = (logging.WARNING, _states(one.statuses)) if one.final else (logging.INFO, "unfinished")
            _log.log(level, "%s: step %d is skipped, as it is %s; an older one is loaded.", folder, version.step, why)
    return skipped


def _states(statuses: list[ShardStatus]) -> str:
    """The states as text, such as "damaged at rank 2, missing at ranks 3, 4"."""
    words = []
    for state in ("damaged", "unreadable", "missing", "of a newer stgt"):
        ranks = [str(rank) for rank, status in enumerate(statuses) if status.state == state]
        words += [f"{state} at rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
    return ", ".join(words)
