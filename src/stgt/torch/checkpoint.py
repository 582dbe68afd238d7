"""Checkpoints: two files for each node, tensors as safetensors and the rest as JSON, written whole or not at all.

A node's part counts once its JSON file is there, which is written last. A checkpoint is complete when every node has
its part: on loading, the nodes agree on the newest step of which all of them do, whether they share a folder or not.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from stgt.files import write_atomically

if TYPE_CHECKING:
    from stgt.torch.optimizer import DistributedOptimizer

FORMAT = 1
_FOLDER = re.compile(r"step-(\d{10})")


def save(opt: DistributedOptimizer, folder: Path, extra: Any, keep: int) -> None:
    """Writes this node's part, waits until all have, and only then removes older ones."""
    if opt._early is not None:
        opt._early.settle()  # whoever stops after saving leaves nothing under way
    tensors, values = _base_state(opt)
    for number, block in enumerate(opt.blocks):
        tensors |= {f"block.{number}.{name}": value for name, value in block.buffers.items()}
    tensors |= {f"buffer.{name}": buffer.detach().contiguous() for name, buffer in opt.buffers.all.items()}
    tensors["rng"] = torch.get_rng_state()
    about = {
        "format": FORMAT,
        "round": opt.round,
        "taken": opt.taken,
        "steps": opt.steps_taken,
        "node": opt.rank,
        "nodes": opt.nodes,
        "signature": opt._signature(),
        "travelled": [block.travelled for block in opt.blocks],
        "warm": opt._warm,
        "bytes_sent": opt._exchange.bytes_sent,
        "base": values,
        "extra": extra,
    }
    _check_json(extra, "extra")
    _check_json(values, f"the state of {type(opt.base).__name__}")
    step = _common_step(opt)
    here = folder / f"step-{step:010d}"
    try:
        data = write_atomically(here / _name(opt, "safetensors"), lambda path: save_file(_apart(tensors), str(path)))
        text = json.dumps(about | {"bytes": data.stat().st_size})
        write_atomically(here / _name(opt, "json"), lambda path: path.write_text(text, encoding="utf-8"))
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise ValueError(f"the checkpoint folder {folder} cannot be written ({why}).") from None
    with opt._watch.waiting():
        dist.barrier()
    # Later ones are no newer: a run that was resumed from an earlier one may have left parts of them.
    for old in sorted(one for one in _steps(opt, folder) if one <= step)[:-keep]:
        for ending in ("json", "safetensors"):
            (folder / f"step-{old:010d}" / _name(opt, ending)).unlink(missing_ok=True)
        _remove_if_empty(folder / f"step-{old:010d}")


def load(opt: DistributedOptimizer, folder: Path) -> dict[str, Any] | None:
    """Takes over this node's part of the newest checkpoint that all nodes have."""
    everybody: list[Any] = [None] * opt.nodes
    with opt._watch.waiting():
        dist.all_gather_object(everybody, _steps(opt, folder))
    common = set.intersection(*map(set, everybody))
    if not common:
        for nodes in {nodes for steps in everybody for nodes in steps.values()} - {opt.nodes}:
            raise ValueError(f"{folder} was written by {nodes} nodes, but {opt.nodes} run: start as many.")
        return None
    here = folder / f"step-{max(common):010d}"
    about = json.loads((here / _name(opt, "json")).read_text(encoding="utf-8"))
    _check_same(opt, about, here)
    with safe_open(str(here / _name(opt, "safetensors")), framework="pt") as file, torch.no_grad():
        names = set(file.keys())
        for number, block in enumerate(opt.blocks):
            for name, buffer in block.buffers.items():
                buffer.copy_(file.get_tensor(f"block.{number}.{name}"))
            block.travelled = about["travelled"][number]
        for name, buffer in opt.buffers.all.items():
            buffer.copy_(file.get_tensor(f"buffer.{name}"))
        torch.set_rng_state(file.get_tensor("rng"))
        _load_base(opt, about["base"], {name: file.get_tensor(name) for name in names if name.startswith("base.")})
    opt.round, opt.taken, opt.steps_taken, opt._warm = about["round"], about["taken"], about["steps"], about["warm"]
    opt._exchange.bytes_sent = about.get("bytes_sent", 0)  # files of earlier versions have none
    opt._open_round()
    return {"round": opt.round, "steps": opt.steps_taken, "extra": about["extra"]}


def _name(opt: DistributedOptimizer, ending: str) -> str:
    return f"node-{opt.rank:04d}.{ending}"


def _common_step(opt: DistributedOptimizer) -> int:
    """The most steps that a node has made, by which all nodes name the checkpoint."""
    most = torch.tensor([opt.steps_taken], device=opt.blocks[0].x.device)
    with opt._watch.waiting():
        dist.all_reduce(most, op=dist.ReduceOp.MAX)
    return int(most)


def _check_json(value: Any, name: str) -> None:
    try:
        json.dumps(value)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} cannot be written as JSON ({error}): use numbers, words, lists and dicts.") from None


def _steps(opt: DistributedOptimizer, folder: Path) -> dict[int, int]:
    """The steps of which this node has a whole part, and how many nodes there were."""
    found = {}
    for path in folder.glob("step-*") if folder.is_dir() else ():
        match = _FOLDER.fullmatch(path.name)
        data, about = path / _name(opt, "safetensors"), path / _name(opt, "json")
        if match and data.is_file() and about.is_file():
            nodes = _nodes_if_whole(data, about)
            found |= {int(match[1]): nodes} if nodes else {}
    return found


def _nodes_if_whole(data: Path, about: Path) -> int:
    """How many nodes wrote the checkpoint; 0 if this part of it is broken."""
    try:
        told = json.loads(about.read_text(encoding="utf-8"))
        with safe_open(str(data), framework="pt"):
            return told["nodes"] if data.stat().st_size == told["bytes"] else 0
    except (OSError, ValueError, KeyError, TypeError, SafetensorError):
        return 0


def _check_same(opt: DistributedOptimizer, about: dict[str, Any], here: Path) -> None:
    if about["format"] != FORMAT:
        raise ValueError(f"{here} was written by another version of stgt (format {about['format']}, not {FORMAT}).")
    if about["nodes"] != opt.nodes:
        raise ValueError(f"{here} was written by {about['nodes']} nodes, but {opt.nodes} run: start as many.")
    mine = json.loads(json.dumps(opt._signature()))
    for name, value in about["signature"].items():
        if value != mine.get(name):
            raise ValueError(f"{here} was written with another {name}: give the same, or another checkpoint folder.")


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
                numbers.setdefault(str(index), {})[name] = value
    groups = [
        {name: value.item() if isinstance(value, Tensor) else value for name, value in group.items()}
        for group in state["param_groups"]
    ]
    return tensors, {"state": numbers, "groups": groups}


def _load_base(opt: DistributedOptimizer, values: dict[str, Any], tensors: dict[str, Tensor]) -> None:
    state: dict[int, dict[str, Any]] = {int(index): dict(entries) for index, entries in values["state"].items()}
    for key, value in tensors.items():
        _, index, name = key.split(".", 2)
        state.setdefault(int(index), {})[name] = value
    opt.base.load_state_dict({"state": state, "param_groups": values["groups"]})
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


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # other nodes' parts are still there, or were removed by them
        return
