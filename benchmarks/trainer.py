"""Speed and memory of the trainer over gloo, one thread a process: `.venv/bin/python benchmarks/trainer.py`.

Compare only ratios within one run: machines are noisy. The compared parts alternate. "CPU" is the processor time of all
processes, on which other load has the least effect. Eight processes on two cores have no other meaningful time.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import nn

import stgt
import stgt.torch
from reproductions.training.models import resnet18

LARGE, MODEL, SMALL = 100_000_000, 10_000_000, 1_000_000
ROUNDS = 1000
RATE = "1gbit"


def equal(size: int) -> nn.ParameterList:
    """Ten equal vectors."""
    return nn.ParameterList([nn.Parameter(torch.zeros(size // 10)) for _ in range(10)])


def wrapped(model: nn.Module, topology: stgt.topology.Topology | str) -> stgt.torch.DistributedOptimizer:
    """ST-GT with plain SGD that exchanges only on request; the gradients do not change."""
    fill(model)
    sgd = torch.optim.SGD(model.parameters(), lr=1e-6)
    return stgt.torch.DistributedOptimizer(sgd, stgt.STGT(tau=1 << 40), topology, model=model, buffers="none")


def fill(model: nn.Module) -> None:
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, 1.0)


# -- a step between two exchanges ------------------------------------------------------------------------------------


def steps(console: Console) -> None:
    torch.set_num_threads(1)
    stgt.torch.init()
    table = Table(title="A local step of ST-GT against torch.optim.SGD's: CPU time, target ≤ 1.5")
    for heading in ("model", "SGD, ms", "ST-GT, ms", "ratio of minima", "ratio of medians"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, make in (("ResNet-18, 11.2 M", resnet18), ("10 × 1 M", lambda: equal(MODEL))):
        alone, together = make(), make()
        fill(alone)
        runs = (torch.optim.SGD(alone.parameters(), lr=1e-6).step, wrapped(together, stgt.topology.complete(1)).step)
        times: tuple[list[float], list[float]] = ([], [])
        for repeat in range(210):
            for run, kept in zip(runs, times, strict=True):
                start = time.thread_time()
                run()
                if repeat >= 10:
                    kept.append(1e3 * (time.thread_time() - start))
        sgd, ours = min(times[0]), min(times[1])
        medians = statistics.median(times[1]) / statistics.median(times[0])
        table.add_row(name, f"{sgd:.2f}", f"{ours:.2f}", f"{ours / sgd:.2f}", f"{medians:.2f}")
    console.print(table)


# -- an exchange -----------------------------------------------------------------------------------------------------


def exchange_node(topology: str, repeats: int) -> dict:
    """Wall and CPU times of an exchange and of the bare transfer of its bytes, in alternation."""
    opt = wrapped(equal(MODEL), topology)
    length = sum(bucket.size for bucket in opt.buckets)
    mine = {sent.name: torch.zeros(length) for sent in opt.spec.messages}
    routes = [opt._schedule.routes(r) for r in range(opt.topology.period or 1)]
    places = max(len(route.receive_from) for one in routes for route in one.values())
    received = {name: [torch.zeros(length) for _ in range(places)] for name in mine}

    def bare() -> None:
        operations = []
        for tag, (name, route) in enumerate(routes[opt.round % len(routes)].items()):
            operations += [dist.P2POp(dist.isend, mine[name], peer, tag=tag) for peer in route.send_to]
            for (peer, _), buffer in zip(route.receive_from, received[name], strict=False):
                operations.append(dist.P2POp(dist.irecv, buffer, peer, tag=tag))
        for work in dist.batch_isend_irecv(operations):
            work.wait()

    times: dict[str, list[tuple[float, float]]] = {"bare": [], "ours": []}
    for repeat in range(repeats + 1):
        for name, run in (("bare", bare), ("ours", opt.end_round)):
            if name == "ours":
                opt.step()
            dist.barrier()
            wall, cpu = time.perf_counter(), time.process_time()
            run()
            dist.barrier()
            if repeat:
                times[name].append((time.perf_counter() - wall, time.process_time() - cpu))
    return times


def exchanges(console: Console) -> None:
    title = f"An exchange of ST-GT, {MODEL / 1e6:.0f} M float32, against the bare transfer of its bytes: target ≤ 1.4"
    table = Table(title=title)
    for heading in ("nodes", "bare, ms", "ST-GT, ms", "ratio of minima", "of medians", "of CPU medians"):
        table.add_column(heading, justify="left" if heading == "nodes" else "right")
    for nodes, topology, repeats in ((2, "ring", 12), (4, "exponential", 8), (8, "exponential", 5)):
        found = spawn(nodes, "exchange_node", topology, repeats)
        table.add_row(f"{nodes}, {topology}, loopback", *compared(found))
    with hosts() as names:
        if names:
            table.add_row(f"2 hosts, {RATE}", *compared(spawn(2, "exchange_node", "ring", 5, namespaces=names)))
        else:
            console.print("network namespaces cannot be created here (ip, tc): the test with two hosts is skipped")
    console.print(table)


def compared(found: list[dict]) -> list[str]:
    """Minima and ratios; an exchange lasts as long as its slowest node's."""
    repeats = range(len(found[0]["bare"]))
    wall = {name: [1e3 * max(node[name][k][0] for node in found) for k in repeats] for name in found[0]}
    cpu = {name: [sum(node[name][k][1] for node in found) for k in repeats] for name in found[0]}
    bare, ours = min(wall["bare"]), min(wall["ours"])
    medians = [statistics.median(kind["ours"]) / statistics.median(kind["bare"]) for kind in (wall, cpu)]
    return [f"{bare:.0f}", f"{ours:.0f}", *(f"{value:.2f}" for value in (ours / bare, *medians))]


@contextmanager
def hosts() -> Iterator[list[str]]:
    """Two network namespaces joined by a cable of RATE; none if they cannot be created."""
    names, ends = ["stgt-bench-0", "stgt-bench-1"], ["stgtbench0", "stgtbench1"]
    commands = [f"ip netns add {name}" for name in names]
    commands.append(f"ip link add {ends[0]} type veth peer name {ends[1]}")
    for i, (name, end) in enumerate(zip(names, ends, strict=True)):
        commands += [f"ip link set {end} netns {name}", f"ip -n {name} addr add 10.78.0.{i + 1}/24 dev {end}"]
        commands += [f"ip -n {name} link set {end} up", f"ip -n {name} link set lo up"]
        commands.append(f"ip netns exec {name} tc qdisc add dev {end} root tbf rate {RATE} burst 1mb latency 100ms")
    try:
        made = all(_quietly(command) for command in commands)
        yield names if made else []
    finally:
        for name in names:
            _quietly(f"ip netns del {name}")


def _quietly(command: str) -> bool:
    try:
        return subprocess.run(command.split(), capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


# -- checks for values that are not finite -----------------------------------------------------------------------------


def guard_node(topology: str, repeats: int) -> list[tuple[float, float]]:
    """CPU times of the check of a message for finite values, and of a round of one step with its exchange."""
    opt = wrapped(equal(MODEL), topology)
    times = []
    for repeat in range(repeats + 1):
        dist.barrier()
        start = time.process_time()
        opt.step()
        opt.end_round()
        a_round = time.process_time() - start
        start = time.process_time()
        opt._guard.find()
        if repeat:
            times.append((1e3 * (time.process_time() - start), 1e3 * a_round))
    return times


def guards(console: Console) -> None:
    table = Table(
        title=f"Checks for values that are not finite, {MODEL / 1e6:.0f} M float32: CPU, target ≤ 3 % of a round"
    )
    for heading in ("nodes", "check, ms", "a round of one step, ms", "share"):
        table.add_column(heading, justify="left" if heading == "nodes" else "right")
    for nodes, topology, repeats in ((2, "ring", 12), (4, "exponential", 8)):
        found = [pair for node in spawn(nodes, "guard_node", topology, repeats) for pair in node]
        look, whole = (statistics.median(pair[k] for pair in found) for k in (0, 1))
        table.add_row(f"{nodes}, {topology}, loopback", f"{look:.2f}", f"{whole:.0f}", f"{look / whole:.2%}")
    console.print(table)


# -- memory ----------------------------------------------------------------------------------------------------------


def memory(field: str) -> float:
    """VmRSS or VmHWM of this process, in bytes."""
    with open("/proc/self/status") as status:
        return 1024.0 * next(int(line.split()[1]) for line in status if line.startswith(field))


def peak_node() -> float:
    """The peak memory in models, minus the memory before the first model."""
    before = memory("VmRSS")
    opt = wrapped(equal(LARGE), "ring")
    for _ in range(3):
        opt.step()
        opt.end_round()
    return (memory("VmHWM") - before) / (4 * LARGE)


def growth_node() -> float:
    """The growth of the process from round 100 on, in bytes."""
    opt = wrapped(equal(SMALL), "ring")
    before = 0.0
    for r in range(ROUNDS):
        if r == 100:
            before = memory("VmRSS")
        opt.step()
        opt.end_round()
    return memory("VmRSS") - before


def memories(console: Console) -> None:
    table = Table(title="Memory of ST-GT with SGD, two nodes")
    for heading in ("what", "found", "target"):
        table.add_column(heading, justify="left" if heading == "what" else "right")
    peak, growth = max(spawn(2, "peak_node")), max(spawn(2, "growth_node"))
    table.add_row(f"peak at {LARGE / 1e6:.0f} M parameters", f"{peak:.2f} models", "4 models and chunks")
    table.add_row(f"growth from round 100 to {ROUNDS:,}", f"{growth / 2**20:.2f} MB", "none")
    console.print(table)


# -- processes -------------------------------------------------------------------------------------------------------


def spawn(nodes: int, what: str, *arguments, namespaces: list[str] | None = None) -> list:
    """The answers of `nodes` processes that call the function `what`, each in its network namespace if there is one."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    address = "10.78.0.1" if namespaces else "127.0.0.1"
    here = 1 if namespaces else nodes
    world = {"WORLD_SIZE": nodes, "LOCAL_WORLD_SIZE": here, "MASTER_ADDR": address, "MASTER_PORT": port}
    command = [sys.executable, __file__, "--node", json.dumps([what, arguments])]
    before = [["ip", "netns", "exec", name] for name in namespaces] if namespaces else [[]] * nodes
    started = [
        subprocess.Popen(
            before[rank] + command,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ
            | {name: str(value) for name, value in (world | {"RANK": rank, "LOCAL_RANK": rank % here}).items()}
            | ({"GLOO_SOCKET_IFNAME": f"stgtbench{rank}"} if namespaces else {}),
        )
        for rank in range(nodes)
    ]
    answers = [one.communicate()[0] for one in started]
    if any(one.returncode for one in started):
        raise RuntimeError(f"a node of {what} failed; its output is above.")
    return [json.loads(answer) for answer in answers]


def node(what: str, arguments: list) -> None:
    torch.set_num_threads(1)
    stgt.torch.init("gloo")
    found = globals()[what](*arguments)
    dist.barrier()
    print(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "--node" in sys.argv:
        node(*json.loads(sys.argv[-1]))
    else:
        console = Console()
        steps(console)
        exchanges(console)
        guards(console)
        memories(console)
