"""Loads a checkpoint that another number of nodes has written: which node sees and reads which shard, and what it uses.

All nodes start from the mean of the saved models, with corrections of 0. Every method may start so, and it converges to
the minimiser over the nodes that run now. Saved corrections are not used: each belongs to one node's data. Each shard
is read by one node for all, and in pieces, so that loading takes no more memory than training.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor

from stgt.torch.buckets import Bucket, slices_of, wide
from stgt.torch.membership import Membership
from stgt.torch.run_state import COUNTERS, EXCHANGE_COUNTERS, Trained, other_run, raise_first, unpack
from stgt.torch.shards import ABSENT, Shards, ShardStatus, Version

PIECE = 1 << 20  # elements that are summed at once
_log = logging.getLogger("stgt")


@dataclass
class Visible:
    """What the running nodes see of a checkpoint.

    Attributes:
        nodes: the number of nodes that have written it.
        statuses: of each shard, by the rank that wrote it.
        seen: the shards that each node can read, by its current rank.
    """

    nodes: int
    statuses: list[ShardStatus]
    seen: list[set[int]]

    @property
    def final(self) -> bool:
        """Was it ever complete?"""
        return any(status.final for status in self.statuses)

    @property
    def readers(self) -> list[int]:
        """The node that reads each shard for all; the checkpoint must be whole."""
        who = [[rank for rank, shards in enumerate(self.seen) if shard in shards] for shard in range(self.nodes)]
        return [ranks[shard % len(ranks)] for shard, ranks in enumerate(who)]

    def own(self, rank: int) -> int | None:
        """The shard from which a node takes what has no mean, such as the optimiser's state; None if it sees none."""
        wanted, seen = rank % self.nodes, self.seen[rank]
        return wanted if wanted in seen else min(seen, default=None)

    def read_by(self, rank: int) -> list[int]:
        """All shards that a node reads."""
        own = self.own(rank)
        given = {shard for shard, reader in enumerate(self.readers) if reader == rank}
        return sorted(given if own is None else given | {own})


def visible(rows: Sequence[Sequence[Sequence[Any]]]) -> dict[Version, Visible]:
    """All checkpoints that the nodes see, newest first. A node's rows: (*Version, rank that wrote it, *ShardStatus)."""
    everybody: dict[Version, list[dict[int, ShardStatus]]] = {}
    for rank, one in enumerate(rows):
        for step, attempt, shard, *status in one:
            seen = everybody.setdefault(Version(step, attempt), [{} for _ in rows])
            seen[rank][shard] = ShardStatus(*status)
    return {version: _together(everybody[version]) for version in sorted(everybody, reverse=True)}


def _together(everybody: list[dict[int, ShardStatus]]) -> Visible:
    nodes = max(status.nodes for one in everybody for status in one.values()) or len(everybody)
    if nodes == len(everybody):  # each node reads only its own shard
        own = [one.get(rank, ABSENT) for rank, one in enumerate(everybody)]
        return Visible(nodes, own, [{rank} for rank in range(nodes)])
    for one in everybody:
        one |= {shard: ABSENT for shard, status in one.items() if status.nodes not in (0, nodes)}
    found = [[one[shard] for one in everybody if shard in one] for shard in range(nodes)]
    best = [min(statuses, key=lambda status: status.state != "whole", default=ABSENT) for statuses in found]
    seen = [{shard for shard, status in one.items() if status.state == "whole"} for one in everybody]
    return Visible(nodes, best, seen)


def take_over(
    membership: Membership, shards: Shards, trained: Trained, state: dict[str, Any], here: Version, found: Visible
) -> dict[str, Any]:
    """Loads a checkpoint of another number of nodes. Returns JSON like that of this node's own shard."""
    own, read = found.own(membership.rank), found.read_by(membership.rank)
    metadata = {shard: shards.of(shard).metadata(here) for shard in read}
    given = [shard for shard, reader in enumerate(found.readers) if reader == membership.rank]
    name, folder = str(shards.folder / here.folder), "another checkpoint folder"
    problem = next(filter(None, (other_run(state, one, name, folder) for one in metadata.values())), None)
    everything = not all(found.seen)  # a node that sees no shard must receive everything
    rows = [[shard, _for_all(metadata[shard], everything)] for shard in given]
    everybody = membership.barrier("load()", [problem, rows])
    raise_first(problem for problem, _ in everybody)
    by_shard = {shard: one for _, rows in everybody for shard, one in rows}
    received = [by_shard[shard] for shard in range(found.nodes)]
    weights = [one["weight"] for one in received]
    moving = next((one["moving"] for one in received if one["moving"] is not None), None)
    with membership.collective("load()"), torch.no_grad(), ExitStack() as opened:
        files = {
            shard: opened.enter_context(safe_open(str(shards.of(shard).path(here, "safetensors")), framework="pt"))
            for shard in read
        }
        if own is None:
            _take_groups(trained, received[membership.rank % found.nodes]["groups"])
        else:
            _take_own(trained, metadata[own], files[own], as_it_was=own == membership.rank)
        _take_means(membership, trained, {shard: files[shard] for shard in given}, weights, moving)
    if membership.rank == 0:
        _report(name, found, trained)
    return {
        **{name: max(one[name] for one in received) for name in (*COUNTERS, *EXCHANGE_COUNTERS)},
        "taken": 0,
        "warm": all(one["warm"] for one in received),
        "lr_sum": [0.0] * len(trained.buckets),
        "moving": moving,
        "extra": (received[membership.rank % found.nodes] if own is None else metadata[own])["extra"],
    }


def _for_all(metadata: dict[str, Any], everything: bool) -> dict[str, Any]:
    """The part of a shard's JSON that all nodes need."""
    names = ("warm", "weight", "moving", *COUNTERS, *EXCHANGE_COUNTERS, *(["extra"] if everything else []))
    groups = {"groups": dict(metadata["base"]["dict"])["param_groups"]} if everything else {}
    return {name: metadata[name] for name in names} | groups


def _report(name: str, found: Visible, trained: Trained) -> None:
    """Rank 0 logs how the checkpoint was used."""
    fresh = "; corrections start at 0" if trained.method.spec.tracks else ""
    without = [str(rank) for rank, seen in enumerate(found.seen) if not seen]
    lost = f"; rank {', '.join(without)}, which has no shard, starts without an optimiser's state" if without else ""
    words = "%s: written by %d nodes, %d run: models are averaged, each optimiser's state is that of one node%s%s"
    _log.warning(words, name, found.nodes, len(found.seen), fresh, lost)


# -- one node's share --------------------------------------------------------------------------------------------------


def _take_own(trained: Trained, metadata: dict[str, Any], file: Any, as_it_was: bool) -> None:
    """Loads what has no mean: the wrapped optimiser's state, counters among the buffers, and the generator's state.

    Only the node of the same rank loads the generator's state: two nodes with the same state would draw equal numbers.
    """
    for name, buffer in trained.buffers.all.items():
        buffer.copy_(file.get_tensor(f"buffer.{name}"))
    if as_it_was:
        torch.set_rng_state(file.get_tensor("rng"))
    trained.base.load_state_dict(unpack(metadata["base"], file.get_tensor))


def _take_groups(trained: Trained, groups: list[Any]) -> None:
    """Loads lr and other options, as a scheduler may have left them; those that are tensors do not change."""
    for group, saved in zip(trained.base.param_groups, unpack(groups, lambda name: torch.empty(0)), strict=True):
        del saved["params"]
        group.update({name: value for name, value in saved.items() if not isinstance(value, Tensor)})


def _take_means(
    membership: Membership, trained: Trained, files: dict[int, Any], weights: list[float], moving: list[str] | None
) -> None:
    """Loads the mean of the models and of the method's and the model's other variables. Corrections and sums are 0.

    An idle worker's copy of a server variable has the same weight as in the averaged model: it may be outdated.
    """
    equal, top = [1.0] * len(weights), max(weights)
    held = [weight / top for weight in weights] if top else equal  # 1 if all weights are equal: nothing is rounded
    spec = trained.method.spec
    zero = {f"state.{kept.name}" for kept in spec.state if kept.zero_sum} | {"first", "total"}

    def mean(name: str, like: Tensor, shares: list[float]) -> Iterator[tuple[slice, Tensor]]:
        """Summed in float64, piece by piece."""
        for part in slices_of(like.numel(), PIECE):
            total = torch.zeros(part.stop - part.start, dtype=torch.float64, device=like.device)
            for shard, file in files.items():
                saved = file.get_slice(name)[part] if like.dim() == 1 else file.get_tensor(name).reshape(-1)[part]
                total.add_(saved.to(total), alpha=shares[shard])
            yield part, membership.sum(total).div_(sum(shares))

    for number, bucket in enumerate(trained.buckets):
        for name, buffer in bucket.tensors.items():  # x is the first
            if name == "state.x":
                buffer.copy_(bucket.x)
            elif name in zero:
                buffer.zero_()
            elif name == "x" or not spec.invariant:
                at_server = name == "x" or name.removeprefix("state.") in spec.server_fields
                for part, value in mean(f"bucket.{number}.{name}", buffer, held if at_server else equal):
                    buffer[part] = value
        if spec.invariant:
            _begin_anew(trained, bucket)
    if trained.buffers.policy != "none":
        buffers = trained.buffers.all
        for name in trained.buffers.moving or () if moving is None else moving:
            parts = [value for _, value in mean(f"buffer.{name}", buffers[name], held)]
            if parts:
                buffers[name].copy_(torch.cat(parts).view(buffers[name].shape))


def _begin_anew(trained: Trained, bucket: Bucket) -> None:
    """Sets the initial state: what is conserved may depend on the number of nodes, such as Scaffold⁺'s n/s."""
    for part in slices_of(bucket.size, PIECE):
        for name, value in trained.method.init(wide(bucket.x[part])).items():
            if name != "x":
                bucket.state[name][part] = value
