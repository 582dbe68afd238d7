"""Random orders of the public calls on two ranks: each ends within the time-out, with a right result or a sentence."""

import copy
import json
import re
import time
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from nodes import stop
from scenarios_use import P, data
from walk import RATE, TAU

LOCAL = ("step", "end_round")
TOGETHER = ("evaluate", "averaged", "metrics", "save", "load")


def drawn(seed: int) -> list[list[str]]:
    """The calls of each rank: mostly steps, some of them by one rank alone."""
    rng = np.random.default_rng(seed)
    alone = rng.choice([0.0, 0.05, 0.2])
    calls: list[list[str]] = [[], []]
    for _ in range(int(rng.integers(6, 26))):
        call = str(rng.choice(["step"] * 8 + ["end_round", *TOGETHER]))
        if rng.random() < alone:
            calls[int(rng.integers(2))].append(call)
        else:
            calls[0].append(call)
            calls[1].append(call)
    return calls


class Simulated:
    """ST-GT of two nodes with W = J, call by call, each in its own order as far as it can go."""

    def __init__(self):
        self.x, self.c = np.zeros((2, P)), np.zeros((2, P))
        self.start, self.taken, self.steps = np.zeros((2, P)), [0, 0], [0, 0]
        self.saved = None

    def ends(self, calls: list[list[str]]) -> list[str]:
        """How each rank ends: "well", "mistake" (a ValueError of its own) or "stuck"."""
        at, ends, waits = [0, 0], ["", ""], ["", ""]
        while True:
            for rank in (0, 1):
                while not ends[rank] and not waits[rank]:
                    if at[rank] == len(calls[rank]):
                        ends[rank] = "well"
                        continue
                    call = calls[rank][at[rank]]
                    at[rank] += 1
                    if call in TOGETHER:
                        waits[rank] = call
                    elif call == "end_round":
                        if self.taken[rank] == 0:
                            ends[rank] = "mistake"
                        else:
                            waits[rank] = "exchange"
                    else:
                        self.step(rank)
                        waits[rank] = "exchange" if self.taken[rank] == TAU else ""
            if all(ends):
                return ends
            if any(ends) or waits[0] != waits[1]:
                return [end or "stuck" for end in ends]
            self.together(waits[0])
            waits = ["", ""]

    def step(self, rank: int) -> None:
        a, b = (value.numpy() for value in data(rank))
        self.x[rank] -= RATE * (a * self.x[rank] - b + self.c[rank])
        self.taken[rank] += 1

    def together(self, call: str) -> None:
        if call == "exchange":
            z = (self.start - self.x) / (RATE * np.array(self.taken)[:, None])
            self.x[:], self.c = self.x.mean(axis=0), self.c - z + z.mean(axis=0)
            self.start, self.taken = self.x.copy(), [0, 0]
        elif call == "save":
            self.saved = copy.deepcopy((self.x, self.c, self.start, self.taken))
        elif call == "load" and self.saved:
            self.x, self.c, self.start, self.taken = copy.deepcopy(self.saved)


class Walk:
    """One of them, and how it has to end."""

    def __init__(self, seed: int):
        self.seed, self.calls, self.world = seed, drawn(seed), Simulated()
        self.ends = self.world.ends(self.calls)

    @property
    def alone(self) -> bool:
        """Each rank has to come to its own end before it hears of the other's mistake: both need a core."""
        return "mistake" in self.ends and "stuck" not in self.ends

    def start(self, forker, folder: Path) -> None:
        folder = folder / str(self.seed)
        self.nodes = forker.start(folder, 2, "walk", str(folder), *map(json.dumps, self.calls))
        self.began = time.monotonic()

    def ended(self) -> bool:
        assert time.monotonic() - self.began < 40, (self.seed, self.calls)
        return None not in [node.poll() for node in self.nodes]

    def check(self) -> None:
        known = (self.seed, self.calls)
        for rank, (node, end) in enumerate(zip(self.nodes, self.ends, strict=True)):
            (said,) = [line for line in node.lines if line.startswith("ended: ")]
            if end == "well":
                assert node.exit_code == 0, (*known, node.lines)
                found = json.loads(said.removeprefix("ended: well "))
                np.testing.assert_allclose(found, self.world.x[rank], rtol=1e-9, atol=1e-12, err_msg=str(known))
            else:
                assert node.exit_code == (1 if end == "mistake" else 3), (*known, node.lines)
                kind = "ValueError: " if end == "mistake" else "(LostNodeError|DeadlockError): .*rank "
                assert re.match(f"ended: {kind}", said), (*known, said)


def check(forker, folder: Path, seeds: Iterable[int]) -> None:
    """Several at once, as those that get stuck wait for most of their time."""
    walks = [Walk(seed) for seed in seeds]
    make(forker, folder, [walk for walk in walks if not walk.alone], at_once=4)
    make(forker, folder, [walk for walk in walks if walk.alone], at_once=1)


def make(forker, folder: Path, walks: list[Walk], at_once: int) -> None:
    running: list[Walk] = []
    try:
        while walks or running:
            while walks and len(running) < at_once:
                walks[-1].start(forker, folder)
                running.append(walks.pop())
            for walk in [one for one in running if one.ended()]:
                walk.check()
                running.remove(walk)
            time.sleep(0.02)
    finally:
        for walk in running:
            stop(walk.nodes)


def test_random_orders_of_calls(forker, tmp_path):
    check(forker, tmp_path, range(5))


@pytest.mark.thorough
@pytest.mark.parametrize("first", range(5, 200, 39))
def test_many_random_orders_of_calls(forker, tmp_path, first):
    check(forker, tmp_path, range(first, first + 39))
