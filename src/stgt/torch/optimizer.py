"""The distributed optimiser: any torch optimiser, with a round's exchange after every tau-th step."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from stgt._internal.checks import check_choice, check_count, check_flag, check_seed
from stgt._internal.hyper import in_full
from stgt._internal.loggers import as_logger
from stgt._internal.randomness import coin
from stgt.algorithms import Algorithm
from stgt.algorithms.calls import begin, divides
from stgt.topology import Topology
from stgt.torch import checkpoint, evaluation, finite, fit, state
from stgt.torch.buffers import Buffers
from stgt.torch.data import NO_BATCHES, end_of_epoch
from stgt.torch.early import Early
from stgt.torch.exchange import Exchange, Part
from stgt.torch.flat import make_blocks, parts_of, wide
from stgt.torch.group import Group, end_groups
from stgt.torch.local import Chunk, Steps
from stgt.torch.rates import SameRate
from stgt.torch.routes import Schedule
from stgt.torch.watch import LostNodeError
from stgt.torch.world import watch

CHUNK = 1 << 19  # elements that travel at once
WIRES = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}
_LATER = "a parameter group cannot be added later: put all parameters into the optimiser at first."


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps a torch optimiser: local steps as before, and a talk with the neighbours after every tau-th one.

    With plain SGD (weight decay allowed) the iterates are the algorithm's, with gamma = lr. Behind momentum or AdamW
    the corrected gradients take the gradients' place, and their mean over the round is what is tracked.

    Args:
        optimizer: any torch optimiser of the model's parameters; its lr is the algorithm's gamma.
        algorithm: such as `stgt.STGT(tau=25)`, without gamma. tau may differ between nodes if it does not divide by it.
        topology: who hears whom: a `Topology` of as many nodes as there are processes, or a constructor's name.
        model: the module that holds all parameters of the optimiser; its buffers and frozen parameters are shared too.
            Required; None for tensors that belong to no module.
        buffers: "average", "local" or "none"; see `Buffers`.
        seed: of a random topology and of ProxSkip's coin; the same on all nodes.
        message_dtype: None, "float16" or "bfloat16": the precision that messages travel in.
        on_nonfinite: what a node does at a round's end if its weights, gradients or buffers are not finite. "stop" ends
            the training on all nodes; "skip" takes the node's round back to its start, for which it keeps a copy of
            what it starts from, and lets it stand still in this round's exchange.
        early: send the half of the message that is known at a round's start then, hidden behind the local steps.
        chunk: how many elements travel at once.
        logger: of this node, for what `metrics` finds: a TensorBoard `SummaryWriter`, a W&B run, `mlflow`, a function
            of (values, step), or a path that ends in .csv, which rank 0 alone writes.
        name: in the names of its checkpoints' files, where several optimisers share a folder: letters, digits, - and _.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        topology: Topology | str,
        *,
        model: nn.Module | None = fit.REQUIRED,
        buffers: str = "average",
        seed: int = 0,
        message_dtype: str | None = None,
        on_nonfinite: str = "stop",
        early: bool = False,
        chunk: int = CHUNK,
        logger: Any = None,
        name: str = "",
    ):
        if not dist.is_initialized():
            raise ValueError("there is no process group: call stgt.torch.init() before DistributedOptimizer.")
        fit.check_optimizer(optimizer)
        self.rank, self.nodes = dist.get_rank(), dist.get_world_size()
        self.topology = fit.topology_of(topology, self.nodes)
        self.algorithm = fit.usable(algorithm, self.topology)
        fit.check_divided(algorithm, optimizer)
        if message_dtype not in WIRES:
            check_choice(message_dtype, "message_dtype", [name for name in WIRES if name])
        fit.check_sending(algorithm, self.topology, optimizer, message_dtype, early)
        seed, chunk = check_seed(seed), check_count(chunk, "chunk")
        check_choice(on_nonfinite, "on_nonfinite", finite.POLICIES)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        super().__init__(parameters, optimizer.defaults)
        self.base = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.buffers = Buffers(fit.check_model(model, parameters), buffers)
        fit.check_tensors(self, parameters)
        self.blocks = make_blocks(self.param_groups)
        self._lengths = [len(group["params"]) for group in self.param_groups]
        self._resting = [parameter for parameter in parameters if not parameter.requires_grad]
        self.seed, self.name = seed, checkpoint.check_name(name)
        self.logger = None if isinstance(logger, str | Path) and self.rank else as_logger(logger)
        self.round = 0  # rounds done
        self.taken = 0  # steps made in this round
        self.steps_taken = 0  # steps made in all
        self.rounds_skipped = 0
        self.seconds_computing = 0.0
        self._chunk, self._message_dtype, self._sends_early = chunk, message_dtype, early
        self._divides = divides(algorithm)
        self._told_of_state = False  # that a state_dict is one node's alone
        self._watch = watch()
        self._schedule = Schedule(self.topology, algorithm, self.rank, seed)
        self._steps = Steps(algorithm, self.blocks, fit.is_plain(optimizer), guarded=on_nonfinite == "skip")
        end_groups()
        fit.agree(self._watch.meet(0, "DistributedOptimizer(…)", self._signature()))
        self._group = Group(self._watch, self)
        self._exchange = Exchange(self._group, WIRES[message_dtype])
        self._early = Early(self._steps, self._exchange, algorithm.tau) if early else None
        self._share_start()
        self._rollback = finite.Rollback(self) if on_nonfinite == "skip" else None
        self._warm = not algorithm.starts_warm
        self.active = True  # does this node work in this round?
        self._open_round()

    # -- training ------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One local step, and the exchange that ends the round after every tau-th one."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._warm:
            raise ValueError(
                f"{self.algorithm.label} has warm_start=True: call opt.warm_start() after the first backward()."
            )
        self._watch.progress(self.round)
        self._look_after_base()
        with torch.no_grad():
            if self.active:
                self._step_locally()
                self._steps.note_gradients()
                if self._early is not None:
                    self._early.advance()
            self.base._opt_called = True  # pyright: ignore  # where a scheduler of the base looks for its step
            self.taken += 1
            self.steps_taken += 1
            if self.taken == self.algorithm.tau:
                self.end_round()
        return loss

    @torch.no_grad()
    def end_round(self) -> None:
        """Ends the round now, after however many local steps; `step` calls it after tau of them."""
        if self.taken == 0:
            raise ValueError("end_round() was called before the round's first step: take at least one.")
        self.seconds_computing += time.perf_counter() - self._began
        self._steps.end_round()
        if self.active:
            self._steps.check_round()
            finite.guard(self)
        if self.round == 0:
            fit.refuse_ddp(slot.parameter for block in self.blocks for slot in block.slots)
        self.buffers.settle(self._agree_on_buffers)
        try:
            self._talk()
        except LostNodeError:
            raise
        except BaseException as error:  # the others wait for what this node cannot send any more
            self._watch.fail(error)
            raise
        self._group.end_round()
        self.round += 1
        self.taken = 0
        self._steps.start_round()
        self._open_round()

    @torch.no_grad()
    def warm_start(self) -> None:
        """Starts the control variables from the gradients of the last backward(); takes one global average."""
        if self._warm:
            raise ValueError(f"warm_start() means nothing to {self.algorithm.label} here: leave it out.")
        self._group.meet("warm_start()")
        with self._group.talking("warm_start()"):
            for block in self.blocks:
                decay = self.param_groups[block.group]["weight_decay"] if self._steps.plain else 0.0
                for part in parts_of(block.size, self._chunk):
                    gradient = block.last(part)
                    for where, _ in block.present(part) if decay else ():
                        gradient[where].add_(block.x[part][where], alpha=decay)
                    mean = self._group.sum(gradient.clone())
                    for name, value in begin(self.algorithm, wide(block.x[part]), gradient, mean / self.nodes).items():
                        if name != "x":
                            block.state[name][part] = value
        self._warm = True

    def batches(self, loader: Any, rounds: int | None = None) -> Iterator[Any]:
        """Batches for an epoch: as many as the longest of the nodes' loaders has; with `rounds` until that one is done.

        A loader that is exhausted starts again, so that all nodes end together, whatever the sizes of their data are.
        Without `rounds` all nodes must call it at the same point.
        """
        end = end_of_epoch(self, loader) if rounds is None else (rounds, 0)
        while (self.round, self.taken) < end:
            empty = True
            for batch in loader:
                empty = False
                yield batch
                if (self.round, self.taken) >= end:
                    return
            if empty:
                raise ValueError(NO_BATCHES.format(rank=self.rank))

    # -- looking at it -------------------------------------------------------------------------------------------

    def averaged(self) -> AbstractContextManager[None]:
        """Inside `with opt.averaged():` the model is the average of all nodes'. All nodes must enter."""
        return evaluation.averaged(self)

    def evaluate(self, function: Callable[[], float]) -> dict[str, Any]:
        """`function()` of the averaged model, the mean over nodes, and of each node's own. All nodes must call."""
        return evaluation.evaluate(self, function)

    def metrics(self) -> dict[str, float]:
        """Consensus and tracking errors, bytes sent, and where the time went. All nodes must call."""
        return evaluation.metrics(self)

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str, extra: Any = None, keep: int = 2) -> None:
        """Writes a checkpoint that is complete once all nodes have written; all nodes must call.

        A ValueError at all nodes where one cannot write, or has numbers that are not finite: earlier ones stay.

        Args:
            folder: of the checkpoints; shared between hosts or each its own.
            extra: anything JSON can hold, such as a scheduler's state_dict().
            keep: how many complete checkpoints stay.
        """
        checkpoint.save(self, Path(folder), extra, check_count(keep, "keep"))

    def load(self, folder: Path | str, start_anew: bool = False) -> dict[str, Any] | None:
        """Continues from the newest checkpoint that all nodes have; None if there was none. All nodes must call.

        Args:
            folder: of the checkpoints.
            start_anew: None as well where there was one and files of some node are damaged or missing, instead of a
                ValueError that names them.

        Returns:
            {"round": …, "steps": …, "extra": …, "skipped": […]} of the checkpoint; skipped are newer ones that are not
            whole, each as {"step": …, "rank": …, "why": "damaged", "missing", "unreadable" or "unfinished"}.
        """
        return checkpoint.load(self, Path(folder), check_flag(start_anew, "start_anew"))

    def state_dict(self) -> dict[str, Any]:
        """This node's state, for `torch.save` and frameworks: the wrapped optimiser's, and the algorithm's as "stgt".

        With the model's, whichever is loaded first, a run goes on bit for bit. Every node has to keep its own.
        """
        return state.state_dict(self)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over this node's `state_dict`; before the first step also that of a plain torch optimiser."""
        state.load_state_dict(self, state_dict)
        self._look_after_base()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "blocks"):
            raise ValueError(_LATER)
        super().add_param_group(param_group)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.algorithm.label} on {self.topology}, {self.base!r})"

    # -- inside --------------------------------------------------------------------------------------------------

    def _look_after_base(self) -> None:
        """Follows the base where it has loaded a state, and notices what a step here would not do as it does."""
        if self.param_groups is not self.base.param_groups:
            self.param_groups, self.state = self.base.param_groups, self.base.state
        if [len(group["params"]) for group in self.param_groups] != self._lengths:
            raise ValueError(_LATER)
        if self._steps.plain and not fit.is_plain(self.base):
            raise ValueError("the SGD has momentum now: give it momentum before DistributedOptimizer is made.")
        if self.taken == 0:
            for block in self.blocks:
                block.check()
            if any(parameter.requires_grad for parameter in self._resting):
                raise ValueError("a frozen parameter is trained now: unfreeze it before DistributedOptimizer is made.")

    def _step_locally(self) -> None:
        """One local step, with the hooks of the optimiser inside where its own `step` is not called."""

        def step(base: torch.optim.Optimizer) -> None:
            self._steps.apply(self.param_groups, first=self.taken == 0)

        if self._steps.plain:
            torch.optim.Optimizer.profile_hook_step(step)(self.base)
        else:
            step(self.base)
            self.base.step()

    def _talk(self) -> None:
        """The round's exchange."""
        if not self._talks():
            if self.active:
                self._steps.keep_end()
            return
        routes = self._schedule.routes(self.round)
        if self.active or (self.algorithm.held and self._schedule.listens(self.round)):
            if self._early is None:
                self._exchange.run(self._parts(), routes)
            else:
                self._early.finish(self._parts(), routes)

    def _agree_on_buffers(self, changed: list[str]) -> list[list[str]]:
        return self._group.meet("the end of the first round", changed)

    def _open_round(self) -> None:
        self._began = time.perf_counter()
        self._group.at_round(self.round)
        self.active = bool(self._schedule.active(self.round)[self.rank])
        if self._rollback is not None and self.active:
            self._rollback.keep()
        if self._early is not None and self.active:
            routes = self._schedule.routes(self.round)
            self._early.start(self._chunks(), routes)

    def _talks(self) -> bool:
        if not self.algorithm.coin:
            return True
        return bool(coin(np, self.seed, self.round, self.algorithm.talks, np.float64))

    def _chunks(self) -> list[Chunk]:
        share = self.topology.participation
        places = [(block, part) for block in self.blocks for part in parts_of(block.size, self._chunk)]
        return [
            Chunk(self._steps, number, block, part, self.taken, self.round, share, self.active)
            for number, (block, part) in enumerate(places)
        ]

    def _parts(self) -> list[Part]:
        buffers = [self.buffers] if self.buffers.mixes else []
        return [*self._same_rate(), *self._chunks(), *buffers]

    def _same_rate(self) -> list[Part]:
        """The sums of the stepsizes, where the method divides by them or half of the message went ahead."""
        if self._divides:
            why = (
                f"{self.algorithm.label} needs the same sum at all nodes; give them the same lr and as many steps a "
                "round, or use STGT, which does not divide by it"
            )
        elif self._early is not None and self._early.late:
            why = "early=True takes them to be the same; give all nodes the same, or leave early out"
        else:
            return []
        travelled = [block.travelled for block in self.blocks]
        sums = torch.tensor(travelled, dtype=torch.float64, device=self.blocks[0].x.device)
        return [SameRate(sums, self.rank, self.round, why)]

    @property
    def _shared_algorithm(self) -> Algorithm:
        """The algorithm as far as all nodes must have the same: tau may differ where nobody divides by it."""
        return self.algorithm if "gamma" in self.algorithm.reads else replace(self.algorithm, tau=1)

    def _signature(self) -> dict[str, Any]:
        """What all nodes must agree on; each entry's name says what to change."""
        return {
            "algorithm": in_full(self._shared_algorithm),
            "topology": f"{self.topology.name}, seed {self.topology.seed}",
            "weights": self._schedule.digest(),
            "optimizer": "plain SGD" if self._steps.plain else type(self.base).__name__,
            "model": [block.layout() for block in self.blocks],
            "frozen": [list(parameter.shape) for parameter in self._frozen()],
            "buffers": self.buffers.layout(),
            "seed": self.seed,
            "message_dtype": self._message_dtype,
            "early": self._sends_early,
            "chunk": self._chunk,
            "name": self.name,
        }

    def _frozen(self) -> list[Tensor]:
        """The model's parameters that are not trained."""
        trained = {id(slot.parameter) for block in self.blocks for slot in block.slots}
        model = self.buffers.model
        return [] if model is None else [one.detach() for one in model.parameters() if id(one) not in trained]

    @torch.no_grad()
    def _share_start(self) -> None:
        """All nodes start from rank 0's model."""
        for block in self.blocks:
            self._group.from_first(block.x)
            block.state["x"].copy_(block.x)
        for parameter in self._frozen():
            parameter.copy_(self._group.from_first(parameter.contiguous()))
        if shared := self.buffers.shared:
            self.buffers.put(shared, self._group.from_first(self.buffers.flat(shared)))
        self.buffers.start()
