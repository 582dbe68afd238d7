"""What a method divides by must be the same at all nodes: neighbours compare the sums of a round's stepsizes."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

ROUNDING = 1e-6  # relative; an lr that is a float32 tensor at one node only is off by less


class SameRate:
    """A node's sum of stepsizes of each block, which goes ahead of the model on its way, and must be its neighbours'.

    Where nodes divide what mixing took from them, h − W h, by different numbers, Σ_i c_i is 0 no longer, and the method
    goes to a wrong point. Any number that all have is right.

    Args:
        travelled: the sums.
        rank, round: of whom, and when.
        why: who wants them to be the same, and the way out.
    """

    exact = True

    def __init__(self, travelled: Tensor, rank: int, round: int, why: str):
        self.travelled, self.rank, self.round, self.why = travelled, rank, round, why

    def message(self) -> Mapping[str, Tensor]:
        return {"x": self.travelled}

    def compare(self, peer: int, theirs: Tensor) -> None:
        """A ValueError if a neighbour has another sum."""
        for mine, other in zip(self.travelled.tolist(), theirs.tolist(), strict=True):
            if abs(mine - other) > ROUNDING * abs(mine):
                raise ValueError(
                    f"the stepsizes of round {self.round} sum up to {mine:.6g} at rank {self.rank} and to {other:.6g} "
                    f"at rank {peer}, as one has another lr or has ended the round early: {self.why}."
                )

    def merge(self, mixed: Mapping[str, Tensor], where: slice) -> None:
        """There is nothing to take over."""
