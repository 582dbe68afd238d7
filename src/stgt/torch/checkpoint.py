"""Checkpoints: a part for each node, complete when every node has its own, and the nodes' agreement on which to load.

On loading, the nodes agree on the newest checkpoint of which all have a whole part, whether they share a folder or not.
Each node's reading and writing is apart from the talking: what goes wrong at one of them becomes a sentence, and all
nodes stop with it.
"""

from __future__ import annotations

import gc
import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from stgt.torch.finite import first_nonfinite
from stgt.torch.parts import ABSENT, FORMAT, Look, Parts, Place
from stgt.torch.state import pack, stand, standing, unlike, unpack

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer

SHOWN = 3  # checkpoints that a refusal tells of

_log = logging.getLogger("stgt")
_users: WeakValueDictionary[tuple[Path, str], DistributedOptimizer] = WeakValueDictionary()


def check_name(name: Any) -> str:
    """A name that can be a part of a file's."""
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_-]*", name):
        raise ValueError(f"name={name!r}: use letters, digits, - and _ only.")
    return name


def save(opt: DistributedOptimizer, folder: Path, extra: Any, keep: int) -> None:
    """Writes this node's part, hears whether all have, and only then removes older ones."""
    if opt._early is not None:
        opt._early.pause()  # whoever stops after saving leaves nothing under way
    parts = Parts(folder, opt.rank, opt.name)
    problem, before = _begin(opt, parts)
    everybody = opt._group.meet("save()", [problem, opt.steps_taken, list(before)])
    _stop_at(problem for problem, _, _ in everybody)
    step = max(steps for _, steps, _ in everybody)  # the most that a node has made, by which all name the checkpoint
    tried = [attempt for _, _, places in everybody for one, attempt in places if one == step]
    here = Place(step, max(tried, default=0) + 1)
    problem = _write(opt, parts, here, extra)
    try:
        _stop_at(opt._group.meet("the end of save()", problem))
    except ValueError:
        parts.remove(here)
        raise
    parts.confirm(here)
    opt._watch.checkpoint = f"the checkpoint of round {opt.round} in {folder} is intact"
    parts.prune(before, here, keep)


def load(opt: DistributedOptimizer, folder: Path, start_anew: bool) -> dict[str, Any] | None:
    """Takes over this node's part of the newest checkpoint that all nodes have whole."""
    parts = Parts(folder, opt.rank, opt.name)
    problem, mine = _begin(opt, parts)
    everybody = opt._group.meet("load()", [problem, start_anew, [[*place, *look] for place, look in mine.items()]])
    _stop_at(problem for problem, _, _ in everybody)
    looks = [{Place(*row[:2]): Look(*row[2:]) for row in rows} for _, _, rows in everybody]
    known = sorted({place for one in looks for place in one}, reverse=True)
    found = {place: [one.get(place, ABSENT) for one in looks] for place in known}
    here = next((place for place in known if _all_whole(opt, parts, place, found)), None)
    if here is None:
        _check_nothing_lost(opt, parts, found, all(anew for _, anew, _ in everybody))
        return None
    about = parts.about(here)
    _stop_at(opt._group.meet("load()", _unfit(opt, about, folder / here.folder)))
    skipped = _skipped(opt, folder, {place: looks for place, looks in found.items() if place > here})
    with safe_open(str(parts.path(here, "safetensors")), framework="pt") as file, torch.no_grad():
        names = set(file.keys())
        for number, block in enumerate(opt.blocks):
            for name, buffer in block.buffers.items():
                buffer.copy_(file.get_tensor(f"block.{number}.{name}"))
        for name, buffer in opt.buffers.all.items():
            buffer.copy_(file.get_tensor(f"buffer.{name}"))
        torch.set_rng_state(file.get_tensor("rng"))
        _load_base(
            opt, about["base"], {name: file.get_tensor(name) for name in names if name.startswith(("base.", "nested."))}
        )
    stand(opt, about)
    parts.confirm(here)
    opt._watch.checkpoint = f"the checkpoint of round {opt.round} in {folder} is intact"
    return {"round": opt.round, "steps": opt.steps_taken, "extra": about["extra"], "skipped": skipped}


# -- what the nodes tell one another ---------------------------------------------------------------------------------


def _stop_at(problems: Iterable[str | None]) -> None:
    """All nodes stop with the first node's problem, if there is one."""
    for problem in problems:
        if problem is not None:
            raise ValueError(problem)


def _all_whole(opt: DistributedOptimizer, parts: Parts, place: Place, found: dict[Place, list[Look]]) -> bool:
    """Has every node its whole part, to the last byte? What else was seen of it is noted in `found`."""
    if any(look.state != "whole" for look in found[place]):
        return False
    found[place] = [Look(*one) for one in opt._group.meet("load()", parts.check(place))]
    return all(look.state == "whole" for look in found[place])


# -- what a node does by itself ----------------------------------------------------------------------------------------


def _begin(opt: DistributedOptimizer, parts: Parts) -> tuple[str | None, dict[Place, Look]]:
    """What this node has written before; or a sentence, if it cannot use the folder."""
    key = parts.folder.resolve(), opt.name
    if _users.get(key) not in (None, opt):
        gc.collect()  # one that nobody holds any more may be in a circle of references
    if _users.setdefault(key, opt) is not opt:
        return (
            f"two optimisers of rank {opt.rank} use the checkpoint folder {parts.folder}: give each a name= of its "
            "own, or a folder of its own."
        ), {}
    try:
        return None, parts.looks()
    except OSError as error:
        return f"rank {opt.rank}: the checkpoint folder {parts.folder} cannot be read ({error.strerror}).", {}


def _write(opt: DistributedOptimizer, parts: Parts, here: Place, extra: Any) -> str | None:
    """Writes this node's part; None, or the sentence of what failed."""
    try:
        tensors, values = _base_state(opt)
    except ValueError as error:
        return f"rank {opt.rank}: {error}"
    for number, block in enumerate(opt.blocks):
        tensors |= {f"block.{number}.{name}": value for name, value in block.buffers.items()}
    bad = first_nonfinite((_in_words(opt, name), value) for name, value in tensors.items())
    if bad:
        return f"rank {opt.rank}: {bad}; nothing was saved, and earlier checkpoints stay: load one, or lower lr."
    tensors |= {f"buffer.{name}": buffer.detach().contiguous() for name, buffer in opt.buffers.all.items()}
    tensors["rng"] = torch.get_rng_state()
    try:
        json.dumps(extra)
    except (TypeError, ValueError) as error:
        return f"extra cannot be written as JSON ({error}): use numbers, words, lists and dicts."
    try:
        parts.write(here, _apart(tensors), {**standing(opt), "base": values, "extra": extra})
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        return f"rank {opt.rank}: the checkpoint folder {parts.folder} cannot be written ({why})."
    return None


def _in_words(opt: DistributedOptimizer, name: str) -> str:
    """c of parameter group 0, exp_avg of parameter 3"""
    kind, number, field = name.split(".", 2)
    if kind == "block":
        return f"{field.removeprefix('state.')} of parameter group {opt.blocks[int(number)].group}"
    return f"{field} of parameter {number}"


def _check_nothing_lost(
    opt: DistributedOptimizer, parts: Parts, found: dict[Place, list[Look]], start_anew: bool
) -> None:
    """A ValueError if there was a checkpoint; a first one that was never complete, as its writers died, is none."""
    looks = [look for one in found.values() for look in one]
    if start_anew or not any(look.final for look in looks):
        others = [] if found else parts.others()
        if others and opt.rank == 0:
            _log.warning("%s has %s, and nothing of this optimiser: has it another name=?", parts.folder, others[0])
        return
    for nodes in sorted({look.nodes for look in looks} - {0, opt.nodes}):
        raise ValueError(f"{parts.folder} was written by {nodes} nodes, but {opt.nodes} run: start as many.")
    words = [f"step {place.step} is {_states(looks)}" for place, looks in found.items()]
    raise ValueError(
        f"{parts.folder} has no checkpoint that is whole at all nodes ({'; '.join(words[:SHOWN])}): bring the files "
        "back, or begin from the start with load(folder, start_anew=True)."
    )


def _skipped(opt: DistributedOptimizer, folder: Path, newer: dict[Place, list[Look]]) -> list[dict[str, Any]]:
    """The checkpoints that were passed over, newest first; rank 0 says so too."""
    skipped = []
    for place, looks in newer.items():
        lost = any(look.final for look in looks)
        skipped += [
            {"step": place.step, "rank": rank, "why": look.state if lost else "unfinished"}
            for rank, look in enumerate(looks)
            if look.state != "whole"
        ]
        if opt.rank == 0:
            level, why = (logging.WARNING, _states(looks)) if lost else (logging.INFO, "unfinished")
            _log.log(level, "%s: step %d is skipped, as it is %s; an older one is loaded.", folder, place.step, why)
    return skipped


def _states(looks: list[Look]) -> str:
    """damaged at rank 2, missing at ranks 3, 4"""
    words = []
    for state in ("damaged", "unreadable", "missing"):
        ranks = [str(rank) for rank, look in enumerate(looks) if look.state == state]
        words += [f"{state} at rank{'s' * (len(ranks) > 1)} {', '.join(ranks)}"] if ranks else []
    return ", ".join(words)


def _unfit(opt: DistributedOptimizer, about: dict[str, Any], here: Path) -> str | None:
    if about["format"] > FORMAT:
        return f"{here} has format {about['format']}, and this stgt reads up to {FORMAT}: use a newer stgt."
    return unlike(opt, about, str(here), "another checkpoint folder")


def _base_state(opt: DistributedOptimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The wrapped optimiser's state, its tensors apart from its numbers."""
    state = opt.base.state_dict()
    tensors: dict[str, Tensor] = {}
    numbers: dict[str, dict[str, Any]] = {}
    for index, entries in state["state"].items():
        for name, value in entries.items():
            if isinstance(value, Tensor):
                tensors[f"base.{index}.{name}"] = value.detach().contiguous()
            else:
                numbers.setdefault(str(index), {})[name] = pack(value, f"nested.{index}.{name}", tensors)
    groups = [
        {
            name: value.item() if isinstance(value, Tensor) else pack(value, f"nested.group {number}.{name}", tensors)
            for name, value in group.items()
        }
        for number, group in enumerate(state["param_groups"])
    ]
    return tensors, {"state": numbers, "groups": groups}


def _load_base(opt: DistributedOptimizer, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {
        int(index): {name: unpack(value, tensors) for name, value in entries.items()}
        for index, entries in values["state"].items()
    }
    for key, value in tensors.items():
        kind, index, name = key.split(".", 2)
        if kind == "base":
            state.setdefault(int(index), {})[name] = value
    groups = [{name: unpack(value, tensors) for name, value in group.items()} for group in values["groups"]]
    opt.base.load_state_dict({"state": state, "param_groups": groups})
    opt.param_groups, opt.state = opt.base.param_groups, opt.base.state


def _apart(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Tensors that share memory with none other, as the format wants them."""
    seen: set[int] = set()
    found = {}
    for name, value in tensors.items():
        storage = value.untyped_storage().data_ptr()
        found[name] = value.clone() if storage in seen else value
        seen.add(storage)
    return found
