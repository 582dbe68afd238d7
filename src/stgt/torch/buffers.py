"""What a model keeps beside its parameters: BatchNorm's statistics and other buffers."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from stgt.checks import check_choice

POLICIES = ("average", "local", "none")


def find_model(parameters: Iterable[Tensor]) -> nn.Module | None:
    """The smallest living module that holds all of the parameters; None if there is none."""
    wanted = {id(parameter) for parameter in parameters}
    found: nn.Module | None = None
    fewest = 0
    for one in gc.get_objects():
        if not issubclass(type(one), nn.Module) or "_parameters" not in vars(one):
            continue
        held = {id(parameter) for parameter in one.parameters()}
        size = sum(1 for _ in one.modules())
        if wanted <= held and (found is None or (len(held), size) < (fewest, sum(1 for _ in found.modules()))):
            found, fewest = one, len(held)
    return found


class Buffers:
    """The model's floating-point buffers, mixed as its parameters are, or left alone.

    "average" mixes them at every round's end along the same edges as the model; "local" leaves each node its own, and
    the averaged model is evaluated with their mean; with "none" it is evaluated with each node's own. Counters and
    other integers stay with their node.
    """

    exact = True  # statistics may be larger than float16 can say

    def __init__(self, model: nn.Module | None, policy: str):
        self.model = model
        self.policy = check_choice(policy, "buffers", POLICIES)
        self.mixes = self.policy == "average" and bool(self.floating)

    @property
    def all(self) -> dict[str, Tensor]:
        """The buffers by name; looked up each time, as a module may put another tensor in a buffer's place."""
        return {} if self.model is None else dict(self.model.named_buffers())

    @property
    def floating(self) -> list[Tensor]:
        return [buffer for buffer in self.all.values() if buffer.is_floating_point()]

    def layout(self) -> list[Any]:
        """What another process must agree on."""
        return [self.policy, {name: list(buffer.shape) for name, buffer in self.all.items()}]

    def flat(self) -> Tensor:
        """A copy of all floating-point buffers as one vector."""
        return torch.cat([buffer.detach().reshape(-1) for buffer in self.floating])

    def put(self, flat: Tensor) -> None:
        """Writes such a vector back."""
        offset = 0
        for buffer in self.floating:
            buffer.copy_(flat[offset : offset + buffer.numel()].view(buffer.shape))
            offset += buffer.numel()

    # -- as a part of the exchange: it takes the model's way -----------------------------------------------------

    def message(self) -> Mapping[str, Tensor]:
        return {"x": self.flat()}

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        self.put(mixed["x"])
