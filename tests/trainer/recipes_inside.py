"""The second way of docs/recipes.md: inside the processes of Lightning, Accelerate and transformers, in their group.

Each returns what the examples of the first way have as globals.
"""

import torch
from torch.utils.data import DataLoader, Subset, TensorDataset

import stgt
from stgt.torch import DistributedOptimizer, node_split


def classes(rank: int, nodes: int) -> tuple[TensorDataset, Subset]:
    """A toy problem, and a node's share of it: there may be no process group yet for `node_split`."""
    torch.manual_seed(0)
    labels = torch.arange(400) % 4
    dataset = TensorDataset(3 * torch.randn(4, 20)[labels] + torch.randn(400, 20), labels)
    return dataset, Subset(dataset, torch.arange(400)[labels // 2 % nodes == rank].tolist())


def network() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(20, 16), torch.nn.ReLU(), torch.nn.Linear(16, 4))


def lightning(rank: int, nodes: int) -> dict:
    from lightning import LightningModule, Trainer
    from lightning.pytorch.strategies import DDPStrategy

    class LocalSteps(DDPStrategy):
        """Lightning's processes and group, and a model that stays bare."""

        def setup(self, trainer):
            super(DDPStrategy, self).setup(trainer)  # without DDP, and without a copy of rank 0's weights
            trainer.fit_loop.epoch_loop._broadcast_sigterm_tensor = lambda: None  # Lightning's talk before each batch

        def _setup_model(self, model):
            return model

    class Classifier(LightningModule):
        def __init__(self):
            super().__init__()
            self.net = network()

        def configure_optimizers(self):
            self.opt = DistributedOptimizer(
                torch.optim.SGD(self.parameters(), lr=0.1), stgt.STGT(tau=3), topology="complete", model=self
            )
            return self.opt

        def training_step(self, batch, index):
            x, y = batch
            return torch.nn.functional.cross_entropy(self.net(x), y)

        def validation_step(self, batch, index):
            self.log("rank", float(self.global_rank), sync_dist=True)

    dataset, mine = classes(rank, nodes)
    model, loader = Classifier(), DataLoader(mine, 10, shuffle=True)
    quiet = {
        "logger": False,
        "enable_checkpointing": False,
        "enable_model_summary": False,
        "enable_progress_bar": False,
    }
    trainer = Trainer(
        strategy=LocalSteps(),
        accelerator="cpu",
        devices=nodes,  # the processes of this machine
        use_distributed_sampler=False,  # the data are this node's own already
        max_steps=30,
        **quiet,
    )
    trainer.fit(model, loader)
    (found,) = trainer.validate(model, DataLoader(dataset, 200), verbose=False)
    return {"model": model, "opt": model.opt, "mine": mine, "dataset": dataset, "mean": found["rank"]}


def accelerate(rank: int, nodes: int) -> dict:
    from accelerate import Accelerator

    dataset, mine = classes(rank, nodes)
    model, loader = network(), DataLoader(mine, 10, shuffle=True)

    accelerator = Accelerator(cpu=True)  # makes the process group, if there is none
    model = accelerator.prepare_model(model, evaluation_mode=True)  # its device and precision, and no DDP
    base = torch.optim.SGD(model.parameters(), lr=0.1)
    opt = DistributedOptimizer(base, stgt.STGT(tau=3), topology="complete", model=model)
    stepper = accelerator.prepare_optimizer(opt)
    # Neither the loader nor a scheduler is prepared: one would be split again, the other step once for each process.
    for x, y in opt.batches(loader, rounds=10):
        stepper.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(x.to(accelerator.device)), y.to(accelerator.device))
        accelerator.backward(loss)
        stepper.step()

    mean = accelerator.reduce(torch.tensor(float(accelerator.process_index)), "mean").item()
    return {"model": model, "opt": opt, "mine": mine, "dataset": dataset, "mean": mean}


def trainer(rank: int, nodes: int) -> dict:
    from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

    class LocalStepsTrainer(Trainer):
        """The Trainer's processes and group, a model that stays bare, and data that are this node's own already."""

        def create_accelerator_and_postprocess(self):
            super().create_accelerator_and_postprocess()
            prepare = self.accelerator.prepare_model
            self.accelerator.prepare_model = lambda model, **_: prepare(
                model, device_placement=False, evaluation_mode=True
            )

        def get_train_dataloader(self):
            return DataLoader(self.train_dataset, self._train_batch_size, shuffle=True, collate_fn=self.data_collator)

        def create_optimizer(self, model=None):  # the Trainer has moved the model to its device by now
            if self.optimizer is None:
                base = torch.optim.SGD(self.model.parameters(), lr=self.args.learning_rate)
                self.opt = DistributedOptimizer(base, stgt.STGT(tau=3), topology="complete", model=self.model)
                self.optimizer = self.opt
            return self.optimizer

    arguments = TrainingArguments(
        use_cpu=True,
        average_tokens_across_devices=False,  # a node's loss is the mean over its own tokens
        learning_rate=0.1,
        max_steps=30,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_strategy="no",
        logging_strategy="no",
        disable_tqdm=True,
        dataloader_pin_memory=False,
    )
    strides, starts, place = torch.arange(320) % 4, torch.arange(320) // 4 % 16, torch.arange(12)
    tokens = (starts[:, None] + strides[:, None] * place) % 16
    labels = torch.where(place < 12 - 2 * strides[:, None], tokens, -100)  # of as many tokens as the stride leaves
    dataset = [{"input_ids": row, "labels": label} for row, label in zip(tokens, labels, strict=True)]
    mine = node_split(dataset, "label", labels=strides, classes=4 // nodes)
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=16, max_position_embeddings=16, **sizes))
    made = LocalStepsTrainer(model, arguments, train_dataset=mine)
    made.train()
    return {"model": model, "opt": made.opt, "mine": mine, "dataset": dataset}
