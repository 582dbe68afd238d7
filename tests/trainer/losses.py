"""What goes wrong at one of three nodes, where the others meet it, and how long it takes until all have ended.

python tests/trainer/losses.py [WORDS...]    the table of docs/training.md, of the cases whose names have all the words
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from itertools import product
from math import inf
from pathlib import Path

import torch
import torch.distributed as dist
from hosts import Hosts, hosts
from nodes import Forker, Node, free_port, node_environment, stop

import stgt
from stgt._internal import container
from stgt.torch import DistributedOptimizer, LostNodeError, init
from stgt.torch.failure_detector import PREFIX

NODES = 3
LATE = 10.0  # seconds after the time-out by which all have ended
AT_ONCE = 4  # cases: they wait for most of their time
PLACES = ("init", "step", "save")
ONE, THREE = "one host", "three hosts"
CUT = "cut off from all"
APART = "cut off from one"  # of those that keep no store
SPARE, NONE = "GLOO_SOCKET_IFNAME=spare", "GLOO_SOCKET_IFNAME=eth9"


# -- a node ------------------------------------------------------------------------------------------------------------


def main(place: str, victim: str, event: str, folder: str, timeout: str) -> None:
    """One of the nodes; the victim comes to the place, says so, waits for the event, and goes on if it can."""
    torch.set_num_threads(1)

    def here(at: str) -> None:
        if at == place and os.environ["RANK"] == victim:
            print("here", flush=True)
            end = time.monotonic() + 60
            while not Path(folder, "go").exists() and time.monotonic() < end:
                time.sleep(0.01)
            if event == "exception":
                raise KeyError("label 7 has no image")

    join, write = dist.init_process_group, container.write
    dist.init_process_group = lambda *given, **options: (here("init"), join(*given, **options))
    try:
        init(timeout=float(timeout))
        model = torch.nn.Linear(4, 2)
        sgd = torch.optim.SGD(model.parameters(), lr=0.1)
        opt = DistributedOptimizer(sgd, stgt.STGT(tau=2), "complete", model=model, chunk=4)
        while opt.round < 4:
            opt.zero_grad()
            model(torch.ones(1, 4)).sum().backward()
            opt.step()
            if opt.taken == 0 and opt.round == 2:
                opt.save(Path(folder, "checkpoints"))
                container.write = lambda *given, **options: (here("save"), write(*given, **options))
            if opt.round == 3 and opt.taken == 0:
                opt.save(Path(folder, "checkpoints"))
            if opt.round == 3 and opt.taken == 1:
                here("step")
    except LostNodeError as error:
        print(f"ended: {type(error).__name__}: {error}", flush=True)
        sys.exit(3)
    print("ended: well", flush=True)


# -- what happens to them ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Case:
    """What happens, where the victim is, in which network, and who is the victim."""

    event: str
    place: str
    network: str
    victim: int

    def __str__(self) -> str:
        return f"{self.event}, in {self.place}, {self.network}, {'the first' if self.victim == 0 else 'another'}"

    @property
    def sentence(self) -> str:
        """What the others say."""
        if self.event in (SPARE, NONE) or (self.event, self.place) == (APART, "init"):
            return "GLOO_SOCKET_IFNAME"
        return "between two of them cut" if self.event == APART else rf"rank {self.victim} (was lost|stopped)"


CASES = [
    *(Case(*one) for one in product(("kill -9", "SIGSTOP", "exception"), PLACES, (ONE, THREE), (0, NODES - 1))),
    *(Case(CUT, place, THREE, victim) for place, victim in product(PLACES, (0, NODES - 1))),
    *(Case(APART, place, THREE, NODES - 1) for place in ("init", "step")),
    *(Case(event, "init", THREE, victim) for event, victim in product((SPARE, NONE), (0, NODES - 1))),
]
SHARE = [Case("SIGSTOP", "step", ONE, 0), Case("exception", "init", ONE, 2), Case(CUT, "step", THREE, 0)]


OWN = r"rank \d (was lost|stopped)|KeyError|IFNAME|network between two"  # what a victim may say of itself


class Ends:
    """A case, and when and how each node ended; after SIGSTOP the victim's seconds are those since SIGCONT."""

    def __init__(self, forker: Forker, case: Case, folder: Path, timeout: float):
        self.case, self.folder, self.timeout = case, folder, timeout
        self.seconds = dict.fromkeys(range(NODES), inf)
        with hosts(NODES) if case.network == THREE else nullcontext() as net:
            self.nodes = [Node(forker, folder, one, "losses", *self.arguments) for one in self.environments(net)]
            try:
                self.happen(net)
            finally:
                stop(self.nodes)

    @property
    def arguments(self) -> list[str]:
        return [self.case.place, str(self.case.victim), self.case.event, str(self.folder), str(self.timeout)]

    def environments(self, net: Hosts | None) -> list[dict[str, str]]:
        port = free_port()
        found = [node_environment(rank, NODES, port) for rank in range(NODES)]
        for rank, one in enumerate(found) if net is not None else ():
            one |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "MASTER_ADDR": net.addresses[0]}
            one |= {"NETNS": net.names[rank], "GLOO_SOCKET_IFNAME": net.cables[rank]}
        for rank, one in enumerate(found):
            one["TORCHELASTIC_ERROR_FILE"] = str(self.error_file(rank))
        if self.case.event in (SPARE, NONE):
            found[self.case.victim]["GLOO_SOCKET_IFNAME"] = self.case.event.split("=")[1]
        return found

    def happen(self, net: Hosts | None) -> None:
        """The event, once the victim is there and the others wait for it; then all that can end have to."""
        victim = self.nodes[self.case.victim]
        if self.case.event != NONE:
            victim.wait_for("here", 60)
            time.sleep(0.5)
        if self.case.event == "kill -9":
            victim.kill()
        elif self.case.event == "SIGSTOP":
            os.kill(victim.number, signal.SIGSTOP)
        elif net is not None and self.case.event == CUT:
            net.unplug(self.case.victim)
        elif net is not None and self.case.event == APART:
            net.part(1, 2)
        (self.folder / "go").touch()
        gone = self.case.event in ("kill -9", "SIGSTOP")
        self.wait([rank for rank in range(NODES) if rank != self.case.victim or not gone])
        if self.case.event == "SIGSTOP":
            os.kill(victim.number, signal.SIGCONT)
            self.wait([self.case.victim])

    def wait(self, ranks: list[int]) -> None:
        began = time.monotonic()
        while ranks and time.monotonic() < began + self.timeout + 2 * LATE:
            for rank in [rank for rank in ranks if self.nodes[rank].poll() is not None]:
                self.seconds[rank] = time.monotonic() - began
                ranks.remove(rank)
            time.sleep(0.02)

    def faults(self) -> list[str]:
        """What is not as promised."""
        killed = self.case.victim if self.case.event == "kill -9" else None
        return [f"rank {rank} {fault}" for rank in range(NODES) if rank != killed for fault in self.faults_of(rank)]

    def faults_of(self, rank: int) -> Iterator[str]:
        node, victim = self.nodes[rank], rank == self.case.victim
        words = "\n".join(node.lines)
        if self.seconds[rank] > self.timeout + LATE:
            yield f"ended after {self.seconds[rank]:.1f} s"
        if node.exit_code not in (1, 3):
            yield f"ended with exit code {node.exit_code}"
        if not re.search(OWN if victim else self.case.sentence, words):
            yield f"does not say why: {words[-300:]}"
        if not victim and self.case.place != "init" and not re.search(r"the checkpoint of round \d in \S+ is", words):
            yield f"does not name the checkpoint to go on from: {words[-300:]}"
        told = [line.removeprefix(PREFIX) for line in node.lines if line.startswith(PREFIX)]
        if told and told[0] not in json.loads(self.error_file(rank).read_text())["message"]["message"]:
            yield "was ended and does not say so in its error file"

    def error_file(self, rank: int) -> Path:
        """Where torchrun would look for its last words."""
        return self.folder / f"error-{rank}.json"

    def __str__(self) -> str:
        """Seconds until the last one has ended."""
        again = self.case.victim if self.case.event == "SIGSTOP" else None
        killed = self.case.victim if self.case.event == "kill -9" else None
        last = max(self.seconds[rank] for rank in range(NODES) if rank not in (again, killed))
        return f"{last:.1f}" + (f" ({self.seconds[again]:.1f})" if again is not None else "")


def make(forker: Forker, cases: Sequence[Case], folder: Path, timeout: float) -> list[Ends]:
    """All of the cases, some at once."""

    def one(case: Case) -> Ends:
        place = folder / str(CASES.index(case))
        place.mkdir()
        return Ends(forker, case, place, timeout)

    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(one, cases))


def table(ends: Sequence[Ends]) -> str:
    """In Markdown: a row for what happens and where, a column for each network and victim."""
    found = {one.case: str(one) for one in ends}
    columns = list(product((ONE, THREE), (0, NODES - 1)))
    rows = ["| | " + " | ".join(f"{network}, {'another' if who else 'first'}" for network, who in columns) + " |"]
    rows.append("|---" * (len(columns) + 1) + "|")
    for event, place in dict.fromkeys((case.event, case.place) for case in found):
        cells = [found.get(Case(event, place, *column), "") for column in columns]
        rows.append(f"| {event}, in `{place}` | " + " | ".join(cells) + " |")
    return "\n".join(rows)


if __name__ == "__main__":
    started, chosen = Forker(), [case for case in CASES if all(word in str(case) for word in sys.argv[1:])]
    with tempfile.TemporaryDirectory() as place:
        ends = make(started, chosen, Path(place), timeout=6.0)
        print(table(ends))
        for one in ends:
            for fault in one.faults():
                print(f"{one.case}: {fault}", file=sys.stderr)
    started.close()
