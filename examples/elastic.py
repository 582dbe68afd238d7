"""Training that nodes may leave and join. On one machine, in a terminal each:

    stgt lighthouse
    export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
    SITE=0 python examples/elastic.py
    SITE=1 python examples/elastic.py
    SITE=2 python examples/elastic.py

Kill one of them (kill -9), stop one in order (kill), start it again: the others train on. SITE says whose data it has.
Over several machines: `stgt lighthouse --bind 0.0.0.0` on one, and its address at all; see docs/elastic.md.
"""

import logging
import os
import time

import torch

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init

ROUNDS, CLASSES, PAUSE = int(os.environ.get("ROUNDS", "1000")), 6, 0.005
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # a line for each change of the members
init(elastic=True, timeout=60)  # no torchrun: the nodes find each other through the lighthouse
site = int(os.environ.get("SITE", "0"))

torch.manual_seed(0)
centres = 2 * torch.randn(CLASSES, 20)
labels = torch.arange(1200) % CLASSES
inputs = centres[labels] + torch.randn(1200, 20)
mine = torch.nonzero(labels // 2 == site % 3).flatten()  # this site's data: two of the six classes
sampler = ClockSampler(len(mine), batch=32, node=site)

model = torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, CLASSES))
opt = DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.05),
    stgt.STGT(tau=5, beta=0.25),
    topology="exponential",  # made anew for as many nodes as there are
    model=model,
    min_nodes=2,
)
opt.load("runs/elastic")  # a newcomer has the others' model by now, and load says so
while opt.round < ROUNDS:
    if opt.taken == 0 and opt.round and opt.round % 100 == 0:  # before the steps: newcomers come here first
        with torch.no_grad():
            right = (model(inputs).argmax(dim=1) == labels).float().mean()
        print(f"round {opt.round}: {len(opt.members)} nodes, accuracy on all classes {right:.3f}", flush=True)
        opt.save("runs/elastic")
    batch = mine[sampler.at(opt.steps_taken)]
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    loss.backward()
    opt.step()  # every fifth one ends a round; what has happened to the members is taken over there
    time.sleep(PAUSE)  # so that you can watch
