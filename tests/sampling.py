"""Which of a test's cases `make test` runs, and which of the release's tests CI runs this time."""

import zlib
from collections.abc import Hashable
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    name: str
    group: Hashable  # of every group one case is run
    one_in: int | None = None  # and of all about this many


def choose(cases: list[Case]) -> list[bool]:
    """A case's place is a hash of its name, so that a new case moves none of another group.

    The lowest of each group is run, and those that `one_in` divides.
    """
    places = [zlib.crc32(case.name.encode()) for case in cases]
    lowest = {}
    for case, place in zip(cases, places, strict=True):
        lowest[case.group] = min(place, lowest.get(case.group, place))
    return [
        place == lowest[case.group] or (case.one_in is not None and place % case.one_in == 0)
        for case, place in zip(cases, places, strict=True)
    ]


def share(files: list[str], which: str) -> set[str]:
    """Of some files, those of the share "K/N": every Nth in the order of their names, from K on, modulo N."""
    k, n = map(int, which.split("/"))
    return set(sorted(set(files))[k % n :: n])
