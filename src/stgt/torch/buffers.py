"""What a model keeps beside its parameters: BatchNorm's statistics, masks and other buffers."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from stgt._internal.checks import check_choice
from stgt.torch.flat import wide

POLICIES = ("average", "local", "none")
_log = logging.getLogger("stgt")


class Buffers:
    """The model's floating-point buffers, mixed as its parameters are, or left alone.

    "average" mixes them at every round's end along the same edges as the model; "local" leaves each node its own, and
    the averaged model is evaluated with their mean; with "none" it is evaluated with each node's own. Counters and
    other integers stay with their node. So do constants: what no node has written to in the first round, unless it is
    a normalisation's statistic, and what is not finite at the start, such as a mask with −inf.
    """

    exact = True  # statistics may be larger than float16 can say

    def __init__(self, model: nn.Module | None, policy: str):
        self.model = model
        self.policy = check_choice(policy, "buffers", POLICIES)
        self.moving: list[str] | None = None  # the names of those that are no constants; None before that is known
        self._first: dict[str, Tensor] | None = None  # what may be a constant, as it was at the start
        self._still: dict[str, tuple[Tensor, int]] = {}  # by name: a constant, and its version

    @property
    def all(self) -> dict[str, Tensor]:
        """The buffers by name; looked up each time, as a module may put another tensor in a buffer's place."""
        return {} if self.model is None else dict(self.model.named_buffers())

    @property
    def floating(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.all.items() if buffer.is_floating_point()}

    @property
    def shared(self) -> dict[str, Tensor]:
        """Those in which all nodes start from rank 0's."""
        return {} if self.policy == "none" else self.floating

    @property
    def mixed(self) -> dict[str, Tensor]:
        """Those whose mean over the nodes means something."""
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

    def start(self) -> None:
        """The nodes have the same ones now: looks which of them may turn out to be constants."""
        assert self.model is not None or not self.all
        modules = [] if self.model is None else list(self.model.named_modules())
        statistics = {
            f"{place}.{name}" if place else name
            for place, module in modules
            if isinstance(module, _NormBase)
            for name, _ in module.named_buffers(recurse=False)
        }
        usable = {name: buffer for name, buffer in self.shared.items() if bool(buffer.isfinite().all())}
        self.moving = [name for name in usable if name in statistics]
        self._first = {name: buffer.clone() for name, buffer in usable.items() if name not in statistics} or None
        self.look_away()

    @property
    def agreed(self) -> list[str] | None:
        """Those that the nodes have agreed on; None before the first round's end."""
        return self.moving if self._first is None else None

    def agree_again(self, agreed: list[str] | None) -> None:
        """A state was loaded, with what had been agreed on then."""
        if agreed is not None:
            self.moving, self._first = agreed, None
        elif self._first is not None:
            self._first = {name: self.all[name].clone() for name in self._first}
        self.look_away()

    def look_away(self) -> None:
        """What was written to the constants so far is no change."""
        names = [name for name in self.shared if name not in (self.moving or ())]
        self._still = {name: (self.all[name], self.all[name]._version) for name in names}

    def settle(self, agree: Callable[[list[str]], list[list[str]]]) -> None:
        """The first round ends: all nodes agree on what has changed at one of them. Later, says what changes since."""
        written = [name for name, was in self._still.items() if not _untouched(self.all[name], was)]
        if self._first is not None:
            changed = [name for name in written if name in self._first and not self.all[name].equal(self._first[name])]
            known = {name for names in agree(changed) for name in names} | set(self.moving or ())
            self.moving = [name for name in self.shared if name in known]
            self._first = None
            self.look_away()
            return
        for name in written:
            del self._still[name]
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

    # -- as a part of the exchange: it takes the model's way -----------------------------------------------------

    def message(self) -> Mapping[str, Tensor]:
        return {"x": self.flat(self.mixed)}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        self.put(self.mixed, mixed["x"])


def _untouched(buffer: Tensor, was: tuple[Tensor, int]) -> bool:
    return buffer is was[0] and buffer._version == was[1]
