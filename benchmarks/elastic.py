"""Measurements of elastic training: `python benchmarks/elastic.py`, or with the names of some sections.

throughput  rounds per second with `init(elastic=True)` and with a fixed membership, without faults, in alternation
recovery    from a kill −9, a stop or a hang to the end of the survivors' first exchange without that node
torchft     the same model, data and kills under torchft's LocalSGD and DiLoCo
stragglers  time to reach a loss with one of four nodes ten times slower, by policy

Every node is a process with one thread, forked from this one. Compare only within one run: machines are noisy.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
os.environ.setdefault("RUST_LOG", "error")
sys.path.append(str(Path(__file__).parents[1]))  # reproductions/, which are not installed

import elastic_nodes as nodes
from rich.console import Console
from rich.table import Table

from reproductions.training.forked import Forked, free_port, lighthouse, prepare, wait_until

NODES = 8
OURS = {"heartbeat_timeout_ms": 600, "join_timeout_ms": 5000, "quorum_tick_ms": 50}  # those of `stgt lighthouse`
THEIRS = {"heartbeat_timeout_ms": 5000, "join_timeout_ms": 60000, "quorum_tick_ms": 100}  # `torchft_lighthouse`
MOST = {"min_replicas": NODES // 2 + 1}  # for torchft: with fewer, two halves may continue separately (its issue 70)
HUNG = nodes.TIME_OUT + 1.0
RECOVERY = 1.0
SLOWER = 10
POLICIES: dict[str, dict[str, Any]] = {
    "wait for all": {"patience": None, "auto": False},
    "patience": {"patience": 0.02, "auto": False},
    'tau="auto"': {"patience": None, "auto": True},
    "both": {"patience": 0.02, "auto": True},
}


class Cluster:
    """A lighthouse and the processes that train together, by number."""

    def __init__(self, function: Callable[..., None], told: dict[str, Any], count: int, limits: dict[str, int] = OURS):
        self.function, self.told, self.count = function, told, count
        self.temporary = tempfile.TemporaryDirectory()
        self.folder = Path(self.temporary.name)
        self.address = f"127.0.0.1:{free_port()}"
        self.light = Forked("lighthouse", self.folder, lambda: lighthouse(self.address, **limits))
        self.nodes: dict[int, Forked] = {}
        self.ended: list[Forked] = []

    def __enter__(self) -> Cluster:
        try:
            wait_until(lambda: bool(self.light.said("serves")), 30, "the lighthouse")
            for k in range(self.count):
                self.start(k)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: Any) -> None:
        for one in (*self.nodes.values(), *self.ended, self.light):
            one.end()
        self.temporary.cleanup()

    def start(self, k: int) -> None:
        environment = {"STGT_NODE": f"n{k}", "TORCHFT_LIGHTHOUSE": f"http://{self.address}"}
        if not self.told.get("elastic", True):
            environment |= {"RANK": str(k), "LOCAL_RANK": str(k), "MASTER_ADDR": "127.0.0.1"}
            environment |= {"WORLD_SIZE": str(self.count), "LOCAL_WORLD_SIZE": str(self.count)}
            environment |= {"MASTER_PORT": self.told["port"]}
        given = self.told | {"k": k} | self.told.get("of", {}).get(k, {})
        self.nodes[k] = Forked(f"n{k}", self.folder, self.function, given, environment=environment)

    def check(self) -> None:
        for one in self.nodes.values():
            if one.poll() is not None:
                raise RuntimeError(f"{one.name} has ended with code {one.exit_code}:\n{one.last_words()}")

    def wait(self, condition: Callable[[], bool], seconds: float, what: str) -> None:
        def checked() -> bool:
            self.check()
            return condition()

        wait_until(checked, seconds, what)

    def whole(self, seconds: float = 90.0) -> None:
        """Waits until all nodes take part, and have done so for two more rounds."""
        now = time.time()

        def done() -> bool:
            rounds = [[line for line in one.said("round") if line["time"] > now] for one in self.nodes.values()]
            return all(len(lines) > 2 and all(one["nodes"] == self.count for one in lines[-2:]) for lines in rounds)

        self.wait(done, seconds, f"{self.count} nodes")


def training(**others: Any) -> dict[str, Any]:
    return {"model": "small", "tau": 5, "batch": 16, "elastic": True, "min_nodes": 2, "nodes": NODES} | others


def middle(values: list[float]) -> str:
    return f"{statistics.median(values):.2f}" if values else "–"


def most(values: list[float]) -> str:
    return f"{max(values):.2f}" if values else "–"


# -- throughput ------------------------------------------------------------------------------------------------------


def throughput(console: Console, options: argparse.Namespace) -> None:
    """Rounds per second with a model of LeNet's size, fixed and elastic in alternation."""
    rates: dict[bool, list[float]] = {False: [], True: []}
    cpu: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(options.turns):
        for elastic in rates:
            told = training(
                model="lenet", tau=10, batch=32, elastic=elastic, min_nodes=NODES, measured=(3, 3 + options.rounds)
            )
            with Cluster(nodes.ours, told | {"port": str(free_port())}, NODES) as cluster:
                every = list(cluster.nodes.values())
                cluster.wait(lambda every=every: all(one.said("measured") for one in every), 200, "the rounds")
                found = [one.said("measured")[0] for one in every]
            rates[elastic].append(statistics.median(one["rounds"] / one["seconds"] for one in found))
            cpu[elastic].append(sum(one["cpu"] for one in found) / sum(one["rounds"] for one in found))
    table = Table(
        title=f"Without faults: LeNet, {NODES} processes, 10 steps of 32 per round; {options.turns} turns each"
    )
    for heading in ("membership", "rounds per second", "range", "CPU ms per round and process"):
        table.add_column(heading, justify="left" if heading == "membership" else "right")
    for elastic, name in ((False, "fixed"), (True, "elastic")):
        values = rates[elastic]
        table.add_row(
            name,
            f"{statistics.median(values):.3f}",
            f"{min(values):.3f} – {max(values):.3f}",
            f"{1e3 * statistics.median(cpu[elastic]):.1f}",
        )
    ratios = [statistics.median(by[True]) / statistics.median(by[False]) for by in (rates, cpu)]
    table.add_row("ratio of medians, target ≥ 0.98", f"{ratios[0]:.3f}", "", f"{ratios[1]:.3f}")
    console.print(table)


# -- recovery --------------------------------------------------------------------------------------------------------


def fault(cluster: Cluster, victim: int, sign: int, settle: float, limit: float = 90.0) -> dict[str, float]:
    """Injects a fault at one node and restarts it; returns the times until the others continued and it returned."""
    cluster.whole()
    time.sleep(random.uniform(0.3, 1.0))
    struck = cluster.nodes.pop(victim)
    began = time.time()
    struck.send(sign)
    others = list(cluster.nodes.values())

    def without(one: Forked) -> list[dict[str, Any]]:
        return [line for line in one.said("round") if line["time"] > began and line["nodes"] < cluster.count]

    cluster.wait(lambda: all(without(one) for one in others), limit, "the survivors' first exchange")
    time.sleep(settle)
    firsts = [without(one)[0] for one in others]
    longest = 0.0
    for one in others:
        times = [line["time"] for line in one.said("round")]
        around = [t for t in times if t > began]
        around.insert(0, max((t for t in times if t <= began), default=began))
        longest = max([longest, *(after - before for before, after in pairwise(around))])
    costs = [without(one)[0]["cost"] for one in others if without(one)[0]["cost"] is not None]
    again = time.time()
    if sign == signal.SIGSTOP:
        struck.send(signal.SIGCONT)
        cluster.nodes[victim] = struck
    else:
        struck.end()
        cluster.ended.append(struck)
        cluster.start(victim)
    back = cluster.nodes[victim]

    def with_all(one: Forked) -> list[float]:
        return [line["time"] for line in one.said("round") if line["time"] > again and line["nodes"] == cluster.count]

    cluster.wait(lambda: all(with_all(one) for one in (back, *others)), limit, "the node's return")
    return {
        "recovery": max(line["time"] for line in firsts) - began,
        "event": max(costs, default=float("nan")),
        "pause": longest,
        "return": max(with_all(one)[0] for one in (back, *others)) - again,
    }


def recovery(console: Console, options: argparse.Namespace) -> None:
    """Seconds until the others have exchanged without the faulty node."""
    table = Table(
        title=f"Seconds from a fault at one of {NODES} to the end of the survivors' first exchange without it"
    )
    for heading in ("fault", "times", "median", "max", "target", "as logged, median", "max", "back after, median"):
        table.add_column(heading, justify="left" if heading == "fault" else "right")
    kinds = (
        ("kill −9", signal.SIGKILL, options.kills, RECOVERY),
        ("SIGSTOP", signal.SIGSTOP, options.others, None),
        ("a hang", signal.SIGUSR1, options.others, HUNG),
    )
    with Cluster(nodes.ours, training(), NODES) as cluster:
        for name, sign, times, target in kinds:
            found = [fault(cluster, random.randrange(NODES), sign, 0.3) for _ in range(times)]
            by = {key: [one[key] for one in found] for key in ("recovery", "event", "return")} if found else {}
            table.add_row(
                name if sign != signal.SIGUSR1 else f"a hang, timeout={nodes.TIME_OUT:g}",
                str(times),
                middle(by.get("recovery", [])),
                most(by.get("recovery", [])),
                f"≤ {target:g}" if target else "",
                middle(by.get("event", [])),
                most(by.get("event", [])),
                middle(by.get("return", [])),
            )
    console.print(table)


# -- torchft ---------------------------------------------------------------------------------------------------------


def torchft(console: Console, options: argparse.Namespace) -> None:
    """stgt's methods next to those of torchft."""
    title = f"{NODES} processes, a small model, 5 steps of 16 per round, {options.peer_kills} kills −9 each; seconds"
    table = Table(title=title)
    headings = ("what", "lighthouse's limits", "steps per second", "pause, median", "max", "back after, median", "max")
    for heading in headings:
        table.add_column(heading, justify="left" if heading in headings[:2] else "right")
    rows: list[tuple[str, Callable[..., None], dict[str, Any], str, dict[str, int]]] = [
        ("stgt: ST-GT, exponential", nodes.ours, {}, "ours", OURS)
    ]
    for method in ("LocalSGD", "DiLoCo"):
        for limits_name, limits in (("torchft's", THEIRS | MOST), ("ours", OURS | MOST)):
            rows.append((f"torchft: {method}", nodes.torchft, {"method": method}, limits_name, limits))
    for name, function, more, limits_name, limits in rows:
        try:
            with console.status(f"{name}, limits: {limits_name}"):
                cells = row(function, training(**more), limits, options)
            table.add_row(name, limits_name, *cells)
        except (RuntimeError, TimeoutError) as error:
            table.add_row(name, limits_name, *["–"] * 5)
            console.print(f"{name}, limits {limits_name}: {error}")
    console.print(table)


def row(
    function: Callable[..., None], told: dict[str, Any], limits: dict[str, int], options: argparse.Namespace
) -> list[str]:
    """The cells of a row: steps per second of a node without faults, and the times after kills."""
    with Cluster(function, told, NODES, limits) as cluster:
        cluster.whole(120)
        first, began = cluster.nodes[0].said("round")[-1], time.time()
        time.sleep(options.seconds)
        last = cluster.nodes[0].said("round")[-1]
        rate = told["tau"] * (last["round"] - first["round"]) / max(last["time"] - first["time"], time.time() - began)
        found = [fault(cluster, random.randrange(NODES), signal.SIGKILL, 1.0) for _ in range(options.peer_kills)]
    pauses, returns = ([one[key] for one in found] for key in ("pause", "return"))
    return [f"{rate:.0f}", middle(pauses), most(pauses), middle(returns), most(returns)]


# -- stragglers ------------------------------------------------------------------------------------------------------


def stragglers(console: Console, options: argparse.Namespace) -> None:
    """Four nodes with a quadratic each, one of them slower: time until the loss of all models is near the minimum."""
    count, tau, step = 4, 10, options.step
    told = {"nodes": count, "tau": tau, "lr": 0.02, "target": 1e-6, "seconds": step}
    title = (
        f"{count} nodes, quadratics, tau = {tau}, {1e3 * step:g} ms per step, one node {SLOWER} times slower: "
        f"until f(x_i) − f* ≤ {told['target']:g} at the other nodes, and at all nodes"
    )
    table = Table(title=title)
    for heading in ("method", "policy", "seconds, others", "rounds", "seconds, all", "rounds"):
        table.add_column(heading, justify="left" if heading in ("method", "policy") else "right")
    for method in ("STGT", "LED"):
        for policy, values in POLICIES.items():
            slow = {count - 1: {"seconds": SLOWER * step}}
            with Cluster(nodes.straggler, {**told, **values, "method": method, "of": slow}, count) as cluster:
                every = list(cluster.nodes.values())
                cluster.wait(lambda every=every: all(one.said("begins") for one in every), 60, "the begin")
                with suppress(TimeoutError):
                    cluster.wait(lambda every=every: all(one.said("close") for one in every), options.limit, policy)
                begun = max(one.said("begins")[0]["time"] for one in every)
                ends = [one.said("close")[:1] for one in every]
                lines = [line["round"] for one in every for line in one.said("round")[-1:]]
                reached = max(lines, default=0)
                cells = []
                for some in (ends[:-1], ends):
                    if all(some):
                        cells.append(f"{max(one[0]['time'] for one in some) - begun:.2f}")
                        cells.append(str(max(one[0]["round"] for one in some)))
                    else:
                        cells += [f"> {options.limit:g}", f"> {reached}"]
                table.add_row(method, policy, *cells)
    console.print(table)


SECTIONS = {one.__name__: one for one in (throughput, recovery, torchft, stragglers)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sections", nargs="*", metavar="SECTION", help=f"some of {', '.join(SECTIONS)}; default: all")
    parser.add_argument("--turns", type=int, default=5, help="turns of throughput (%(default)s)")
    parser.add_argument("--rounds", type=int, default=20, help="rounds per turn (%(default)s)")
    parser.add_argument("--kills", type=int, default=10, help="kills of recovery (%(default)s)")
    parser.add_argument("--others", type=int, default=3, help="stops, and as many hangs (%(default)s)")
    parser.add_argument("--peer-kills", type=int, default=3, help="kills per row of torchft (%(default)s)")
    parser.add_argument("--seconds", type=float, default=4.0, help="seconds without faults, of torchft (%(default)s)")
    parser.add_argument("--step", type=float, default=0.002, help="seconds per step, of stragglers (%(default)s)")
    parser.add_argument(
        "--limit", type=float, default=30.0, help="the longest run of stragglers, in seconds (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, help="for the nodes and times of faults (%(default)s)")
    options = parser.parse_args()
    if wrong := [name for name in options.sections if name not in SECTIONS]:
        parser.error(f"{wrong[0]!r}: choose from {', '.join(SECTIONS)}")
    console = Console(width=None if sys.stdout.isatty() else 140)
    random.seed(options.seed)
    prepare()
    began, load = time.monotonic(), os.getloadavg()[0]
    for name in options.sections or SECTIONS:
        SECTIONS[name](console, options)
    console.print(f"{time.monotonic() - began:.0f} s; load before: {load:.1f} on {os.cpu_count()} cores")


if __name__ == "__main__":
    main()
