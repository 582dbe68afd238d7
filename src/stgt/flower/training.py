"""A client's local steps: the user's model, optimiser, batches and loss, with the method's correction in each step."""

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
from stgt.flower.client_state import ClientState
from stgt.flower.protocol import Arrays, Crashed, Reply, differs
from stgt.torch.buckets import Bucket, make_buckets
from stgt.torch.local_steps import LocalSteps
from stgt.torch.validate import check_divided, is_plain


@dataclass
class Task:
    """What a client trains.

    Attributes:
        model: its weights are overwritten by the server's.
        optimizer: over the model's parameters; its lr is the method's gamma. A new one each round. Parameters that it
            does not contain, or that do not require a gradient, are not trained: the server's arrays may lack them.
        batches: one for each step. If there are fewer, the round is shorter, which is allowed. If tau is 1, the default
            of methods with local steps, and `steps` is not given, more than one batch is refused.
        loss: `loss(model, batch)`, the number to differentiate.
        steps: local steps of this client, if not the method's tau; clients may take different numbers of steps.
        evaluate: `evaluate(model)` returns numbers by name, for the server's evaluation rounds.
        metrics: numbers by name that are sent with each reply, such as {"num-examples": 600}.
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
    """Logs an exception of the user's code at the client, with its traceback, and reports it to the server."""
    try:
        yield
    except Exception as error:
        log(ERROR, "%s raised an exception", what, exc_info=True)
        if isinstance(error, ValueError):
            raise Crashed(f"{what} raised ValueError: {error}") from error
        raise


class LocalTraining:
    """The local steps of one round.

    Args:
        task: the user's task.
        algorithm: the method.
        received: the server's arrays, including those that are not trained.
        scale: the factor of the loss, n times the client's weight; None if all clients have the same weight.
    """

    def __init__(self, task: Task, algorithm: Algorithm, received: Arrays, scale: float | None):
        self.task, self.algorithm, self.model, self.optimizer = task, algorithm, task.model, task.optimizer
        self.received, self.scale, self.steps_done = received, scale, 0
        self.trained, self.tied = _trained(task)
        load(self.model, received, self.tied, self.trained)
        self.names = {id(value): name for name, value in self.model.named_parameters()}
        self.blocks = make_buckets(self.optimizer.param_groups)
        check_divided(self.algorithm, self.optimizer)
        self.plain = is_plain(self.optimizer)
        if scale is not None and not isinstance(self.optimizer, torch.optim.SGD):
            raise ValueError(
                f'weights="num_examples" multiplies the loss, but {type(self.optimizer).__name__} divides by its '
                'factor: use SGD, with momentum or without, or weights="equal".'
            )
        self.steps = LocalSteps(self.algorithm, self.blocks, self.plain)
        self.not_at_server = {name: value for name, value in self._buffers().items() if name not in received}

    @property
    def untrained(self) -> Arrays:
        """The server's arrays that are not trained, each under one name."""
        known = {*self.trained, *self.tied}
        return {name: array for name, array in self.received.items() if name not in known}

    def set_state(self, state: ClientState) -> None:
        """Copies the method's state into the flat buffers of the steps."""
        missing = set(self.trained) - state.view["x"].keys()
        if missing:
            raise ValueError(
                f"{min(missing)} is trained by this client and not by the others: give all clients the same model."
            )
        for block in self.blocks:
            for name, place in self._places(block):
                for key, value in state.of_parameter(name).items():
                    if key != "x":
                        place(block.state[key]).copy_(torch.from_numpy(value))

    def run(self) -> tuple[Reply, float]:
        """All local steps. Returns the reply and the mean loss."""
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
                self.steps_done += 1
            more = limit == 1 and task.steps is None and any(True for _ in islice(batches, 1))
            more = more and _may_take_more(self.algorithm)
        if self.steps_done == 0:
            raise ValueError("the client has no batch to train on: give Task batches with at least one.")
        if more:
            raise ValueError(
                f"{self.algorithm.label} has tau=1, the default, and the client has more than one batch: give the "
                "method tau=…, the number of local steps, or Task steps=1 if one step is meant."
            )
        return self._reply(), total / self.steps_done

    def _step(self) -> None:
        """One local step. The hooks of the user's optimiser are called even if `LocalSteps` does the step itself."""
        if not self.plain:
            self._apply()
            self.optimizer.step()
            return
        torch.optim.Optimizer.profile_hook_step(lambda optimizer: self._apply())(self.optimizer)
        self.optimizer._opt_called = True  # pyright: ignore  # a scheduler checks this for a step

    def _apply(self) -> None:
        self.steps.apply(self.optimizer.param_groups, first=self.steps_done == 0)

    def _reply(self) -> Reply:
        end: Arrays = {}
        lr_sum: dict[str, float] = {}
        direction: Arrays = {}
        for block in self.blocks:
            for name, place in self._places(block):
                end[name] = place(block.x).detach().cpu().numpy().copy()
                lr_sum[name] = block.lr_sum
                if block.total is not None:
                    direction[name] = (place(block.total) / self.steps_done).to(block.x.dtype).cpu().numpy()
        buffers = self._buffers()
        for name, before in self.not_at_server.items():
            if differs(buffers.pop(name), before):
                raise ValueError(
                    f"{name}, a buffer, changed in training and is not in the server's arrays, so its change would be "
                    "lost: give the server's arrays all buffers, or train with it in eval mode."
                )
        buffers = {name: value for name, value in buffers.items() if differs(value, self.received[name])}
        return Reply(end, lr_sum, direction or None, buffers, self.tied)

    def _buffers(self) -> Arrays:
        """The model's current buffers, under all their names: a module used twice has two in the state_dict."""
        saved, buffers = self.model.state_dict(keep_vars=True), self.model.named_buffers(remove_duplicate=False)
        return {name: value.detach().cpu().numpy().copy() for name, value in buffers if name in saved}

    def _places(self, block: Bucket) -> Iterable[tuple[str, Callable[[Tensor], Tensor]]]:
        """The name of each parameter of a block, and the function that returns its view of a flat buffer."""
        for slot in block.slots:

            def place(flat: Tensor, slot: Any = slot) -> Tensor:
                return torch.as_strided(flat, slot.shape, slot.strides, slot.offset)

            yield self.names[id(slot.parameter)], place


def _may_take_more(algorithm: Algorithm) -> bool:
    """Does the method accept tau > 1, so that tau = 1 may be an oversight?"""
    try:
        return replace(algorithm, tau=2).tau == 2
    except ValueError:
        return False


def evaluate(task: Task, received: Arrays) -> dict[str, float]:
    """The result of the user's function `evaluate` for the server's model."""
    if task.evaluate is None:
        raise ValueError("the client's task has no evaluate: give Task evaluate=, or Strategy evaluate=0.")
    trained, tied = _trained(task)
    load(task.model, received, tied, trained)
    task.model.eval()
    with users_code("the client's evaluate"), torch.inference_mode():
        return {name: float(value) for name, value in task.evaluate(task.model).items()}


def _trained(task: Task) -> tuple[list[str], dict[str, str]]:
    """The names of the parameters that a task trains, and their tied names."""
    names = {id(value): name for name, value in task.model.named_parameters()}
    found = []
    for group in task.optimizer.param_groups:
        for parameter in group["params"]:
            if parameter.requires_grad and parameter.numel():
                if id(parameter) not in names:
                    raise ValueError(
                        "the optimiser has parameters that are not the model's: give it model.parameters()."
                    )
                found.append(names[id(parameter)])
    return found, ties(task.model, found)


def ties(model: nn.Module, trained: Iterable[str]) -> dict[str, str]:
    """The other names of trained parameters in the state_dict, each with the parameter's first name."""
    names, first = set(trained), {id(value): name for name, value in model.named_parameters()}
    found = {other: first.get(id(value)) for other, value in model.state_dict(keep_vars=True).items()}
    return {other: name for other, name in found.items() if name is not None and name in names and name != other}


def load(model: nn.Module, arrays: Arrays, tied: Mapping[str, str], trained: Iterable[str]) -> None:
    """Loads the server's arrays into a model. Arrays that are not trained may be missing; they do not change."""
    own, needed = model.state_dict(), set(trained)
    given = {**{other: arrays[name] for other, name in tied.items() if name in arrays}, **arrays}
    for name in sorted(set(own) | set(given)):
        if name not in own or (name not in given and name in needed):
            side = "the client's" if name in own else "the server's"
            raise ValueError(f"{name} is only in {side} model: give both sides the same one.")
        if name in given and tuple(own[name].shape) != given[name].shape:
            raise ValueError(
                f"{name} has shape {tuple(own[name].shape)} at the client and {given[name].shape} at the server: "
                "give both sides the same model."
            )
    model.load_state_dict({**own, **{name: torch.from_numpy(array) for name, array in given.items()}})
