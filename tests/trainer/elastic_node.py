"""One node of an elastic training, on a quadratic or a small network, which may kill itself; see elastic_runs.py."""

import json
import logging
import os
import signal
import sys
import time
from pathlib import Path

import torch

import stgt
from stgt.torch import DistributedOptimizer, init
from stgt.torch.exchange import MessageExchange

SIZE = 8
ALGORITHMS = {
    "ST-GT": stgt.STGT(tau=3),
    "LED": stgt.LED(tau=3),
    "K-GT": stgt.KGT(tau=3, eta_s=0.9),
    "Outer": stgt.Outer(stgt.STGT(tau=3, beta=0.5), lr=0.9, momentum=0.3),
    "Scaffold⁺": stgt.ScaffoldPlus(tau=3),
    "ProxSkip": stgt.ProxSkip(p=0.5),
}


def quadratic(k):
    """A and b of f_k(x) = xᵀAx/2 − bᵀx."""
    generator = torch.Generator().manual_seed(k)
    root = torch.rand(SIZE, SIZE, dtype=torch.float64, generator=generator) / SIZE**0.5
    return root @ root.T / 3 + torch.eye(SIZE, dtype=torch.float64) / 2, torch.randn(
        SIZE, dtype=torch.float64, generator=generator
    )


def minimiser(numbers):
    """Of the sum of these nodes' functions, from the normal equations."""
    parts = [quadratic(k) for k in numbers]
    return torch.linalg.solve(sum(A for A, _ in parts), sum(b for _, b in parts))


def main(*arguments):
    settings = json.loads(arguments[0])
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    init(elastic=True, timeout=settings["timeout"])
    k = int(os.environ["STGT_NODE"].removeprefix("n"))
    A, b = quadratic(k)
    x = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
    Killer(settings.get("kill"))
    options = {name: settings[name] for name in ("patience", "tau", "min_nodes", "on_nonfinite") if name in settings}
    opt = DistributedOptimizer(
        torch.optim.SGD([x], lr=settings.get("lr", 0.2), momentum=settings.get("momentum", 0.0)),
        ALGORITHMS[settings.get("algorithm", "ST-GT")],
        settings.get("topology", "exponential"),
        model=None,
        chunk=settings.get("chunk", SIZE),
        **options,
    )
    say("begin", opt, x)
    if "checkpoints" in settings:
        found = opt.load(settings["checkpoints"])
        say("loaded", opt, x, found=found and found["round"])
    if settings.get("serve"):
        say("serving", opt, x, address=opt.serve_status())
    stop, beat = Path(settings["stop"]), 0.0
    while opt.round < (int(stop.read_text()) if stop.exists() else settings.get("rounds", 1_000_000)):
        if opt.taken == 0:
            every = settings.get("save_every")
            if every and opt.round and opt.round % every == 0:
                opt.save(settings["checkpoints"])
                say("saved", opt, x)
            if time.monotonic() - beat > settings.get("beat", 0.05):
                beat = time.monotonic()
                say("round", opt, x)
            if opt.round == settings.get("leave_at"):
                opt.leave()
            if opt.round == settings.get("hang_at"):
                time.sleep(1000)
            if opt.round == settings.get("evaluate_at") or opt.round in settings.get("evaluate", ()):
                say("evaluated", opt, x, found=opt.evaluate(lambda: float(x.detach()[0])))
        opt.zero_grad()
        (x @ A @ x / 2 - b @ x).backward()
        if opt.round == settings.get("nan_at"):
            x.grad.fill_(float("nan"))
        opt.step()
        time.sleep(settings.get("sleep", 0.0))
    metrics = opt.metrics()
    say("end", opt, x, metrics=metrics, events=list(opt.membership.events))


def say(what, opt, x, **more):
    numbers = [int(str(one).partition(":")[0].removeprefix("n")) for one in opt.members]
    line = {"what": what, "time": time.time(), "round": opt.round, "members": numbers, "x": x.tolist()}
    print("@" + json.dumps(line | more), flush=True)


class Killer:
    """Kills this process in an exchange: {"round": r, "merged": m} after m of its chunks are merged there.

    "after" in the place of "round" counts the rounds from the node's first one.
    """

    def __init__(self, when):
        if when is None:
            return
        merge, merged = MessageExchange._merge, {"round": -1, "count": 0}

        def counted(exchange, item):
            here = exchange.membership.round
            when.setdefault("round", here + when.get("after", 0))
            if merged["round"] != here:
                merged.update(round=here, count=0)
            if here == when["round"] and merged["count"] == when["merged"]:
                os.kill(os.getpid(), getattr(signal, when.get("signal", "SIGKILL")))
            merge(exchange, item)
            merged["count"] += 1

        MessageExchange._merge = counted
