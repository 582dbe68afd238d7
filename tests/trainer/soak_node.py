"""One node of the soak (soak.py): it trains until it is told the last round, and makes the faults that it is ordered.

It prints a line of JSON behind an @ for what the soak has to know: where it is, each change of the members, each pause.
"""

import faulthandler
import json
import logging
import os
import resource
import signal
import sys
import time
from contextlib import contextmanager, nullcontext
from pathlib import Path

import torch
from elastic_node import SIZE, quadratic

import stgt
from stgt.torch import DistributedOptimizer, init

TAU = 3
STATUS_INTERVAL = 0.2  # seconds between two lines that say where this node is
PAUSE = 0.3  # seconds between the ends of two rounds from which on it is told


def main(told):
    settings = json.loads(told)
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    torch.set_num_threads(1)
    logging.basicConfig(level=logging.INFO, format="%(created).3f %(message)s", stream=sys.stdout)
    say("start")
    init(elastic=True, timeout=settings["timeout"])
    Training(settings).run()


def say(what, **more):
    print("@" + json.dumps({"what": what, "time": time.time()} | more), flush=True)


class Training:
    """A quadratic, and the optimiser."""

    def __init__(self, settings):
        self.settings, self.folder = settings, Path(settings["folder"])
        self.orders = self.folder / f"orders-{os.getpid()}"
        self.last_round = self.folder / "last-round"
        self.A, self.b = quadratic(int(os.environ["STGT_NODE"].removeprefix("n")))
        self.x = torch.nn.Parameter(torch.zeros(SIZE, dtype=torch.float64))
        self.opt = DistributedOptimizer(
            torch.optim.SGD([self.x], lr=0.1),
            stgt.STGT(tau=TAU, beta=settings["beta"]),
            settings["topology"],
            model=None,
            chunk=4,
            min_nodes=settings["min_nodes"],
            on_nonfinite=settings["on_nonfinite"],
            patience=settings["patience"],
        )
        self.nan = self.full_disk = False
        self.slow, self.slow_until = 0.0, 0.0
        self.told, self.said, self.ended = 0.0, 0.0, time.time()
        self.end = None  # the last round, once it is known

    def run(self):
        opt = self.opt
        say("begin", id=opt.membership.node.id, **self.place())
        while self.end is None or opt.round < self.end:
            if opt.taken == 0:
                self.begin_round()
            opt.zero_grad()
            (self.x @ self.A @ self.x / 2 - self.b @ self.x).backward()
            if self.nan:
                self.x.grad.fill_(float("nan"))
                self.nan = False
            opt.step()
            time.sleep(self.slow if time.time() < self.slow_until else self.settings["sleep"])
        self.tell_changes()
        metrics = opt.metrics()
        say("end", x=self.x.tolist(), metrics=metrics, **self.place())

    def place(self):
        return {"round": self.opt.round, "epoch": self.opt.membership.epoch, "members": list(self.opt.members)}

    def begin_round(self):
        """Says what has happened, takes orders, and makes the calls that all nodes make now and then."""
        opt, now = self.opt, time.time()
        if now - self.ended > PAUSE:
            say("pause", since=self.ended, seconds=now - self.ended, round=opt.round)
        self.ended = now
        self.tell_changes()
        if now - self.said > STATUS_INTERVAL:
            self.said = now
            say("status", **self.place())
            if self.end is None and self.last_round.exists():
                self.end = int(self.last_round.read_text())
        if self.orders.exists():
            self.obey(json.loads(self.orders.read_text()))
            self.orders.unlink()
        if opt.round % self.settings["measure_every"] == 0 and (found := opt.metrics()):
            say("metrics", sum_c=found.get("sum_c"), round=opt.round, members=len(opt.members))
        if opt.round % self.settings["save_every"] == 1:
            self.save()

    def tell_changes(self):
        for event in list(self.opt.membership.events):
            if event["time"] > self.told:
                self.told = event["time"]
                say("change", event=event, id=self.opt.membership.node.id)

    def obey(self, order):
        what, seconds = order["what"], order.get("seconds", 0.0)
        say("obeys", order=what)
        if what == "leave":
            self.opt.leave()
        elif what == "hang":
            time.sleep(seconds)
        elif what == "slow":
            self.slow, self.slow_until = order["sleep"], time.time() + seconds
        elif what == "nan":
            self.nan = True
        elif what == "disk":
            self.full_disk = True

    def save(self):
        try:
            with no_space() if self.full_disk else nullcontext():
                self.opt.save(self.folder / "checkpoints")
        except ValueError as error:
            say("unsaved", why=str(error), mine=self.full_disk, round=self.opt.round)
        else:
            say("saved", round=self.opt.round)
        self.full_disk = False


@contextmanager
def no_space():
    """A write beyond 100 bytes fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
