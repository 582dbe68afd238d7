"""Parameters as flat buckets: the computations of a round then use long vectors instead of many small tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

ALIGN = 16  # elements; the start of each parameter is a multiple of it, so that it begins a cache line
PIECE = 1 << 17  # elements that several operations process in turn: they stay in the cache in between
IN_FLIGHT = 2  # payloads that are on the wire while one is merged
RING = IN_FLIGHT + 2  # payloads until a buffer is reused: on the wire, arrived, and waiting for a mean


def wide(vector: Tensor) -> Tensor:
    """The vector, in float32 if its precision is lower: sums over steps and nodes would be lost to rounding."""
    return vector.float() if is_reduced(vector) else vector


def is_reduced(vector: Tensor) -> bool:
    """Is its precision lower than that of float32?"""
    return vector.dtype.itemsize < 4


class Slot:
    """The place of one parameter in its bucket."""

    def __init__(self, parameter: Tensor, offset: int, name: str = ""):
        self.parameter, self.offset, self.size, self.name = parameter, offset, parameter.numel(), name
        self.shape, self.strides = parameter.size(), _dense_strides(parameter)
        self.cuts: list[int] = []  # the lengths of its pieces in the bucket's segments

    def of(self, flat: Tensor) -> Tensor:
        """Its part of a buffer of the bucket's length."""
        return flat[self.offset : self.offset + self.size]

    def gradient(self) -> Tensor | None:
        """The parameter's gradient as a vector in the order of the flat buffer; None if there is none.

        It is a view of the gradient itself, unless the gradient has another memory order.
        """
        found = self.parameter.grad
        if found is None:
            return None
        if found.is_sparse:
            raise ValueError("a parameter has a sparse gradient: make the embedding with sparse=False.")
        strides = found.stride()
        if strides != self.strides and any(
            a != b for a, b, size in zip(strides, self.strides, self.shape, strict=True) if size > 1
        ):
            ordered = torch.empty_strided(self.shape, self.strides, dtype=found.dtype, device=found.device)
            self.parameter.grad = found = ordered.copy_(found)
        return found.as_strided((self.size,), (1,))


class Bucket:
    """The parameters of one parameter group that share a dtype and a device, as one flat vector `x`.

    Each parameter becomes a view of it with unchanged strides, so that channels_last weights stay channels_last.
    """

    def __init__(self, group: int, parameters: list[Tensor], names: Mapping[Tensor, str]):
        self.group = group
        self.slots: list[Slot] = []
        size = 0
        for parameter in parameters:
            self.slots.append(Slot(parameter, size, names.get(parameter, "")))
            size += -(-parameter.numel() // ALIGN) * ALIGN
        self.size = size
        first = parameters[0]
        self.x = torch.zeros(size, dtype=first.dtype, device=first.device)
        for slot in self.slots:
            # The same memory, but its own storage: Accelerate treats parameters that share a storage as tied, and saves
            # only the first.
            view = torch.as_strided(torch.from_dlpack(slot.of(self.x)), slot.shape, slot.strides)
            view.copy_(slot.parameter.detach())
            slot.parameter.data = view
        self.state: dict[str, Tensor] = {}  # the algorithm's variables by name; "x" is the round's start if it is kept
        self.first: Tensor | None = None  # the round's first gradient
        self.final: Tensor | None = None  # the last gradient with its weight decay, if the method reads it
        self.decay = 0.0  # the weight decay of the last step, if it is applied here
        self.total: Tensor | None = None  # the sum of the round's corrected gradients
        self.lr_sum = 0.0  # the sum of the round's stepsizes

    def check(self) -> None:
        """A ValueError if a parameter is no longer a trained view of the bucket."""
        base, size = self.x.data_ptr(), self.x.element_size()
        for slot in self.slots:
            if slot.parameter.data_ptr() != base + size * slot.offset:
                raise ValueError("a parameter was moved or converted: call model.to(…) before DistributedOptimizer.")
            if not slot.parameter.requires_grad:
                raise ValueError("a parameter was frozen later: freeze it before DistributedOptimizer, or set lr=0.")

    def segments(self, length: int) -> list[tuple[slice, list[slice]]]:
        """Parts of at most `length` elements, and the parameters' places in each; `gradients` splits there too."""
        found = []
        for slot in self.slots:
            slot.cuts = []
        for part in slices_of(self.size, length):
            places = []
            for slot in self.slots:
                low, high = max(part.start, slot.offset), min(part.stop, slot.offset + slot.size)
                if low < high:
                    slot.cuts.append(high - low)
                    places.append(slice(low - part.start, high - part.start))
            found.append((part, places))
        return found

    def gradients(self) -> list[Tensor | None]:
        """All gradients in the order of the bucket, split like `segments`; None for a parameter without a gradient."""
        found: list[Tensor | None] = []
        for slot in self.slots:
            gradient = slot.gradient()
            if gradient is None:
                found += [None] * len(slot.cuts)
            else:
                found += gradient.split(slot.cuts) if len(slot.cuts) > 1 else (gradient,)
        return found

    def present(self, part: slice) -> Iterator[tuple[slice, Tensor]]:
        """The gradients that exist in a part of the bucket, and their places in it."""
        for slot in self.slots:
            low, high = max(part.start, slot.offset), min(part.stop, slot.offset + slot.size)
            gradient = slot.gradient() if low < high else None
            if gradient is not None:
                yield slice(low - part.start, high - part.start), gradient[low - slot.offset : high - slot.offset]

    def last(self, part: slice) -> Tensor:
        """The last gradient in a part of the bucket, collected from the parameters; 0 for a parameter without one."""
        found = torch.zeros_like(wide(self.x[part]))
        for where, gradient in self.present(part):
            found[where] = gradient
        return found

    def keep_last(self) -> None:
        """Copies the gradients, with the weight decay of the current model, before a step changes the model."""
        if self.final is None:
            self.final = torch.zeros_like(wide(self.x))
        every = slice(0, self.size)
        self.final.zero_()
        for where, gradient in self.present(every):
            self.final[where] = gradient
            self.final[where].add_(self.x[where], alpha=self.decay)

    @property
    def tensors(self) -> dict[str, Tensor]:
        """All vectors that the next step depends on, by name."""
        kept = {"x": self.x, "first": self.first, "total": self.total}
        state = {f"state.{name}": value for name, value in self.state.items() if value is not self.x}
        return {name: value for name, value in kept.items() if value is not None} | state

    def layout(self) -> list[Any]:
        """What must be equal in another process that exchanges or loads this bucket."""
        slots = [[list(slot.shape), list(slot.strides)] for slot in self.slots]
        return [self.group, str(self.x.dtype), slots]


def parameter_names(groups: list[dict[str, Any]], model: nn.Module | None) -> dict[Tensor, str]:
    """All parameters of an optimiser and its model, by name. Parameters outside the model are named by their number."""
    everyone = [parameter for group in groups for parameter in group["params"]]
    names: dict[Tensor, str] = {parameter: f"parameter {number}" for number, parameter in enumerate(everyone)}
    for name, parameter in () if model is None else model.named_parameters():
        names[parameter] = name
    return names


def make_buckets(groups: list[dict[str, Any]], names: Mapping[Tensor, str] | None = None) -> list[Bucket]:
    """The buckets of an optimiser's parameter groups, in a fixed order."""
    buckets: list[Bucket] = []
    for number, group in enumerate(groups):
        kinds: dict[tuple[torch.dtype, torch.device], list[Tensor]] = {}
        for parameter in group["params"]:
            if not parameter.is_floating_point():
                raise ValueError(f"a parameter has dtype {parameter.dtype}: only real floating-point ones are trained.")
            if parameter.numel() and parameter.requires_grad:
                kinds.setdefault((parameter.dtype, parameter.device), []).append(parameter)
        buckets += [Bucket(number, parameters, names or {}) for parameters in kinds.values()]
    if not buckets:
        raise ValueError("the optimiser has no parameters to train: give it model.parameters().")
    return buckets


def slices_of(size: int, length: int) -> Iterator[slice]:
    """[0, size) in parts of at most `length`."""
    return (slice(low, min(low + length, size)) for low in range(0, size, length))


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides if it fills its memory in some order, else contiguous strides."""
    order = sorted(range(tensor.dim()), key=lambda axis: -tensor.stride(axis))
    if tensor.permute(order).is_contiguous():
        return tensor.stride()
    return torch.empty(tensor.size(), device="meta").stride()
