"""A training that makes the calls it is told: walk.py FOLDER CALLS OF EACH RANK AS JSON

Says "ended: well [WEIGHTS]" or "ended: TYPE: WORDS".
"""

import json
import sys
from pathlib import Path

import torch
from scenarios_use import Quadratic, loss_of

import stgt
from stgt.torch import DistributedOptimizer, LostNodeError, failure_detector, init

TAU, RATE, TIMEOUT = 3, 0.1, 4.0


def main(folder: str, *calls: str) -> None:
    torch.set_num_threads(1)
    failure_detector.HEARTBEAT_INTERVAL = 0.1
    failure_detector.ABORT_GRACE, failure_detector.EXIT_GRACE = 3.0, 0.6
    rank = init(timeout=TIMEOUT)
    model = Quadratic()
    sgd = torch.optim.SGD(model.parameters(), lr=RATE)
    opt = DistributedOptimizer(sgd, stgt.STGT(tau=TAU), "complete", model=model)
    try:
        for call in json.loads(calls[rank]):
            make(call, model, opt, Path(folder))
    except (ValueError, LostNodeError) as error:
        print(f"ended: {type(error).__name__}: {error}", flush=True)
        if isinstance(error, ValueError):
            raise  # the other one hears of it
        sys.exit(3)
    print(f"ended: well {model().tolist()}", flush=True)


def make(call: str, model: Quadratic, opt: DistributedOptimizer, folder: Path) -> None:
    if call == "step":
        opt.zero_grad()
        loss_of(model, opt.rank).backward()
        opt.step()
    elif call == "evaluate":
        found = opt.evaluate(lambda: model().sum().item())
        assert abs(found["averaged"] - sum(found["own"]) / opt.nodes) < 1e-12
    elif call == "averaged":
        with opt.averaged():
            pass
    elif call == "metrics":
        assert opt.metrics().get("sum_c", 0.0) < 1e-12
    elif call in ("save", "load"):
        getattr(opt, call)(folder / "checkpoints")
    else:
        opt.end_round()
