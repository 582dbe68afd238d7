"""A client's local steps: a user's model, optimiser, batches and loss, with the method's correction in each step."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from logging import ERROR
from typing import Any

import torch
from flwr.common.logger import log
from torch import Tensor, nn

from stgt._internal.checks import check_count
from stgt.algorithms import Algorithm
from stgt.flower.memory import Memory
from stgt.flower.reply import Arrays, Crashed, Reply, differs
from stgt.torch.buckets import Bucket, make_buckets
from stgt.torch.local_steps import LocalSteps
from stgt.torch.validate import check_divided, is_plain


@dataclass
class Task:
    """What a client trains.

    Attributes:
        model: its weights are overwritten by the server's.
        optimizer: over the model's parameters; its lr is the method's gamma. A new one each round. What it does not
            hold, or what does not require a gradient, is not trained: the server's arrays may lack it.
        batches: as many as there are steps; a loader that ends earlier makes the round shorter, which is allowed. More
            than one is refused where tau is 1, the default of methods with local steps, and `steps` is left out.
        loss: the train step: `loss(model, batch)`, a number to differentiate.
        steps: local steps of this client, if not the method's tau; a client may take more or fewer than others.
        evaluate: `evaluate(model)` gives numbers by name, for the server's rounds of evaluation.
        metrics: numbers by name that go with each reply, such as {"num-examples": 600}.
    """

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Iterable[Any]
    loss: Callable[[nn.Module, Any], Tensor]
    steps: int | None = None
    evaluate: Callable[[nn.Module], Mapping[str, float]] | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)


@contextmanager
def users_code(what: str) -> Iterator[None]:
    """What a user's own code raises stands in the client's log with its traceback, and goes on to the server."""
    try:
        yield
    except Exception as error:
        log(ERROR, "%s raised an exception", what, exc_info=True)
        if isinstance(error, ValueError):
            raise Crashed(f"{what} raised ValueError: {error}") from error
        raise


class Worker:
    """A model's local steps.

    Args:
        task: the user's.
        algorithm: the method.
        sent: the server's arrays, those which are not trained included.
        scale: what the loss is multiplied by, n times the client's weight; None if all weigh the same.
    """

    def __init__(self, task: Task, algorithm: Algorithm, sent: Arrays, scale: float | None):
        self.task, self.algorithm, self.model, self.optimizer = task, algorithm, task.model, task.optimizer
        self.sent, self.scale, self.taken = sent, scale, 0
        self.trained, self.tied = _trained(task)
        load(self.model, sent, self.tied, self.trained)
        self.names = {id(value): name for name, value in self.model.named_parameters()}
        self.blocks = make_buckets(self.optimizer.param_groups)
        check_divided(self.algorithm, self.optimizer)
        self.plain = is_plain(self.optimizer)
        if scale is not None and not isinstance(self.optimizer, torch.optim.SGD):
            raise ValueError(
                f'weights="num_examples" multiplies the loss, which {type(self.optimizer).__name__} divides out again: '
                'use SGD, with momentum or without, or weights="equal".'
            )
        self.steps = LocalSteps(self.algorithm, self.blocks, self.plain)
        self.unknown = {name: value for name, value in self._buffers().items() if name not in sent}

    @property
    def untrained(self) -> Arrays:
        """The server's arrays that are not trained, each once."""
        return {name: array for name, array in self.sent.items() if name not in self.trained and name not in self.tied}

    def begin(self, memory: Memory) -> None:
        """Puts the method's state in place."""
        missing = set(self.trained) - memory.view["x"].keys()
        if missing:
            raise ValueError(
                f"{min(missing)} is trained by this client and not by the others: give all clients the same model."
            )
        for block in self.blocks:
            for name, place in self._places(block):
                for key, value in memory.of(name).items():
                    if key != "x":
                        place(block.state[key]).copy_(torch.from_numpy(value))

    def work(self) -> tuple[Reply, float]:
        """All local steps; what to reply, and the mean loss."""
        task = self.task
        limit = self.algorithm.tau if task.steps is None else check_count(task.steps, "steps")
        total = 0.0
        self.model.train()
        with users_code("the client's batches or loss"):
            batches = iter(task.batches)
            for batch in islice(batches, limit):
                self.optimizer.zero_grad()
                loss = task.loss(self.model, batch)
                (loss if self.scale is None else self.scale * loss).backward()
                self._step()
                total += float(loss.detach())
                self.taken += 1
            more = limit == 1 and task.steps is None and any(True for _ in islice(batches, 1))
            more = more and _may_take_more(self.algorithm)
        if self.taken == 0:
            raise ValueError("the client has no batch to train on: give Task batches with at least one.")
        if more:
            raise ValueError(
                f"{self.algorithm.label} has tau=1, the default, and the client has more than one batch: give the "
                "method tau=…, the number of local steps, or Task steps=1 if one is meant."
            )
        return self._reply(), total / self.taken

    def _step(self) -> None:
        """One local step; the hooks of the user's optimiser are called, whoever makes the step."""
        if not self.plain:
            self._apply()
            self.optimizer.step()
            return
        torch.optim.Optimizer.profile_hook_step(lambda optimizer: self._apply())(self.optimizer)
        self.optimizer._opt_called = True  # pyright: ignore  # where a scheduler looks for its step

    def _apply(self) -> None:
        self.steps.apply(self.optimizer.param_groups, first=self.taken == 0)

    def _reply(self) -> Reply:
        end: Arrays = {}
        travelled: dict[str, float] = {}
        direction: Arrays = {}
        for block in self.blocks:
            for name, place in self._places(block):
                end[name] = place(block.x).detach().cpu().numpy().copy()
                travelled[name] = block.lr_sum
                if block.total is not None:
                    direction[name] = (place(block.total) / self.taken).to(block.x.dtype).cpu().numpy()
        buffers = self._buffers()
        for name, before in self.unknown.items():
            if differs(buffers.pop(name), before):
                raise ValueError(
                    f"{name}, a buffer, changed in training and is not in the server's arrays, so that its change is "
                    "lost: give the server's arrays all buffers, or train with it in eval mode."
                )
        buffers = {name: value for name, value in buffers.items() if differs(value, self.sent[name])}
        return Reply(end, travelled, direction or None, buffers, self.tied)

    def _buffers(self) -> Arrays:
        """The model's buffers now, by all their names: a module used twice has two in the state_dict."""
        named, held = self.model.state_dict(keep_vars=True), self.model.named_buffers(remove_duplicate=False)
        return {name: value.detach().cpu().numpy().copy() for name, value in held if name in named}

    def _places(self, block: Bucket) -> Iterable[tuple[str, Callable[[Tensor], Tensor]]]:
        """The name of each parameter of a block, and how to look at its place in a flat buffer."""
        for slot in block.slots:

            def place(flat: Tensor, slot: Any = slot) -> Tensor:
                return torch.as_strided(flat, slot.shape, slot.strides, slot.offset)

            yield self.names[id(slot.parameter)], place


def _may_take_more(algorithm: Algorithm) -> bool:
    """Is the method one whose tau = 1 may be an oversight, and not its definition?"""
    try:
        return replace(algorithm, tau=2).tau == 2
    except ValueError:
        return False


def evaluate(task: Task, sent: Arrays) -> dict[str, float]:
    """What the user's own function says of the server's model."""
    if task.evaluate is None:
        raise ValueError("the client has nothing to evaluate with: give Task evaluate=, or Strategy evaluate=0.")
    trained, tied = _trained(task)
    load(task.model, sent, tied, trained)
    task.model.eval()
    with users_code("the client's evaluate"), torch.inference_mode():
        return {name: float(value) for name, value in task.evaluate(task.model).items()}


def _trained(task: Task) -> tuple[list[str], dict[str, str]]:
    """The names of the parameters that a task trains, and the other names of these."""
    names = {id(value): name for name, value in task.model.named_parameters()}
    found = []
    for group in task.optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.numel():
                if id(parameter) not in names:
                    raise ValueError(
                        "the optimiser holds parameters that are not the model's: give it model.parameters()."
                    )
                found.append(names[id(parameter)])
    return found, ties(task.model, found)


def ties(model: nn.Module, trained: Iterable[str]) -> dict[str, str]:
    """The other names that parameters have in the state_dict, and the first of each."""
    first = {id(value): name for name, value in model.named_parameters()}
    known = set(trained)
    named = {other: first.get(id(value)) for other, value in model.state_dict(keep_vars=True).items()}
    return {other: name for other, name in named.items() if name is not None and name in known and name != other}


def load(model: nn.Module, arrays: Arrays, tied: Mapping[str, str], trained: Iterable[str]) -> None:
    """Puts the server's arrays into a model; what it does not train may be missing there, and stays as it is."""
    mine, needed = model.state_dict(), set(trained)
    whole = {**{other: arrays[name] for other, name in tied.items() if name in arrays}, **arrays}
    for name in sorted(set(mine) | set(whole)):
        if name not in mine or (name not in whole and name in needed):
            side = "the client's" if name in mine else "the server's"
            raise ValueError(f"{name} is in {side} model only: give both sides the same one.")
        if name in whole and tuple(mine[name].shape) != whole[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(mine[name].shape)} at the client and {whole[name].shape} at the server: "
                "give both sides the same model."
            )
    model.load_state_dict({**mine, **{name: torch.from_numpy(array) for name, array in whole.items()}})
