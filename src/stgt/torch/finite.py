"""Looking for what is not finite."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor


def is_finite(value: Tensor) -> bool:
    """Are all numbers finite? One pass: a sum tells, unless it overflows by itself."""
    kind = torch.float32 if value.element_size() < 4 else value.dtype
    return bool(value.sum(dtype=kind).isfinite()) or bool(value.isfinite().all())


def first_nonfinite(named: Iterable[tuple[str, Tensor]]) -> str:
    """The name of the first tensor that is not finite, and what it holds; "" if all are."""
    for name, value in named:
        if value.is_floating_point() and not is_finite(value):
            return f"{name} is not finite ({'NaN' if value.isnan().any() else 'infinite'})"
    return ""
