"""How far a job is. Standard library only."""

from __future__ import annotations

from collections.abc import Callable, Iterable

Progress = Callable[[float, float], None]  # (done, total)


def split_progress(progress: Progress | None, weights: Iterable[float]) -> list[Progress]:
    """A callback for each part of a job, which together count up to the sum of the weights, whatever their order."""
    weights = list(weights)
    done = [0.0] * len(weights)

    def part(number: int) -> Progress:
        def tick(finished: float, total: float) -> None:
            done[number] = weights[number] * finished / total
            if progress is not None:
                progress(sum(done), sum(weights))

        return tick

    return [part(number) for number in range(len(weights))]
