"""One node of a two-process training by a method of one's own: SCRIPT, RESULT; the rest as torchrun would set it."""

import json
import sys
from pathlib import Path

import torch

import stgt
from stgt._internal.registry import ALGORITHMS, PROBLEMS, import_script
from stgt.torch import DistributedOptimizer, init

ROUNDS, TAU, GAMMA, BETA, P = 15, 4, 0.05, 0.4, 3

if __name__ == "__main__":
    import_script(sys.argv[1])
    torch.set_num_threads(1)
    rank = init(timeout=60)
    data = PROBLEMS["own_least_squares"](2, P, 0.0).data
    A, b = torch.from_numpy(data["A"][rank]), torch.from_numpy(data["b"][rank])
    model = torch.nn.Module()
    model.x = torch.nn.Parameter(torch.zeros(P, dtype=torch.float64))
    method = ALGORITHMS["OneVector"](tau=TAU, beta=BETA)
    optimizer = DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=GAMMA),
        method,
        stgt._internal.registry.TOPOLOGIES["breathing"](2),
        model=model,
    )
    while optimizer.round < ROUNDS:
        optimizer.zero_grad()
        (0.5 * model.x @ A @ model.x - b @ model.x).backward()
        optimizer.step()
    c = optimizer.buckets[0].state["c"][:P]
    Path(sys.argv[2]).write_text(json.dumps({"x": model.x.tolist(), "c": c.tolist()}))
    torch.distributed.destroy_process_group()
