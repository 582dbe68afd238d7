"""Your own model over several processes: torchrun --nproc-per-node 4 examples/own_model.py

Four sites hold different classes of a toy problem. Each exchanges messages with its neighbours after every 10th step.
"""

import torch
from torch.utils.data import DataLoader, TensorDataset

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init, node_split

rank = init()  # the process group, from torchrun's environment
torch.manual_seed(0)
centres = 3 * torch.randn(8, 20)
labels = torch.arange(4000) % 8
dataset = TensorDataset(centres[labels] + torch.randn(4000, 20), labels)
mine = node_split(dataset, "label", classes=2)  # this node's share: two of the eight classes
loader = DataLoader(mine, batch_sampler=ClockSampler(len(mine), batch=32))

model = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8))
opt = DistributedOptimizer(
    torch.optim.SGD(model.parameters(), lr=0.1),
    algorithm=stgt.STGT(tau=10, beta=0.25),
    topology="exponential",
    model=model,
)
loss_of = torch.nn.CrossEntropyLoss()
for x, y in opt.batches(loader, rounds=30):  # every node makes 30 rounds; the body of the loop does not change
    opt.zero_grad()
    loss_of(model(x), y).backward()
    opt.step()


def accuracy() -> float:
    model.eval()
    with torch.no_grad():
        right = (model(dataset.tensors[0]).argmax(dim=1) == labels).float().mean().item()
    model.train()
    return right


found, metrics = opt.evaluate(accuracy), opt.metrics()
if rank == 0:
    own = ", ".join(f"{value:.3f}" for value in found["own"])
    print(f"accuracy on all classes: {found['averaged']:.3f} averaged; each node's own: {own}")
    print(f"sent {metrics['bytes_sent'] / 1e6:.2f} MB, consensus error {metrics['consensus']:.2e}")
