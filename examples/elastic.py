"""Elastic training: nodes may leave, fail and join. On one machine, run each command in its own terminal:

    stgt lighthouse
    export TORCHFT_LIGHTHOUSE=http://127.0.0.1:29510
    SITE=0 python examples/elastic.py
    SITE=1 python examples/elastic.py
    SITE=2 python examples/elastic.py

Kill a node (kill -9), let one leave cleanly (kill), and start it again: the others keep training. SITE selects the
node's data. For several machines, run `stgt lighthouse --bind 0.0.0.0` on one of them, and give its address to all
nodes; see docs/elastic.md.
"""

import logging
import os
import time

import torch

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init

ROUNDS, CLASSES, PAUSE = int(os.environ.get("ROUNDS", "1000")), 6, 0.005
logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")  # prints a line for each change of members
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
    topology="exponential",  # built again whenever the number of nodes changes
    model=model,
    min_nodes=2,
)
opt.load("runs/elastic")  # a newcomer already has the others' model, and load does not read the files
while opt.round < ROUNDS:
    if opt.taken == 0 and opt.round and opt.round % 100 == 0:  # before the steps, because a newcomer begins here
        with torch.no_grad():
            right = (model(inputs).argmax(dim=1) == labels).float().mean()
        print(f"round {opt.round}: {len(opt.members)} nodes, accuracy on all classes {right:.3f}", flush=True)
        opt.save("runs/elastic")
    batch = mine[sampler.at(opt.steps_taken)]
    opt.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
    loss.backward()
    opt.step()  # every fifth step ends a round; changes of the members take effect there
    time.sleep(PAUSE)  # slows the training down, so that you can watch it
