"""A training run as one node makes it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from stgt.experiments.training.batches import Batches, normalised
from stgt.experiments.training.models import make_model
from stgt.experiments.training.spec import Training
from stgt.files import write_atomically, write_table
from stgt.problems.images import Images
from stgt.specs import call, make_algorithm, make_topology
from stgt.torch import DistributedOptimizer

TRAINING_SAMPLE = 512  # images of each node on which the training loss is measured
EVALUATION_BATCH = 250


class NodeTraining:
    """One node's part of a run: its model, data and optimiser."""

    def __init__(self, spec: Training, images: Images, device: torch.device):
        self.spec, self.device = spec, device
        self.rank, self.nodes = dist.get_rank(), dist.get_world_size()
        mine = spec.data.parts(images.y_train, self.nodes)[self.rank]
        self.batches = Batches(images, mine, spec.batch, spec.seed, self.rank, spec.data.augment)
        sample = np.random.default_rng(spec.data.seed).permutation(mine)[:TRAINING_SAMPLE]
        self.sample = self._ready(images.x_train[sample]), torch.from_numpy(images.y_train[sample])
        self.test = (
            self._ready(images.x_test[self.rank :: self.nodes]),
            torch.from_numpy(images.y_test[self.rank :: self.nodes]),
        )
        torch.manual_seed(spec.seed)
        model = make_model(spec.model.name, images.x_train.shape, images.classes, **spec.model.arguments)
        self.model: torch.nn.Module = model.to(device, memory_format=torch.channels_last)  # pyright: ignore
        self.opt = DistributedOptimizer(
            make_optimizer(spec, self.model),
            make_algorithm(spec.algorithm),
            make_topology(spec.topology.model_dump(), self.nodes),
            model=self.model,
            buffers=spec.buffers,
            seed=spec.seed,
            message_dtype=spec.message_dtype,
            early=spec.early,
        )
        self.rows: list[dict[str, Any]] = []

    def train(self, folder: Path, tick: Callable[[int], None]) -> list[dict[str, Any]]:
        """Trains to the last round, from the last checkpoint if there is one; returns the curve, a row a measurement.

        Rank 0 writes the curve into the folder at each measurement, and at the end the averaged model.
        """
        spec, opt, checkpoints = self.spec, self.opt, folder / "checkpoints"
        found = opt.load(checkpoints) if spec.checkpoint_every else None
        if found is not None:
            self.rows = found["extra"]["rows"]
        else:
            self._measure(folder)
        began = time.monotonic() - (self.rows[-1]["seconds"] if self.rows else 0.0)
        while opt.round < spec.rounds:
            before = opt.round
            self._step()
            if opt.round == before:
                continue
            tick(opt.round)
            last = opt.round == spec.rounds
            if last or opt.round % spec.evaluate_every == 0:
                self._measure(folder, time.monotonic() - began)
            if spec.checkpoint_every and (last or opt.round % spec.checkpoint_every == 0):
                opt.save(checkpoints, extra={"rows": self.rows})
        self._finish(folder)
        return self.rows

    def _step(self) -> None:
        if self.opt.active:  # a worker that the server has not called computes nothing
            x, y = self.batches.at(self.opt.steps_taken)
            self.opt.zero_grad()
            cross_entropy(self.model(self._placed(x)), y.to(self.device)).backward()
        self.opt.step()

    def _measure(self, folder: Path, seconds: float = 0.0) -> None:
        """A row of the curve: the averaged model on all nodes' samples of training data and on the test set."""
        opt = self.opt
        self.model.eval()
        with opt.averaged():
            loss, _ = evaluate(self.model, *self.sample)
            _, correct = evaluate(self.model, *self.test)
        self.model.train()
        numbers = torch.tensor([loss / len(self.sample[1]), correct, len(self.test[1])], dtype=torch.float64)
        metrics = opt.metrics()
        numbers = torch.cat([numbers, torch.tensor([metrics["bytes_sent"]], dtype=torch.float64)]).to(self.device)
        dist.all_reduce(numbers)
        loss, correct, count, sent = numbers.tolist()
        self.rows.append(
            {
                "label": self.spec.name,
                "round": opt.round,
                "steps": opt.steps_taken,
                "train_loss": loss / self.nodes,
                "test_accuracy": correct / count,
                "bytes_sent": sent / self.nodes,
                "consensus_error": metrics["consensus_error"],
                "seconds": seconds,
            }
        )
        if self.rank == 0:
            write_table(folder / "curve.csv", self.rows)

    def _finish(self, folder: Path) -> None:
        """Each node's own accuracy on the whole test set's share it has, and the averaged model as a file."""
        self.model.eval()
        _, correct = evaluate(self.model, *self.test)
        own = torch.tensor([correct / len(self.test[1])], dtype=torch.float64, device=self.device)
        dist.all_reduce(own)
        self.rows[-1]["own_accuracy"] = own.item() / self.nodes
        with self.opt.averaged():
            tensors = {name: value.contiguous().cpu() for name, value in self.model.state_dict().items()}
            if self.rank == 0:
                write_atomically(folder / "model.safetensors", lambda path: save_file(tensors, str(path)))
        self.model.train()
        if self.rank == 0:
            write_table(folder / "curve.csv", self.rows)

    def _ready(self, images: np.ndarray) -> torch.Tensor:
        return normalised(images, self.spec.data.name).contiguous(memory_format=torch.channels_last)

    def _placed(self, x: torch.Tensor) -> torch.Tensor:
        return x.to(self.device, memory_format=torch.channels_last)


@torch.inference_mode()
def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, int]:
    """The summed loss and the number of right answers."""
    loss, correct, device = 0.0, 0, next(model.parameters()).device
    for images, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
        scores, labels = model(images.to(device)), labels.to(device)
        loss += cross_entropy(scores, labels, reduction="sum").item()
        correct += int((scores.argmax(dim=1) == labels).sum())
    return loss, correct


def make_optimizer(spec: Training, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimiser that the spec names, over the model's parameters."""
    name = spec.optimizer.name
    kind = getattr(torch.optim, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
        raise ValueError(f"optimizer.name={name!r}: give a class of torch.optim, such as 'SGD' or 'AdamW'.")
    if "lr" not in spec.optimizer.arguments:
        raise ValueError("optimizer.lr was left out: give the stepsize, such as lr = 0.05.")
    return call(kind, {"params": model.parameters(), **spec.optimizer.arguments}, "optimizer", name)
