"""Changes of a run's members: nodes that join, leave, crash or pause, and when; and late repairs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stgt._internal.checks import InputError, check_count, check_number, check_seed, first_repeated, under
from stgt._internal.hyper import Frozen


@dataclass(frozen=True)
class Change(Frozen):
    """Base of the changes. A change happens before the local steps of its round; several in one round, in their order.

    Attributes:
        round: from 0.
        nodes: their numbers in the problem; a single number is one node.
    """

    round: int
    nodes: tuple[int, ...]

    def __post_init__(self) -> None:
        given: Any = self.nodes
        nodes = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str) else (given,)
        nodes = tuple(check_count(node, ("nodes", i), 0) for i, node in enumerate(nodes))
        if not nodes:
            raise InputError("nodes", hint=" is empty: give at least one node.")
        again = first_repeated(nodes)
        if again is not None:
            raise InputError("nodes", hint=f" has {again} more than once: give each node once.")
        self._set(round=check_count(self.round, "round", 0), nodes=nodes)


@dataclass(frozen=True)
class Join(Change):
    """Nodes become members. Zero-sum variables start at 0, models and all other variables at the members' mean."""


@dataclass(frozen=True)
class Leave(Change):
    """Members leave in an orderly way: each of the |V| members that stay receives 1/|V| of their zero-sum variables."""


@dataclass(frozen=True)
class Crash(Change):
    """Members disappear with all their variables. The members that stay repair the sum, if the run has a repair."""


@dataclass(frozen=True)
class Pause(Change):
    """Members pause for some rounds. They neither compute nor mix and keep their variables; they stay members.

    `[Pause(r, node, 9) for r in range(1, rounds, 10)]` is a node that takes part only in every tenth round.

    Attributes:
        rounds: the number of rounds that they miss.
    """

    rounds: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(rounds=check_count(self.rounds, "rounds"))


@dataclass(frozen=True)
class Repair(Change):
    """The members repair the sum of each zero-sum variable, c_i ← c_i − (1/|V|) Σ_V c_j, some rounds after a crash.

    It is for runs with repair="none". With repair="projection" each crash is repaired at once.
    """

    nodes: tuple[int, ...] = field(default=(), init=False, repr=False)

    def __post_init__(self) -> None:
        self._set(round=check_count(self.round, "round", 0))


@dataclass(frozen=True)
class Segment:
    """Rounds first, …, last − 1, in which nothing changes.

    Attributes:
        first, last: see above.
        changes: those that happen before round `first`.
        members: the members after these changes, sorted.
        active: the members that do not pause.
    """

    first: int
    last: int
    changes: tuple[Change, ...]
    members: tuple[int, ...]
    active: tuple[int, ...]


def segments(n: int, members: Iterable[int], changes: Iterable[Change], rounds: int) -> list[Segment]:
    """The segments between changes; an InputError for the first change that is impossible."""
    given = list(changes)
    for i, change in enumerate(given):
        if type(change) not in (Join, Leave, Crash, Pause, Repair):
            raise InputError(("changes", i), change, "give a Join, Leave, Crash, Pause or Repair, such as Crash(9, 3).")
        with under("changes", i):
            check_count(change.round, "round", 0, rounds - 1)
            for k, node in enumerate(change.nodes):
                check_count(node, ("nodes", k), 0, n - 1)
    ends = {change.round + change.rounds for change in given if isinstance(change, Pause)}
    bounds = sorted({0, *(change.round for change in given), *(end for end in ends if end < rounds)})
    present, until, found = set(members), dict[int, int](), []
    for first, last in zip(bounds, [*bounds[1:], rounds], strict=True):
        now = [(i, change) for i, change in enumerate(given) if change.round == first]
        for i, change in now:
            with under("changes", i):
                _apply(change, present, until)
        here = tuple(sorted(present))
        active = tuple(node for node in here if until.get(node, 0) <= first)
        found.append(Segment(first, last, tuple(change for _, change in now), here, active))
    return found


def _apply(change: Change, present: set[int], until: dict[int, int]) -> None:
    """Updates the members, and until which round each node pauses."""
    for node in change.nodes:
        if isinstance(change, Join) and node in present:
            raise InputError("nodes", hint=f" has {node}, which is a member at round {change.round}: leave it out.")
        if not isinstance(change, Join) and node not in present:
            raise InputError("nodes", hint=f" has {node}, which is not a member at round {change.round}: leave it out.")
        if isinstance(change, Pause):
            until[node] = max(until.get(node, 0), change.round + change.rounds)
        else:
            until.pop(node, None)
            (present.add if isinstance(change, Join) else present.remove)(node)
    if not present:
        raise InputError("nodes", hint=f" are all members at round {change.round}: at least one must stay.")


def random_churn(
    n: int,
    rate: float,
    rounds: int,
    seed: int = 0,
    *,
    per: int = 100,
    crashes: float = 0.5,
    away: int = 10,
    least: int = 2,
) -> list[Change]:
    """Nodes drop out at random. Each is replaced after a while by a new node with the same number and the same data.

    In every round except the first each member drops out with probability rate/per, independently of all others. So of
    m members, rate · m drop out in `per` rounds on average.

    Args:
        n: number of nodes, all of which are members at first.
        rate: the expected share of the members that drop out in `per` rounds; it may be above 1.
        rounds: the number of rounds with churn. Give the run more rounds to see where it converges.
        seed: of the draws.
        per: see above.
        crashes: the probability that a node that drops out crashes; otherwise it leaves in an orderly way.
        away: the number of rounds until the new node joins.
        least: the least number of members; a node does not drop out if fewer would stay.

    Returns:
        The changes, for `simulate_churn(…, changes=…)`.

    Example:
        >>> from stgt.simulator import random_churn
        >>> random_churn(16, rate=0.0, rounds=100)
        []
    """
    n, rounds, per = check_count(n, "n"), check_count(rounds, "rounds"), check_count(per, "per")
    rate = check_number(rate, "rate", least=0, most=per)
    crashes = check_number(crashes, "crashes", least=0, most=1)
    away, least = check_count(away, "away"), check_count(least, "least", 1, n)
    rng = np.random.default_rng(check_seed(seed))
    present, back, found = set(range(n)), dict[int, list[int]](), list[Change]()
    for r in range(1, rounds):
        drawn, kind = rng.random((2, n))
        arriving = sorted(back.pop(r, []))
        lost = sorted((node for node in present if drawn[node] < rate / per), key=lambda node: drawn[node])
        lost = lost[: max(0, len(present) - least)]
        present |= set(arriving)
        present -= set(lost)
        if arriving:
            found.append(Join(r, tuple(arriving)))
        for change, nodes in (
            (Leave, [node for node in lost if kind[node] >= crashes]),
            (Crash, [node for node in lost if kind[node] < crashes]),
        ):
            if nodes:
                found.append(change(r, tuple(sorted(nodes))))
        if lost and r + away < rounds:
            back.setdefault(r + away, []).extend(lost)
    return found


def check_members(members: Sequence[int] | None, n: int) -> tuple[int, ...]:
    """The members at the start, sorted; all nodes by default."""
    if members is None:
        return tuple(range(n))
    if isinstance(members, str) or not isinstance(members, Iterable):
        raise InputError("members", members, "give a list of nodes.")
    found = [check_count(node, ("members", i), 0, n - 1) for i, node in enumerate(members)]
    again = first_repeated(found)
    if not found or again is not None:
        wrong = " is empty: give at least one node." if again is None else f" has {again} more than once."
        raise InputError("members", hint=wrong)
    return tuple(sorted(found))
