"""Your model with Lightning: torchrun --nproc-per-node 2 examples/lightning_training.py [--manual]

Two sites hold different classes of a toy problem. For Lightning, each site is a separate training on one device, so it
neither wraps the model nor splits the data. Only the optimiser communicates: the sites exchange messages after every
third step.
"""

import sys

import torch
from lightning import LightningModule, Trainer
from torch.utils.data import DataLoader, TensorDataset

import stgt
from stgt.torch import ClockSampler, DistributedOptimizer, init, node_split


class Classifier(LightningModule):
    def __init__(self, manual: bool):
        super().__init__()
        self.automatic_optimization = not manual
        self.net = torch.nn.Sequential(torch.nn.Linear(20, 64), torch.nn.ReLU(), torch.nn.Linear(64, 4))

    def configure_optimizers(self):  # here the model is already on its device, as DistributedOptimizer requires
        base = torch.optim.SGD(self.parameters(), lr=0.1)
        self.opt = DistributedOptimizer(base, algorithm=stgt.STGT(tau=3), topology="complete", model=self)
        scheduler = torch.optim.lr_scheduler.ExponentialLR(self.opt, 0.99)  # on the optimiser that is returned
        return [self.opt], [{"scheduler": scheduler, "interval": "step"}]

    def training_step(self, batch, index):
        x, y = batch
        loss = torch.nn.functional.cross_entropy(self.net(x), y)
        if not self.automatic_optimization:  # manual optimisation: Lightning's usual four lines
            self.optimizers().zero_grad()
            self.manual_backward(loss)
            self.optimizers().step()
            self.lr_schedulers().step()
        return loss

    # Validation uses the average of all nodes' models. All nodes reach this point after the same number of steps.
    def on_validation_start(self):
        self.average = self.opt.averaged()
        self.average.__enter__()

    def validation_step(self, batch, index):
        x, y = batch
        right = (self.net(x).argmax(dim=1) == y).float().mean()
        self.log("accuracy", right)  # the same on every node

    def on_validation_end(self):
        self.average.__exit__(None, None, None)


rank = init()  # the process group, from torchrun's environment
torch.manual_seed(0)
centres = 3 * torch.randn(4, 20)
labels = torch.arange(2000) % 4
dataset = TensorDataset(centres[labels] + torch.randn(2000, 20), labels)
mine = node_split(dataset, "label", classes=2)  # this node's share: two of the four classes
model = Classifier(manual="--manual" in sys.argv)
trainer = Trainer(
    devices=1,  # of this process; with GPUs, [int(os.environ["LOCAL_RANK"])]
    max_steps=90,  # 30 rounds of tau = 3; the number of epochs may differ between nodes, the number of steps may not
    val_check_interval=30,
    gradient_clip_val=None if "--manual" in sys.argv else 1.0,  # clips before the correction is added
    default_root_dir=f"runs/lightning/node-{rank}",  # one per node, because every process is rank zero for Lightning
    logger=False,
    enable_checkpointing=False,
    enable_model_summary=False,
    enable_progress_bar=False,
)
trainer.fit(model, DataLoader(mine, batch_sampler=ClockSampler(len(mine), batch=32)), DataLoader(dataset, 500))

if rank == 0:
    found = trainer.callback_metrics["accuracy"].item()
    print(f"accuracy of the averaged model on all classes: {found:.3f} after {model.opt.round} rounds")
