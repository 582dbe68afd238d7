"""Your own loop with Accelerate: torchrun --nproc-per-node 2 examples/accelerate_training.py

Two sites hold different classes of a toy problem. At each site Accelerate sees one process only, so it neither wraps
the model nor splits the batches. Only the optimiser communicates: the sites exchange messages after every third step.
"""

import os

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init, node_split

rank = init()  # the process group, from torchrun's environment
for name in ("LOCAL_RANK", "WORLD_SIZE"):  # without these, Accelerate does not average gradients with other processes
    os.environ.pop(name, None)
accelerator = Accelerator(gradient_accumulation_steps=2)
assert accelerator.num_processes == 1

torch.manual_seed(0)
centres = 3 * torch.randn(4, 20)
labels = torch.arange(2000) % 4
dataset = TensorDataset(centres[labels] + torch.randn(2000, 20), labels)
mine = node_split(dataset, "label", classes=2)  # this node's share: two of the four classes
loader = DataLoader(mine, batch_sampler=ClockSampler(len(mine), batch=16))

model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))
model = accelerator.prepare(model)  # moves it to its device, before DistributedOptimizer is made
base = torch.optim.SGD(model.parameters(), lr=0.1)
opt = DistributedOptimizer(base, algorithm=stgt.STGT(tau=3), topology="complete", model=model)
scheduler = torch.optim.lr_scheduler.ExponentialLR(opt, 0.99)
stepper, scheduler, loader = accelerator.prepare(opt, scheduler, loader)  # to evaluate and to save, use `opt` itself

loss_of = torch.nn.CrossEntropyLoss()
for x, y in opt.batches(loader, rounds=30):  # every node makes 30 rounds, which are 90 steps of two batches each
    with accelerator.accumulate(model):
        accelerator.backward(loss_of(model(x), y))
        if accelerator.sync_gradients:
            accelerator.clip_grad_norm_(model.parameters(), 1.0)  # clips before the correction is added
        stepper.step()
        scheduler.step()
        stepper.zero_grad()


def accuracy() -> float:
    x, y = (tensor.to(accelerator.device) for tensor in dataset.tensors)
    with torch.no_grad():
        return (model(x).argmax(dim=1) == y).float().mean().item()


found = opt.evaluate(accuracy)
with opt.averaged():  # all nodes must enter; one of them writes
    if rank == 0:
        accelerator.save_model(model, "runs/accelerate")
if rank == 0:
    print(f"accuracy of the averaged model on all classes: {found['averaged']:.3f} after {opt.round} rounds")
