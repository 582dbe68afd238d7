"""The nodes of benchmarks/elastic.py: the code of each forked process, which runs until it is killed."""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import stgt
import stgt.torch
from reproductions.training.forked import say
from reproductions.training.models import lenet

SMALL = (20, 64, 10)  # inputs, hidden units and classes of the small model: 1,994 parameters
SAMPLES = 512  # per node
SIZE = 20  # the dimension of the quadratic problem
TIME_OUT = 5.0  # seconds until a node without progress counts as lost


def model_and_data(name: str, k: int) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, the same at all nodes, and node k's samples."""
    torch.manual_seed(0)
    inputs, hidden, classes = SMALL
    model = (
        lenet() if name == "lenet" else nn.Sequential(nn.Linear(inputs, hidden), nn.ReLU(), nn.Linear(hidden, classes))
    )
    generator = torch.Generator().manual_seed(k + 1)
    shape = (SAMPLES, 1, 28, 28) if name == "lenet" else (SAMPLES, inputs)
    return model, torch.randn(shape, generator=generator), torch.randint(classes, (SAMPLES,), generator=generator)


class Steps:
    """Local steps on minibatches, without the optimiser's step. SIGUSR1 makes the next step hang."""

    def __init__(self, name: str, k: int, batch: int):
        self.model, self.x, self.y = model_and_data(name, k)
        self.batch, self.number, self.hangs = batch, 0, False
        signal.signal(signal.SIGUSR1, self._hang)

    def _hang(self, *_: Any) -> None:
        self.hangs = True

    def gradient(self, optimizer: Any) -> None:
        if self.hangs:
            time.sleep(1000)
        begin = self.number * self.batch % (SAMPLES - self.batch)
        self.number += 1
        optimizer.zero_grad()
        cross_entropy(self.model(self.x[begin : begin + self.batch]), self.y[begin : begin + self.batch]).backward()


# -- ours ------------------------------------------------------------------------------------------------------------


def ours(told: dict[str, Any]) -> None:
    """A node with `init(elastic=True)`, or with a fixed membership in torchrun's environment."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    if told["elastic"]:
        stgt.torch.init(elastic=True, timeout=TIME_OUT)
    else:
        stgt.torch.init("gloo")
    steps = Steps(told["model"], told["k"], told["batch"])
    opt = stgt.torch.DistributedOptimizer(
        torch.optim.SGD(steps.model.parameters(), lr=0.05),
        stgt.algorithms.STGT(tau=told["tau"], beta=0.25),
        "exponential" if told["elastic"] else stgt.topology.exponential(told["nodes"]),
        model=steps.model,
        **({"min_nodes": told["min_nodes"]} if told["elastic"] else {}),
    )
    measured, before = told.get("measured"), (0, 0.0, 0.0)
    while True:
        for _ in range(told["tau"]):
            steps.gradient(opt)
            opt.step()
        if measured is None:
            events = opt.membership.events  # pyright: ignore
            lost = [event for event in events if event["lost"]]
            say("round", round=opt.round, nodes=opt.nodes, cost=lost[-1]["seconds"] if lost else None)
        elif opt.round == measured[0]:
            before = opt.round, time.perf_counter(), time.process_time()
        elif opt.round == measured[1]:
            now = opt.round, time.perf_counter(), time.process_time()
            say("measured", rounds=now[0] - before[0], seconds=now[1] - before[1], cpu=now[2] - before[2])
            time.sleep(1000)  # until it is killed


# -- torchft's -------------------------------------------------------------------------------------------------------


def torchft(told: dict[str, Any]) -> None:
    """A replica under torchft's LocalSGD or DiLoCo, set up as in its tests on the CPU."""
    from torch.distributed import TCPStore
    from torchft.local_sgd import DiLoCo, LocalSGD
    from torchft.manager import Manager
    from torchft.process_group import ProcessGroupGloo

    torch.set_num_threads(1)
    logging.disable(logging.INFO)
    steps, tau = Steps(told["model"], told["k"], told["batch"]), told["tau"]
    inner = torch.optim.SGD(steps.model.parameters(), lr=0.05)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)

    def load(state: dict[str, Any]) -> None:
        steps.model.load_state_dict(state["model"])
        steps.model.to("cpu")
        inner.load_state_dict(state["inner"])

    manager = Manager(
        pg=ProcessGroupGloo(timeout=timedelta(seconds=10)),
        min_replica_size=2,
        load_state_dict=load,
        state_dict=lambda: {"model": steps.model.state_dict(), "inner": inner.state_dict()},
        replica_id=f"n{told['k']}",
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        lighthouse_addr=os.environ["TORCHFT_LIGHTHOUSE"],
        hostname="127.0.0.1",
        use_async_quorum=False,
        timeout=timedelta(seconds=10),
    )
    if told["method"] == "LocalSGD":
        method = LocalSGD(manager, steps.model, inner, sync_every=tau)
    else:
        outer = torch.optim.SGD(steps.model.parameters(), lr=0.7, momentum=0.9, nesterov=True)
        method = DiLoCo(manager, [steps.model], inner, outer, sync_every=tau)
    done = manager.current_step()
    with method:
        while True:
            for _ in range(tau):
                steps.gradient(inner)
                inner.step()
            if manager.current_step() != done:  # equal if the synchronisation failed
                done = manager.current_step()
                say("round", round=done, nodes=manager.num_participants(), cost=None)


# -- stragglers ------------------------------------------------------------------------------------------------------


def quadratic(k: int) -> tuple[Tensor, Tensor]:
    """A and b of f_k(x) = xᵀAx/2 − bᵀx, different at each node, with curvatures from ½ to 2."""
    generator = torch.Generator().manual_seed(k)
    basis, _ = torch.linalg.qr(torch.randn(SIZE, SIZE, dtype=torch.float64, generator=generator))
    curvature = torch.linspace(0.5, 2.0, SIZE, dtype=torch.float64)
    return basis @ torch.diag(curvature) @ basis.T, torch.randn(SIZE, dtype=torch.float64, generator=generator)


def straggler(told: dict[str, Any]) -> None:
    """A node on a quadratic. It logs when its model's loss over all nodes is first within `target` of the minimum."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    torch.set_num_threads(1)
    parts = [quadratic(k) for k in range(told["nodes"])]
    whole, mean = sum(A for A, _ in parts) / len(parts), sum(b for _, b in parts) / len(parts)
    least = torch.linalg.solve(whole, mean)
    A, b = parts[told["k"]]
    stgt.torch.init(elastic=True, timeout=60.0)
    x = nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    options = {name: told[name] for name in ("patience", "auto") if told[name]}
    if options.pop("auto", False):
        options["tau"] = "auto"
    algorithm = getattr(stgt.algorithms, told["method"])(tau=told["tau"])
    opt = stgt.torch.DistributedOptimizer(
        torch.optim.SGD([x], lr=told["lr"]), algorithm, "complete", model=None, min_nodes=told["nodes"], **options
    )
    say("begins", round=opt.round)
    close, rounds = False, 0
    while True:
        if opt.taken == 0 and not close:
            away = x.detach() - least
            if float(away @ whole @ away) / 2 <= told["target"]:
                close = True
                say("close", round=opt.round)
        opt.zero_grad()
        (x @ A @ x / 2 - b @ x).backward()
        time.sleep(told["seconds"])
        opt.step()
        if opt.taken == 0:
            rounds += 1
            say("round", round=opt.round)
