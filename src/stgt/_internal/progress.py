"""Progress of a job: callbacks, and a bar in the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

from stgt._internal.checks import InputError

Progress = Callable[[float, float], None]  # (done, total)


class Bar:
    """A bar with the remaining time; for a simulation also the speed and the error."""

    def __init__(self, bar: Any, words: str):
        self._bar, self._words = bar, words
        self._task = bar.add_task(words, total=None)

    def __call__(self, done: float, total: float) -> None:
        self._bar.update(self._task, completed=done, total=total)

    def describe(self, pace: float, latest: Mapping[str, float]) -> None:
        """Shows the speed (`pace`, in rounds a second) and the last error."""
        error = next((f", {name} {latest[name]:.3g}" for name in ("residual", "loss", *latest) if name in latest), "")
        self._bar.update(self._task, description=f"{self._words}: {pace:,.0f} rounds/s{error}")


class PartBar(Bar):
    """One of several bars; removed when its part is done. The first bar counts all parts."""

    def __init__(self, bar: Any, words: str, tick: Progress):
        super().__init__(bar, words)
        self._tick = tick

    def __call__(self, done: float, total: float) -> None:
        super().__call__(done, total)
        self._tick(done, total)
        if done >= total:
            self._bar.update(self._task, visible=False)


@contextmanager
def bars(words: str, weights: Iterable[float], console: Any = None) -> Iterator[Callable[[int, str], PartBar]]:
    """A bar for a whole job and, below it, a bar for each part in progress.

    Yields a function of (part number, label) that makes the bar of a part.
    """
    with _shown(console) as shown:
        ticks = split_progress(Bar(shown, words), weights)
        yield lambda number, label: PartBar(shown, f"  {label}", ticks[number])


@contextmanager
def bar(words: str, console: Any = None) -> Iterator[Bar]:
    """Shows a bar inside the `with` block; shows nothing without a terminal."""
    with _shown(console) as shown:
        yield Bar(shown, words)


@contextmanager
def _shown(console: Any) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as RichProgress

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    console = console or Console(markup=False, emoji=False, stderr=True)
    with RichProgress(*columns, console=console, transient=True, disable=not console.is_terminal) as shown:
        yield shown


@contextmanager
def as_progress(progress: Any, words: str) -> Iterator[Progress | None]:
    """Makes a callback of what was given as `progress`: a bar for True, a function unchanged."""
    if progress is True:
        with bar(words) as made:
            yield made
    elif progress is None or progress is False:
        yield None
    elif callable(progress):
        yield cast(Progress, progress)
    else:
        raise InputError("progress", progress, "give True, a function of (done, total), or leave it out.")


def split_progress(progress: Progress | None, weights: Iterable[float]) -> list[Progress]:
    """A callback for each part of a job, in any order. Together they count up to the sum of the weights."""
    weights = list(weights)
    done = [0.0] * len(weights)

    def part(number: int) -> Progress:
        def tick(finished: float, total: float) -> None:
            done[number] = weights[number] * finished / total
            if progress is not None:
                progress(sum(done), sum(weights))

        return tick

    return [part(number) for number in range(len(weights))]
