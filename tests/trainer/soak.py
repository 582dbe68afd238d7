"""Hours under fire: eight nodes train a quadratic while all that can happen to them happens, and must end well.

python tests/trainer/soak.py --minutes 60 --out FOLDER    faults drawn from --seed; a table and all events in FOLDER

Three parts: one host, and the lighthouse with it; fewer nodes than may train; three hosts (network namespaces, where
the machine allows them) between which cables are cut. At the end of each the faults stop, all eight nodes are there,
and the models, Σc, memory, sockets, threads, files and processes must be as if nothing had happened.
"""

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from hosts import Hosts, NoHostsError, hosts
from nodes import Forker, Node, free_port
from soak_processes import Process, orphans
from soak_report import judge, table

NODES = 8
FEWEST = 5  # nodes that nothing happens to
MIN_NODES = 3
PROTECTED = (5, 6)  # nodes that live through all of it: what they hold open is compared
MARGIN = 100  # rounds after which all nodes have read which round is the last
LAST_ROUNDS = 250  # without faults
IDLE = 60.0  # seconds without the end of a round anywhere
TIMEOUT = 15.0
SAMPLE_INTERVAL = 2.0

ONE_HOST = {
    "kill": 6, "two killed": 1, "stop": 5, "SIGTERM": 3, "leave": 2, "join": 2, "slow": 3, "disk": 2, "NaN, skip": 2,
    "NaN, stop": 2, "hang": 1, "lighthouse": 2,
}  # fmt: skip
THREE_HOSTS = {"cut": 6, "cut off lighthouse": 2, "kill": 3, "stop": 2, "SIGTERM": 1, "lighthouse": 1}


class SoakError(AssertionError):
    """What is not as promised."""


@dataclass
class Fault:
    """What was done, when, and to whom."""

    kind: str
    time: float
    victims: list[str]  # ids
    seconds: float = 0.0  # for which it lasts
    seen: dict = field(default_factory=dict)  # what the nodes have said of it


class Soak:
    """One part: its nodes, a lighthouse, and what happens to them."""

    def __init__(self, forker: Forker, folder: Path, seed: int, net: Hosts | None = None, **settings):
        self.forker, self.folder, self.net, self.random = forker, folder, net, random.Random(seed)
        folder.mkdir(parents=True)
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.mark = f"STGT_SOAK={os.getpid()}-{folder.name}-{time.time_ns()}"
        self.settings = {
            "folder": str(folder), "timeout": TIMEOUT, "beta": 0.5, "topology": "exponential", "min_nodes": MIN_NODES,
            "on_nonfinite": "skip", "patience": None, "sleep": 0.003, "measure_every": 100, "save_every": 150,
        } | settings  # fmt: skip
        self.processes: list[Process] = []
        self.lighthouses: list[Node] = []
        self.port = free_port()
        self.faults: list[Fault] = []
        self.due: list[tuple[float, object]] = []  # what to do later
        self.cut_until = 0.0
        self.began, self.sampled = time.time(), 0.0
        self.problems: list[str] = []
        self.start_lighthouse()

    # -- processes -----------------------------------------------------------------------------------------------------

    def start_lighthouse(self) -> None:
        place = {"RANK": f"lighthouse-{len(self.lighthouses)}", **self._environment(0)}
        address = self.net.addresses[0] if self.net else "127.0.0.1"
        one = Node(self.forker, self.folder, place, "elastic_lighthouse", f"{address}:{self.port}")
        self.lighthouses.append(one)

    def start(self, k: int, **settings) -> Process:
        host = self.host_of(k)
        address = self.net.addresses[0] if self.net else "127.0.0.1"
        environment = {
            "RANK": f"{k}-{len(self.processes)}",
            "STGT_NODE": f"n{k}",
            "TORCHFT_LIGHTHOUSE": f"http://{address}:{self.port}",
            "TMPDIR": str(self.temporary),
            **self._environment(host),
        }
        made = Process(self.forker, self.folder, environment, "soak_node", json.dumps(self.settings | settings))
        made.protected, made.policy = k in PROTECTED, (self.settings | settings)["on_nonfinite"]
        self.processes.append(made)
        return made

    def host_of(self, k: int) -> int:
        return k % len(self.net.names) if self.net else 0

    def _environment(self, host: int) -> dict[str, str]:
        found = dict([self.mark.split("=")])
        return found | ({"NETNS": self.net.names[host]} if self.net else {})

    @property
    def running(self) -> list[Process]:
        return [one for one in self.processes if one.running]

    def by_number(self, k: int) -> Process | None:
        return next((one for one in self.running if one.name == f"n{k}"), None)

    # -- time ----------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Lets time go by: reads logs, does what is due, and looks whether the training goes on."""
        end = time.time() + seconds
        while time.time() < end:
            self.tick()
            time.sleep(0.02)

    def wait_for(self, condition, seconds: float, what: str) -> None:
        end = time.time() + seconds
        while not condition():
            if time.time() > end:
                self.give_up(f"{what}: not within {seconds:g} s")
            self.tick()
            time.sleep(0.02)

    def tick(self) -> None:
        now = time.time()
        for one in self.processes:
            if not one.over:
                one.over = one.poll() is not None
                one.follow()
                if one.over:
                    self._ended(one)
        for item in sorted((one for one in self.due if one[0] <= now), key=lambda one: one[0]):
            self.due.remove(item)
            item[1]()
        if now - self.sampled > SAMPLE_INTERVAL:
            self.sampled = now
            for one in self.running:
                one.sample()
        here = [one for one in self.running if one.stopped_until < now]
        if here and now - max(one.moved for one in here) > IDLE:
            self.give_up(f"no round has ended anywhere for {IDLE:g} s")
        for one in here:
            if now - max(one.moved, one.born, one.busy_until) > IDLE:
                self.give_up(f"{one.name} has ended no round for {IDLE:g} s, and others have")

    def _ended(self, one: Process) -> None:
        if one.exit_code not in one.ends_with and not self._had_no_lighthouse(one):
            words = "\n".join(line for line in one.lines[-40:] if not line.startswith("@"))
            self.problem(f"{one.log.name} ended with exit code {one.exit_code} by itself:\n{words}")
        if one.exit_code not in one.ends_with:
            self.later(2.0, lambda: self.start_again(one))

    def _had_no_lighthouse(self, one: Process) -> bool:
        """Could a newcomer not reach any for most of the time-out, after which it is promised to end?"""
        spans = [
            (max(fault.time, one.born), min(fault.time + fault.seconds, one.born + TIMEOUT))
            for fault in self.faults
            if fault.kind.startswith("cut") or fault.kind == "lighthouse"
        ]
        missed = sum(max(0.0, end - begin) for begin, end in spans)
        return not one.id and missed > TIMEOUT / 2

    def problem(self, words: str) -> None:
        print(f"PROBLEM at {time.time():.3f}: {words}", flush=True)
        self.problems.append(words)

    def give_up(self, why: str) -> None:
        for one in self.running:
            print(one.stacks(), flush=True)
        self.problems.append(why)
        raise SoakError(why)

    def later(self, seconds: float, what) -> None:
        self.due.append((time.time() + seconds, what))

    # -- faults --------------------------------------------------------------------------------------------------------

    def fault(self, kind: str, *victims: Process, seconds: float = 0.0) -> Fault:
        made = Fault(kind, time.time(), [one.id for one in victims], seconds)
        for one in victims:
            one.busy_until = max(one.busy_until, time.time() + seconds + 2.0)
        self.faults.append(made)
        print(
            f"{made.time:.3f} {kind} {', '.join(made.victims)} {f'for {seconds:.1f} s' if seconds else ''}", flush=True
        )
        return made

    def candidates(self, lost: int) -> list[Process]:
        """Nodes that something may happen to, if the others are enough to go on without `lost` of them."""
        members = max((one for one in self.running), key=lambda one: one.epoch).members
        well = [one for one in self.running if one.well and one.id in members]
        left = len(well) - lost
        return well if left >= FEWEST and 2 * left > len(members) + 1 else []

    def happen(self, kinds: dict[str, int]) -> bool:
        """A fault of a kind that is drawn; False if it cannot be now."""
        (kind,) = self.random.choices(list(kinds), list(kinds.values()))
        return getattr(self, "do_" + kind.lower().replace(" ", "_").replace(",", ""))()

    def _one(self, lost: int = 1, mortal: bool = True) -> Process | None:
        found = [one for one in self.candidates(lost) if not (mortal and one.protected)]
        return self.random.choice(found) if found else None

    def start_again(self, one: Process, seconds: float = 0.0) -> None:
        """Sooner or later; the eight only."""
        k = int(one.name[1:])
        if seconds or one.running:  # it may take its time to leave
            self.later(seconds or 0.5, lambda: self.start_again(one))
        elif k < NODES and self.by_number(k) is None:
            policy = self.random.choice(("skip", "skip", "skip", "stop"))
            self.start(k, on_nonfinite="skip" if k in PROTECTED else policy)

    def _die(self, one: Process, *codes: int) -> None:
        one.ends_with |= set(codes)
        self.start_again(one, self.random.uniform(1.0, 8.0))

    def do_kill(self) -> bool:
        one = self._one()
        if one is not None:
            self._die(one, -9)
            self.fault("kill", one)
            one.send(signal.SIGKILL)
        return one is not None

    def do_two_killed(self) -> bool:
        found = [one for one in self.candidates(2) if not one.protected]
        if len(found) < 2:
            return False
        two = self.random.sample(found, 2)
        self.fault("two killed", *two)
        for one in two:
            self._die(one, -9)
            one.send(signal.SIGKILL)
        return True

    def do_stop(self) -> bool:
        one = self._one(mortal=False)
        if one is not None:
            seconds = self.random.choice((self.random.uniform(0.3, 1.0), self.random.uniform(1.0, 8.0)))
            self.fault("stop < 4 s" if seconds < 4 else "stop > 4 s", one, seconds=seconds)
            one.stopped_until = time.time() + seconds
            one.send(signal.SIGSTOP)
            self.later(seconds, lambda: one.send(signal.SIGCONT))
        return one is not None

    def do_sigterm(self) -> bool:
        one = self._one()
        if one is not None:
            self._die(one, 128 + signal.SIGTERM)
            self.fault("SIGTERM", one)
            one.send(signal.SIGTERM)
        return one is not None

    def do_leave(self) -> bool:
        one = self._one()
        if one is not None:
            self._die(one, 0)
            self.fault("leave", one)
            one.order("leave")
        return one is not None

    def do_join(self) -> bool:
        free = [k for k in range(NODES, NODES + 2) if self.by_number(k) is None]
        if free:
            self.start(free[0])
            print(f"{time.time():.3f} join of n{free[0]}", flush=True)
        return bool(free)

    def do_slow(self) -> bool:
        one = self._one(0, mortal=False)
        if one is not None:
            seconds = self.random.uniform(1.0, 5.0)
            self.fault("slow", one, seconds=seconds)
            one.order("slow", sleep=self.random.uniform(0.02, 0.3), seconds=seconds)
        return one is not None

    def do_disk(self) -> bool:
        one = self._one(0, mortal=False)
        if one is not None:
            self.fault("disk", one)
            one.order("disk")
        return one is not None

    def do_nan_skip(self) -> bool:
        found = [one for one in self.candidates(0) if one.policy == "skip"]
        if found:
            one = self.random.choice(found)
            self.fault("NaN, skip", one)
            one.order("nan")
        return bool(found)

    def do_nan_stop(self) -> bool:
        found = [one for one in self.candidates(1) if one.policy == "stop"]
        if found:
            one = self.random.choice(found)
            self._die(one, 1)
            self.fault("NaN, stop", one)
            one.order("nan")
        return bool(found)

    def do_hang(self) -> bool:
        one = self._one(mortal=False)
        if one is not None:
            seconds = TIMEOUT + 3.0
            self.fault("hang", one, seconds=seconds)
            one.order("hang", seconds=seconds)
        return one is not None

    def do_lighthouse(self) -> bool:
        if self.lighthouses[-1].poll() is not None:
            return False
        seconds = self.random.uniform(0.2, 8.0)
        self.fault("lighthouse", seconds=seconds)
        self.lighthouses[-1].kill()
        self.later(seconds, self.start_lighthouse)
        return True

    def do_cut(self) -> bool:
        return self._cut(self.random.choice((1, 2)), "cut")

    def do_cut_off_lighthouse(self) -> bool:
        return self._cut(0, "cut off lighthouse")

    def _cut(self, host: int, kind: str) -> bool:
        there = [one for one in self.running if self.host_of(int(one.name[1:])) == host]
        if time.time() < self.cut_until:
            return False
        if not self.candidates(0 if kind != "cut" else sum(one.well for one in there)):
            return False
        seconds = self.random.uniform(1.0, 9.0)
        self.fault(kind if kind != "cut" else f"cut {'<' if seconds < 5 else '>'} 5 s", *there, seconds=seconds)
        self.cut_until = time.time() + seconds + 3.0
        self.net.unplug(host)
        self.later(seconds, lambda: self.net.plug(host))
        return True

    # -- the parts -----------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        self.wait(1.0)
        for k in range(NODES):
            self.start(k)
        self.wait_for(self.all_here, 60, "all eight nodes are members")

    def all_here(self) -> bool:
        """Are the eight the members, as each of them sees it?"""
        ids = {one.id for one in self.running}
        return len(ids) == NODES and all(set(one.members) == ids for one in self.running)

    def fire(self, seconds: float, kinds: dict[str, int]) -> None:
        """Faults, in bursts and one by one."""
        end = time.time() + seconds
        while time.time() < end:
            if self.happen(kinds):
                pause = self.random.choice((self.random.expovariate(1.0), self.random.uniform(4.0, 7.0)))
                self.wait(min(pause, end - time.time()) if end > time.time() else 0)
            else:
                self.wait(0.1)

    def too_few(self) -> None:
        """Node after node is killed until fewer than min_nodes are there; then others come."""
        self.bring_back()
        for k in (0, 7, 1, 4, 2, 3):
            one = self.by_number(k)
            one.ends_with.add(-9)
            if len(self.running) > MIN_NODES:
                self.fault("kill", one)
            else:
                self.fault("too few", one, seconds=4.0)
            one.send(signal.SIGKILL)
            self.wait(4.0)
        for k in (0, 7, 1, 4, 2, 3):
            self.start(k)
            self.wait(0.5)
        self.wait(2.0)

    def bring_back(self) -> None:
        """The faults are over: all eight are there, and no others."""
        over = lambda: not self.due and not any(one.ends_with for one in self.running)  # noqa: E731
        self.wait_for(over, 60, "what was begun is over")
        if self.lighthouses[-1].poll() is not None:
            self.start_lighthouse()
        for one in self.running:
            if int(one.name[1:]) >= NODES and not one.ends_with:
                one.ends_with.add(128 + signal.SIGTERM)
                self.fault("SIGTERM", one)
                one.send(signal.SIGTERM)
        for k in range(NODES):
            if self.by_number(k) is None:
                self.start(k)
        self.wait_for(self.all_here, 60, "all eight nodes are members again")

    def finish(self, rounds: int = LAST_ROUNDS) -> dict:
        """The last rounds, all eight together; what they say at the end."""
        self.bring_back()
        for one in self.running:
            one.ends_with.add(0)
        told = self.folder / "last-round.new"
        told.write_text(f"{max(one.round for one in self.running) + max(rounds, MARGIN)} {rounds}")
        last = self.running
        told.rename(self.folder / "last-round")
        self.wait_for(lambda: not self.running, 120, "all nodes have ended")
        for one in self.processes:
            one.follow()
        return {one.name: one.said["end"][-1] for one in last if "end" in one.said}

    def close(self) -> list[int]:
        """Ends what is left; returns the orphans."""
        for one in [*self.processes, *self.lighthouses]:
            if one.poll() is None:
                os.kill(one.number, signal.SIGCONT)
                one.kill()
                one.finish(10)
        found = orphans(self.mark)
        for number in found:
            os.kill(number, signal.SIGKILL)
        return found


def undisturbed(forker: Forker, folder: Path) -> dict:
    """What the eight say at the end of as many rounds without a fault."""
    run = Soak(forker, folder, 0)
    try:
        run.begin()
        return run.finish(LAST_ROUNDS)
    finally:
        run.close()


def soak(forker: Forker, folder: Path, seconds: float, seed: int, parts=("one host", "too few", "three hosts")) -> dict:
    """All parts; a report of what was injected, promised and seen, and of what is not as promised."""
    plain = undisturbed(forker, folder / "undisturbed")
    reports = []
    share = 0.75 if "three hosts" in parts else 1.0
    run = Soak(forker, folder / "one-host", seed)

    def one_host() -> dict:
        run.begin()
        run.fire(seconds * share / 2, ONE_HOST)
        if "too few" in parts:
            run.too_few()
        run.fire(seconds * share / 2, ONE_HOST)
        return run.finish()

    reports.append(made(run, one_host, plain))
    if "three hosts" in parts:
        try:
            with hosts(3) as net:
                apart = Soak(forker, folder / "three-hosts", seed + 1, net)

                def three_hosts() -> dict:
                    apart.begin()
                    apart.fire(seconds * (1 - share), THREE_HOSTS)
                    return apart.finish()

                reports.append(made(apart, three_hosts, plain))
        except NoHostsError as error:
            print(f"three hosts: {error}", flush=True)
    return {
        "seed": seed,
        "seconds": seconds,
        "rounds": [one["rounds"] for one in reports],
        "faults": [fault for one in reports for fault in one["faults"]],
        "events": [event for one in reports for event in one["events"]],
        "held": [one["held"] for one in reports],
        "ends": [one["ends"] for one in reports],
        "problems": [problem for one in reports for problem in one["problems"]],
    }


def made(run: Soak, play, plain: dict | None) -> dict:
    """Plays a part to its end, and judges it."""
    ends = {}
    try:
        ends = play()
    except SoakError as error:
        print(f"given up: {error}", flush=True)
    finally:
        left = run.close()
    return judge(run, ends, plain, left)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0, help="of faults")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, default=None, help="where the logs, soak.md and soak.json stay")
    parser.add_argument("--parts", nargs="+", default=["one host", "too few", "three hosts"])
    told = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "soak" if told.out is None else told.out
        forker = Forker()
        try:
            report = soak(forker, folder, 60 * told.minutes, told.seed, told.parts)
        finally:
            forker.close()
        (folder / "soak.json").write_text(json.dumps(report, indent=1))
        (folder / "soak.md").write_text(table(report) + "\n")
    print(table(report))
    for problem in report["problems"]:
        print(f"NOT AS PROMISED: {problem}")
    sys.exit(1 if report["problems"] else 0)


if __name__ == "__main__":
    main()
