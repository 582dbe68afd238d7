"""A model's buffers: BatchNorm's statistics, masks and others."""

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
    """The model's floating-point buffers. They are mixed like its parameters, or not at all.

    "average" mixes them at the end of every round along the same edges as the model. With "local" each node keeps its
    own, and the averaged model is evaluated with their mean; with "none" it is evaluated with each node's own. Counters
    and other integers are never mixed. Nor are constants: buffers that were not finite at the start, such as a mask
    with −inf, and those that no node has changed in the first round, unless they are normalisation statistics.
    """

    exact = True  # statistics may exceed the range of float16

    def __init__(self, model: nn.Module | None, policy: str):
        self.model = model
        self.policy = check_choice(policy, "buffers", POLICIES)
        self.moving: list[str] | None = None  # names of the buffers that are not constants; None before the start
        self._initial: dict[str, Tensor] | None = None  # possible constants, with their values at the start
        self._constants: dict[str, tuple[Tensor, int]] = {}  # constants, and torch's counter of writes to each

    @property
    def all(self) -> dict[str, Tensor]:
        """The buffers by name. They are looked up each time, because a module may replace a buffer's tensor."""
        return {} if self.model is None else dict(self.model.named_buffers())

    @property
    def floating(self) -> dict[str, Tensor]:
        return {name: buffer for name, buffer in self.all.items() if buffer.is_floating_point()}

    @property
    def shared(self) -> dict[str, Tensor]:
        """The buffers that all nodes receive from rank 0 at the start."""
        return {} if self.policy == "none" else self.floating

    @property
    def mixed(self) -> dict[str, Tensor]:
        """The buffers that have a mean over the nodes."""
        if self.policy == "none" or self.moving is None:
            return {}
        found = self.floating
        return {name: found[name] for name in self.moving}

    @property
    def mixes(self) -> bool:
        """Are any buffers mixed at the end of a round?"""
        return self.policy == "average" and bool(self.moving)

    def layout(self) -> list[Any]:
        """What must be equal in another process."""
        return [self.policy, {name: list(buffer.shape) for name, buffer in self.all.items()}]

    def start(self, finds_constants: bool = True) -> None:
        """Called when all nodes have the same buffers: finds those that may be constants.

        If the members may change, it does not look for constants: the mixture of equal buffers is equal to them.
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
        """The names in `moving`, once the nodes have agreed on them; None before the end of the first round."""
        return self.moving if self._initial is None else None

    def restore(self, agreed: list[str] | None) -> None:
        """Restores what the nodes had agreed on when the loaded state was saved."""
        if agreed is not None:
            self.moving, self._initial = agreed, None
        elif self._initial is not None:
            self._initial = {name: self.all[name].clone() for name in self._initial}
        self.reset_constants()

    def reset_constants(self) -> None:
        """Takes the current values of the constants: earlier writes do not count as changes."""
        constants = {name: one for name, one in self.shared.items() if name not in (self.moving or ())}
        self._constants = {name: (one, one._version) for name, one in constants.items()}

    def check_constants(self, membership: Membership) -> None:
        """At the end of the first round the nodes agree on what has changed at any of them; later, logs new changes."""
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
            _log.warning("buffer %s was a constant in the first round and changes now: it will not be mixed", name)

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
