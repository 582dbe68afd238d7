"""One node's part of a training run."""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn.functional import cross_entropy

from stgt._internal.checks import InputError, under
from stgt._internal.files import write_atomically
from stgt._internal.registry import MODELS
from stgt._internal.serialize import call
from stgt.study.spec import Named
from stgt.study.spec.training import LabelledData, Training
from stgt.torch import DistributedOptimizer, NonFiniteError
from stgt.torch.membership import this_node
from stgt.torch.train.data import Batches
from stgt.torch.train.run_folder import MODEL, Record

TRAINING_SAMPLE = 512  # samples per node on which the training loss is measured
EVALUATION_BATCH = 250


class NodeTraining:
    """One node's part of a run: its model, data and optimiser."""

    def __init__(self, spec: Training, data: LabelledData, device: torch.device):
        self.spec, self.device = spec, device
        self.rank, self.nodes = this_node()
        mine = spec.data.parts(data.y_train, self.nodes)[self.rank]
        self.batches = Batches(data, mine, spec.batch, spec.seed, self.rank, spec.data.augment)
        sample = np.random.default_rng(spec.data.seed).permutation(mine)[:TRAINING_SAMPLE]
        share = slice(self.rank, None, self.nodes)  # of the test set
        self.sample = _laid_out(*as_tensors(data, data.x_train[sample], data.y_train[sample]))
        self.test = _laid_out(*as_tensors(data, data.x_test[share], data.y_test[share]))
        torch.manual_seed(spec.seed)
        model = build_model(spec.model, data)
        self.model: torch.nn.Module = model.to(device, memory_format=torch.channels_last)  # pyright: ignore
        self.opt = DistributedOptimizer(
            build_optimizer(spec, self.model),
            spec.build_algorithm(),
            spec.build_topology(self.nodes),
            model=self.model,
            buffers=spec.buffers,
            seed=spec.seed,
            message_dtype=spec.message_dtype,
            on_nonfinite=spec.on_nonfinite,
            early=spec.early,
        )
        self.rows: list[dict[str, Any]] = []
        self._record: Record | None = None

    def train(
        self, folder: Path, tick: Callable[[int], None], print_line: Callable[[str], None]
    ) -> list[dict[str, Any]]:
        """Trains to the last round, from the last checkpoint if there is one. Returns the curve, a row a measurement.

        Rank 0 writes the curve into the folder and prints a line for each measurement. At the end it draws the curve
        and writes the averaged model. Raises a NonFiniteError if the training loss is not finite.

        Args:
            folder: of the run.
            tick: called with the number of completed rounds.
            print_line: called with the lines.
        """
        spec, opt, checkpoints = self.spec, self.opt, folder / "checkpoints"
        found = opt.load(checkpoints) if spec.checkpoint_every else None
        if found is not None:
            self.rows = found["extra"]["rows"]
        if self.rank == 0:
            self._record = Record(spec, self.nodes, folder, self.rows)
        if found is None:
            self._measure(print_line)
            if opt.spec.needs_initial_gradient:
                self._backward()
                opt.warm_start()
        began = time.monotonic() - self.rows[-1]["seconds"]
        while opt.round < spec.rounds:
            before = opt.round
            if opt.active:  # a worker that the server has not sampled computes nothing
                self._backward()
            opt.step()
            if opt.round == before:
                continue
            tick(opt.round)
            last = opt.round == spec.rounds
            if last or opt.round % spec.evaluate_every == 0:
                self._measure(print_line, time.monotonic() - began)
            if spec.checkpoint_every and (last or opt.round % spec.checkpoint_every == 0):
                opt.save(checkpoints, extra={"rows": self.rows})
        self._finish(folder)
        return self.rows

    def _backward(self) -> None:
        x, y = _laid_out(*self.batches.at(self.opt.steps_taken))
        self.opt.zero_grad()
        cross_entropy(self.model(x.to(self.device)), y.to(self.device)).backward()

    def _measure(self, print_line: Callable[[str], None], seconds: float = 0.0) -> None:
        """Adds a row to the curve: the averaged model on all nodes' training samples and on the test set."""
        opt = self.opt
        self.model.eval()
        with opt.averaged():
            loss, _ = evaluate(self.model, *self.sample)
            _, correct = evaluate(self.model, *self.test)
        self.model.train()
        metrics = opt.metrics()
        numbers = [loss / len(self.sample[1]), correct, len(self.test[1]), metrics["bytes_sent"]]
        loss, correct, count, sent = self._summed(numbers)
        if not math.isfinite(loss):
            raise NonFiniteError(f"round {opt.round}: the training loss is not finite: give a smaller optimizer.lr.")
        self.rows.append(
            {
                "label": self.spec.name,
                "round": opt.round,
                "steps": opt.steps_taken,
                "train_loss": loss / self.nodes,
                "test_accuracy": correct / count,
                "bytes_sent": sent / self.nodes,
                "consensus": metrics["consensus"],
                "seconds": seconds,
            }
        )
        if self._record is not None:
            self._record.add(self.rows, print_line)

    def _finish(self, folder: Path) -> None:
        """Adds each node's own accuracy on its share of the test set, and writes the curve and the averaged model."""
        self.model.eval()
        _, correct = evaluate(self.model, *self.test)
        (own,) = self._summed([correct / len(self.test[1])])
        self.rows[-1]["own_accuracy"] = own / self.nodes
        with self.opt.averaged():
            tensors = {name: value.contiguous().cpu() for name, value in self.model.state_dict().items()}
        self.model.train()
        if self._record is not None:
            self._record.finish(self.rows)
            write_atomically(folder / MODEL, lambda path: save_file(tensors, str(path)))

    def _summed(self, numbers: list[float]) -> list[float]:
        """The sums over all nodes."""
        with self.opt.membership.collective("a measurement"):
            return self.opt.membership.sum(torch.tensor(numbers, dtype=torch.float64, device=self.device)).tolist()


def as_tensors(data: LabelledData, x: np.ndarray, y: np.ndarray) -> tuple[torch.Tensor, torch.Tensor]:
    """Samples of a data set in the form that a model expects, and their labels."""
    return torch.from_numpy(data.inputs(x)), torch.from_numpy(y.astype(np.int64))


def _laid_out(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Images with their channels last in memory, which is the fastest order for convolutions."""
    return (x.contiguous(memory_format=torch.channels_last) if x.ndim == 4 else x), y


@torch.inference_mode()
def evaluate(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[float, int]:
    """The summed loss and the number of correct answers."""
    loss, correct, device = 0.0, 0, next(model.parameters()).device
    for samples, labels in zip(x.split(EVALUATION_BATCH), y.split(EVALUATION_BATCH), strict=True):
        scores, labels = model(samples.to(device)), labels.to(device)
        loss += cross_entropy(scores, labels, reduction="sum").item()
        correct += int((scores.argmax(dim=1) == labels).sum())
    return loss, correct


def build_model(named: Named, data: LabelledData) -> torch.nn.Module:
    """The registered model of that name for these data, with the arguments that the spec gives."""
    function = MODELS.find(named.name, "model.name")
    known = {"shape": data.shape, "classes": data.classes}
    for argument in known:
        if argument in named.arguments:
            raise InputError(("model", argument), hint=" is that of the data set: leave it out.")
    taken = inspect.signature(function).parameters
    given = {argument: value for argument, value in known.items() if argument in taken}
    with under("model"):
        model = call(function, named.arguments | given, named.name)
    if not isinstance(model, torch.nn.Module):
        raise InputError("model.name", named.name, f" returned a {type(model).__name__}: return a module.")
    return model


def build_optimizer(spec: Training, model: torch.nn.Module) -> torch.optim.Optimizer:
    """The optimiser that the spec names, over the model's parameters."""
    name = spec.optimizer.name
    kind = getattr(torch.optim, name, None)
    if not (isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer)) or kind is torch.optim.Optimizer:
        raise InputError("optimizer.name", name, "give a class of torch.optim, such as 'SGD' or 'AdamW'.")
    if "lr" not in spec.optimizer.arguments:
        raise InputError("optimizer.lr", hint=" was left out: give the stepsize, such as lr = 0.05.")
    with under("optimizer"):
        return call(kind, {"params": model.parameters(), **spec.optimizer.arguments}, name)
