"""What a model keeps beside its parameters: BatchNorm's statistics, masks and other buffers."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stgt._internal.checks import check_choice
from stgt.torch.buckets import wide
from stgt.torch.membership import Membership

POLICIES = ("average", "local", "none")
_log = logging.getLogger("stgt")


class Buffers:
    """The model's floating-point buffers, mixed as its parameters are, or left alone.

    "average" mixes them at every round's end along the same edges as the model; "local" leaves each node its own, and
    the averaged model is evaluated with their mean; with "none" it is evaluated with each node's own. Counters and
    other integers stay with their node. So do constants: what no node has written to in the first round, unless it is
    a normalisation's statistic, and what is not finite at the start, such as a mask with −inf.
    """

    exact = True  # statistics may be larger than float16 can hold

    def __init__(self, model: nn.Module | None, policy: str):
        self.model = model
        self.policy = check_choice(policy, "buffers", POLICIES)
        self.moving: list[str] | None = None  # names of those that are no constants; None before the start
        self._initial: dict[str, Tensor] | None = None  # candidates for constants, as they were at the start
        self._constants: dict[str, tuple[Tensor, int]] = {}  # constants, and torch's counter of writes to each

    @property
    def all(self) -> dict[str, Tensor]:
        """The buffers by name; looked up each time, as a module may put another tensor in a buffer's place."""
        return {} if self.model is None else dict(self.model.named_buffers())

    @property
    def floating(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.all.items() if buffer.is_floating_point()}

    @property
    def shared(self) -> dict[str, Tensor]:
        """Those that all nodes start with from rank 0."""
        return {} if self.policy == "none" else self.floating

    @property
    def mixed(self) -> dict[str, Tensor]:
        """Those of which there is a mean over the nodes."""
        if self.policy == "none" or self.moving is None:
            return {}
        found = self.floating
        return {name: found[name] for name in self.moving}

    @property
    def mixes(self) -> bool:
        """Are some mixed at a round's end?"""
        return self.policy == "average" and bool(self.moving)

    def layout(self) -> list[Any]:
        """What another process must agree on."""
        return [self.policy, {name: list(buffer.shape) for name, buffer in self.all.items()}]

    def start(self, finds_constants: bool = True) -> None:
        """Called when all nodes have the same buffers: finds those that may turn out to be constants.

        Where the nodes may change they do not look for any: a mixture of equal buffers is what they are.
        """
        assert self.model is not None or not self.all
        modules = [] if self.model is None else list(self.model.named_modules())
        statistics = {
            f"{place}.{name}" if place else name
            for place, module in modules
            if isinstance(module, _NormBase)
            for name, _ in module.named_buffers(recurse=False)
        }
        usable = {name: buffer for name, buffer in self.shared.items() if bool(buffer.isfinite().all())}
        if not finds_constants:
            self.restore(list(usable))
            return
        self.moving = [name for name in usable if name in statistics]
        self._initial = {name: buffer.clone() for name, buffer in usable.items() if name not in statistics} or None
        self.reset_constants()

    @property
    def agreed(self) -> list[str] | None:
        """The names in `moving` once the nodes have agreed on them; None before the first round's end."""
        return self.moving if self._initial is None else None

    def restore(self, agreed: list[str] | None) -> None:
        """Takes over what had been agreed on when a state was saved that is loaded now."""
        if agreed is not None:
            self.moving, self._initial = agreed, None
        elif self._initial is not None:
            self._initial = {name: self.all[name].clone() for name in self._initial}
        self.reset_constants()

    def reset_constants(self) -> None:
        """Takes the constants as they are now: earlier writes do not count as changes."""
        constants = {name: one for name, one in self.shared.items() if name not in (self.moving or ())}
        self._constants = {name: (one, one._version) for name, one in constants.items()}

    def check_constants(self, membership: Membership) -> None:
        """At the first round's end all nodes agree on what has changed at one of them; later, logs new changes."""
        now = self.all if self._constants else {}
        written = [
            name for name, (one, version) in self._constants.items()
            if now[name] is not one or one._version != version
        ]  # fmt: skip
        if self._initial is not None:
            kept = self._initial
            changed = [name for name in written if name in kept and not now[name].equal(kept[name])]
            everywhere = membership.barrier("the end of the first round", changed)
            changing = {name for names in everywhere for name in names} | set(self.moving or ())
            self.moving = [name for name in self.shared if name in changing]
            self._initial = None
            self.reset_constants()
            return
        for name in written:
            del self._constants[name]
            _log.warning("buffer %s was a constant in the first round and changes now: it stays each node's own", name)

    def flat(self, buffers: Mapping[str, Tensor]) -> Tensor:
        """A copy of some buffers as one vector."""
        return torch.cat([wide(buffer.detach().reshape(-1)) for buffer in buffers.values()])

    def put(self, buffers: Mapping[str, Tensor], flat: Tensor) -> None:
        """Writes such a vector back."""
        offset = 0
        for buffer in buffers.values():
            buffer.copy_(flat[offset : offset + buffer.numel()].view(buffer.shape))
            offset += buffer.numel()

    # -- as a payload of the exchange ----------------------------------------------------------------------------

    def message(self) -> Mapping[str, Tensor]:
        return {"x": self.flat(self.mixed)}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        self.put(self.mixed, mixed["x"])
