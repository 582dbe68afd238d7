"""The distributed optimiser: any torch optimiser, with an exchange after every tau-th step."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from stgt._internal.checks import check_choice, check_count, check_flag, check_seed
from stgt._internal.loggers import as_logger
from stgt._internal.randomness import coin
from stgt._internal.serialize import to_plain
from stgt.algorithms import Algorithm
from stgt.simulator.instance import check_runs
from stgt.topology import Topology
from stgt.torch import checkpoint, finite, newcomer, run_state, validate
from stgt.torch.buckets import make_buckets, parameter_names, slices_of, wide
from stgt.torch.buffers import Buffers
from stgt.torch.data import NO_BATCHES, end_of_epoch
from stgt.torch.elastic import make_membership
from stgt.torch.elastic_node import elastic_node
from stgt.torch.evaluation import Evaluation
from stgt.torch.exchange import LrSums, MessageExchange
from stgt.torch.local_steps import Chunk, LocalSteps
from stgt.torch.overlap import Overlap
from stgt.torch.routes import RouteSchedule
from stgt.torch.run_state import COUNTERS, EXCHANGE_COUNTERS, Trained
from stgt.torch.shards import Shards
from stgt.torch.status import serve

CHUNK = 1 << 19  # elements of one message
WIRES = {None: None, "float16": torch.float16, "bfloat16": torch.bfloat16}
_log = logging.getLogger("stgt")
_LATER = "a parameter group cannot be added later: give the optimiser all parameters at first."


class DistributedOptimizer(torch.optim.Optimizer):
    """Wraps a torch optimiser: local steps as before, and an exchange with the neighbours after every tau-th step.

    With plain SGD (weight decay allowed) the iterates are those of the algorithm, with gamma = lr. Momentum or AdamW
    receive the corrected gradients instead of the gradients; the method then tracks their mean over the round.

    Args:
        optimizer: any torch optimiser of the model's parameters; its lr is the algorithm's gamma.
        algorithm: such as `stgt.STGT(tau=25)`, without gamma. Nodes may differ in tau if the algorithm does not divide
            by it.
        topology: which nodes exchange messages: a `Topology` with one node for each process, the name of a constructor,
            or a function of n that returns a topology.
        model: the module that has all parameters of the optimiser; its buffers and frozen parameters are shared too.
            Required; give None for tensors that belong to no module.
        buffers: "average", "local" or "none"; see `Buffers`.
        seed: of a random topology and of ProxSkip's coin; the same on all nodes.
        message_dtype: None, "float16" or "bfloat16": the precision of messages.
        on_nonfinite: what a node does at the end of a round if its weights, gradients or buffers are not finite. "stop"
            ends the training on all nodes. "skip" undoes the node's round: the node takes part in the exchange as if it
            had not moved. For this it keeps a copy of each round's start.
        early: send the half of the message that is available at the start of a round during the local steps.
        chunk: the number of elements of one message.
        logger: of this node, for the result of `metrics`: a TensorBoard `SummaryWriter`, a W&B run, `mlflow`, a
            function of (values, step), or a path that ends in .csv, which only rank 0 writes.
        name: part of the names of its checkpoint files, if several optimisers share a folder: letters, digits, - and _.
        min_nodes: with `init(elastic=True)`: the smallest number of nodes that may train. The training begins when that
            many have joined, and waits while there are fewer.
        patience: with `init(elastic=True)`: seconds after which a round ends without nodes that are late. They take
            part in a later round. None waits for all nodes.
        tau: with `init(elastic=True)`: "auto" lets a node that is slower than most take fewer local steps a round, as
            many as it can in the others' time. None uses the algorithm's tau.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        algorithm: Algorithm,
        topology: Topology | str | Callable[[int], Topology],
        *,
        model: nn.Module | None = validate.REQUIRED,
        buffers: str = "average",
        seed: int = 0,
        message_dtype: str | None = None,
        on_nonfinite: str = "stop",
        early: bool = False,
        chunk: int = CHUNK,
        logger: Any = None,
        name: str = "",
        min_nodes: int = 2,
        patience: float | None = None,
        tau: str | None = None,
    ):
        self.name = checkpoint.check_name(name)
        validate.check_optimizer(optimizer)
        if elastic_node() is not None:
            validate.check_elastic(algorithm, topology, early)
        self.membership = make_membership(name, min_nodes, patience, tau)
        self._given_topology = topology
        self.topology = validate.topology_of(topology, self.nodes + self.membership.newcomer)
        check_runs(algorithm, self.topology, "trainer")
        self.algorithm, self.spec = algorithm, algorithm.spec()
        validate.check_divided(algorithm, optimizer)
        if message_dtype not in WIRES:
            check_choice(message_dtype, "message_dtype", [name for name in WIRES if name])
        validate.check_sending(algorithm, self.topology, optimizer, message_dtype, early)
        seed, chunk = check_seed(seed), check_count(chunk, "chunk")
        check_choice(on_nonfinite, "on_nonfinite", finite.POLICIES)
        parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        super().__init__(parameters, optimizer.defaults)
        self.base = optimizer
        self.param_groups, self.state = optimizer.param_groups, optimizer.state
        self.buffers = Buffers(validate.check_model(model, parameters), buffers)
        names = parameter_names(self.param_groups, model)
        validate.check_tensors(names)
        self.buckets = make_buckets(self.param_groups, names)
        self._lengths = [len(group["params"]) for group in self.param_groups]
        self._frozen_here = [parameter for parameter in parameters if not parameter.requires_grad]
        self.seed = seed
        self.logger = None if isinstance(logger, str | Path) and self.rank else as_logger(logger)
        self.round = 0  # completed rounds
        self.taken = 0  # steps of this round
        self.steps_taken = 0  # steps in total
        self.rounds_skipped = 0
        self.seconds_computing = 0.0
        self._chunk = chunk
        self._options = {"seed": seed, "message_dtype": message_dtype, "early": early, "chunk": chunk, "name": name}
        self._fits_time = tau is not None
        self._schedules: dict[tuple[int, int], RouteSchedule] = {}  # of rounds without the nodes that are late
        self._warned_of_state = False  # has it warned that a state_dict belongs to one node only?
        self._schedule = self._make_schedule()
        self._steps = LocalSteps(algorithm, self.buckets, validate.is_plain(optimizer), guarded=on_nonfinite == "skip")
        self._divides = self._steps.method.divides()
        self._exchange = MessageExchange(self.membership, WIRES[message_dtype])
        self._overlap = Overlap(self._steps, self._exchange, algorithm.tau) if early else None
        self._trained = Trained(optimizer, self.buckets, self.buffers, self._steps.method)
        self._evaluation = Evaluation(self.membership, self._steps, self.buffers, self.topology, chunk)
        self._guard = finite.Guard(self._steps, self.buffers, optimizer, skips=on_nonfinite == "skip")
        self._warm = not self.spec.needs_initial_gradient
        self.active = True  # does this node take part in this round?
        self._counts = not self.membership.newcomer  # does it count its steps already?
        self._joined = self.membership.newcomer  # has it received its model from a member?
        self._extra: Any = None  # the `extra` of the last checkpoint written or loaded
        self.membership.on_change = self._take_over_change
        self.membership.on_request = self._send_model
        if self.membership.newcomer:
            self._join()
        else:
            self.membership.together(self._begin)
            self._open_round()

    @property
    def rank(self) -> int:
        """This node's number among the nodes."""
        return self.membership.rank

    @property
    def nodes(self) -> int:
        """The number of nodes that train."""
        return self.membership.nodes

    @property
    def members(self) -> tuple[Any, ...]:
        """The ids of the nodes that train, in the order of the topology's rows."""
        return self.membership.members

    # -- training ------------------------------------------------------------------------------------------------

    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        """One local step, and after every tau-th step the exchange that ends the round."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if not self._warm:
            raise ValueError(
                f"{self.algorithm.label} has warm_start=True: call opt.warm_start() after the first backward()."
            )
        self.membership.progress()
        self._check_base()
        with torch.no_grad():
            if self.active:
                self._step_locally()
                self._steps.record_gradients()
                if self._overlap is not None:
                    self._overlap.advance()
            self.base._opt_called = True  # pyright: ignore  # a scheduler of the base checks it
            self.taken += 1
            self.steps_taken += 1
            if self.taken == self._local_steps:
                self.end_round()
        return loss

    @torch.no_grad()
    def end_round(self) -> None:
        """Ends the round now, after any number of local steps; `step` calls it after tau of them."""
        if self.taken == 0:
            raise ValueError("end_round() was called before the round's first step: take at least one.")
        seconds = time.perf_counter() - self._began
        self.seconds_computing += seconds
        self.membership.computed(seconds, self.taken)
        self._steps.share_made = self.taken / self.algorithm.tau if self._fits_time else 1.0
        self._steps.end_round()
        if self.active:
            self._steps.check_round()
            with self.membership.collective("end_round()"):
                self.rounds_skipped += self._guard.undoes(f"rank {self.rank}, round {self.round}")
        if self.round == 0:
            validate.refuse_ddp(slot.parameter for bucket in self.buckets for slot in bucket.slots)
        self.buffers.check_constants(self.membership)
        with self.membership.collective("end_round()"):
            self._exchange_messages()
        self.membership.end_round()
        self.round += 1
        self.taken = 0
        self._steps.start_round()
        self._open_round()
        if self.membership.end is not None:
            if self.membership.folder is not None:
                self.save(self.membership.folder, self._extra)
            raise self.membership.end

    @torch.no_grad()
    def warm_start(self) -> None:
        """Starts the control variates from the gradients of the last backward(); needs one global average."""
        if self._warm:
            raise ValueError(f"warm_start() means nothing to {self.algorithm.label} here: leave it out.")
        self.membership.barrier("warm_start()")
        with self.membership.collective("warm_start()"):
            for bucket in self.buckets:
                decay = self.param_groups[bucket.group]["weight_decay"] if self._steps.plain else 0.0
                for part in slices_of(bucket.size, self._chunk):
                    gradient = bucket.last(part)
                    for where, _ in bucket.present(part) if decay else ():
                        gradient[where].add_(bucket.x[part][where], alpha=decay)
                    mean = self.membership.sum(gradient.clone())
                    state = self._steps.method.init(wide(bucket.x[part]), gradient, mean / self.nodes)
                    for name, value in state.items():
                        if name != "x":
                            bucket.state[name][part] = value
        self._warm = True

    def leave(self) -> None:
        """Leaves the training in an orderly way. The node takes part for one or two more rounds, until the others have
        agreed to continue without it. Then `step` raises `stgt.torch.Left`, which ends the script. Only with
        `init(elastic=True)`.
        """
        self.membership.announce("leave()")

    def batches(self, loader: Any, rounds: int | None = None) -> Iterator[Any]:
        """Batches for an epoch, as many as in the longest loader of all nodes. `rounds`: until so many rounds are done.

        A loader that is exhausted starts again, so that all nodes end together, whatever the sizes of their data.
        Without `rounds` all nodes must call it at the same point. In an elastic training each node has its own epoch.
        """
        if rounds is None and self.membership.elastic:
            yield from loader
            return
        end = end_of_epoch(self.membership, loader, self.taken, self.algorithm.tau) if rounds is None else (rounds, 0)
        while (self.round, self.taken) < end:
            empty = True
            for batch in loader:
                empty = False
                yield batch
                if (self.round, self.taken) >= end:
                    return
            if empty:
                raise ValueError(NO_BATCHES.format(rank=self.rank))

    # -- evaluation ----------------------------------------------------------------------------------------------

    def averaged(self) -> AbstractContextManager[None]:
        """Inside `with opt.averaged():` the model is the average over all nodes. All nodes must enter."""
        return self._evaluation.averaged(self._weight)

    def evaluate(self, function: Callable[[], float]) -> dict[str, Any]:
        """`function()` of the averaged model, as the mean over nodes, and of each node's own. All nodes must call."""
        return self.membership.together(
            lambda: self._evaluation.evaluate(self._weight, function), {"averaged": float("nan"), "own": []}
        )

    def metrics(self) -> dict[str, float]:
        """Consensus and tracking errors, bytes sent, and the seconds of each part of a round. All nodes must call."""
        found = {
            "round": float(self.round),
            "rounds_skipped": float(self.rounds_skipped),
            "rounds_alone": float(self._exchange.rounds_alone),
            "seconds_computing": self.seconds_computing,
            **{name: float(getattr(self._exchange, name)) for name in EXCHANGE_COUNTERS},
        }
        found |= self.membership.together(lambda: self._evaluation.metrics(self._weight()), {})
        found |= self.membership.metrics()
        if self.logger is not None:
            self.logger.log({f"stgt/{name}": value for name, value in found.items()}, self.round)
        return found

    def serve_status(self, port: int = 0) -> str:
        """Serves a read-only page of this node on 127.0.0.1, and /status.json. Returns the page's address.

        Args:
            port: to listen on; 0 for any free port.
        """
        began, steps = time.monotonic(), self.steps_taken

        def status() -> dict[str, Any]:
            members, exchange = self.membership, self._exchange
            rate = (self.steps_taken - steps) / max(time.monotonic() - began, 1e-9)
            return {
                "round": self.round, "steps": self.steps_taken, "steps a second": rate,
                "bytes sent": exchange.bytes_sent, "seconds waiting": exchange.seconds_waiting,
                "rounds ended alone": exchange.rounds_alone, "epoch": members.epoch, **members.metrics(),
                "members": [str(one) for one in self.members], "events": list(members.events),
            }  # fmt: skip

        return serve(status, check_count(port, "port", 0))

    # -- files ---------------------------------------------------------------------------------------------------

    def save(self, folder: Path | str, extra: Any = None, keep: int = 2) -> None:
        """Writes a checkpoint. It is complete once all nodes have written their part; all nodes must call.

        In an elastic training, call this, `evaluate` and `metrics` at the top of the loop, where `taken` is 0: there a
        newcomer starts.

        If one node cannot write, or has values that are not finite, all nodes raise a ValueError, and earlier
        checkpoints stay.

        Args:
            folder: of the checkpoints; shared between hosts, or one for each.
            extra: anything that JSON can represent, such as a scheduler's state_dict(), or a function that returns it.
                An elastic training that ends by SIGTERM calls the function again.
            keep: the number of complete checkpoints that are kept.
        """
        keep = check_count(keep, "keep")
        if self._overlap is not None:
            self._overlap.pause()  # a process may end after saving: no message may be on the wire then
        self.membership.folder = folder
        self.membership.together(
            lambda: checkpoint.save(
                self.membership,
                Shards(Path(folder), self.rank, self.name),
                self._trained,
                self._run_state(),
                extra() if callable(extra) else extra,
                keep,
            )
        )
        self._extra = extra

    def load(self, folder: Path | str, start_anew: bool = False) -> dict[str, Any] | None:
        """Continues from the newest checkpoint that all nodes have; None if there is none. All nodes must call.

        If another number of nodes has written it, all nodes start its round again from the mean of the saved models.
        The method's other variables are the saved means too, its corrections are 0, and the wrapped optimiser's state
        is that of one of those nodes.

        Args:
            folder: of the checkpoints.
            start_anew: return None too if there is a checkpoint whose files are damaged or missing at some node. By
                default that is a ValueError which names them.

        Returns:
            {"round": …, "steps": …, "extra": …, "skipped": […], "written_by": …} of the checkpoint. "skipped" has newer
            checkpoints that are not whole, each as {"step": …, "rank": …, "why": "damaged", "missing", "unreadable" or
            "unfinished"}; "written_by" is the number of nodes.
        """
        start_anew, self.membership.folder = check_flag(start_anew, "start_anew"), folder
        if self._joined:  # the model of the others is newer than any checkpoint
            return {
                "round": self.round,
                "steps": self.steps_taken,
                "extra": self._extra,
                "skipped": [],
                "written_by": 0,
            }
        found = self.membership.together(
            lambda: checkpoint.load(
                self.membership,
                Shards(Path(folder), self.rank, self.name),
                self._trained,
                self._run_state(),
                start_anew,
            )
        )
        if found is None:
            return None
        self._restore(found)
        self.membership.saved(folder)
        self._extra = found["extra"]
        kept = {name: found[name] for name in ("extra", "skipped", "written_by")}
        return {"round": self.round, "steps": self.steps_taken, **kept}

    def state_dict(self) -> dict[str, Any]:
        """This node's state, for `torch.save` and frameworks: the wrapped optimiser's, and the algorithm's as "stgt".

        With this and the model's state_dict, loaded in any order, a run continues bit for bit. Every node must save its
        own.
        """
        if self.nodes > 1 and self.rank == 0 and not self._warned_of_state:
            self._warned_of_state = True
            _log.warning(
                "opt.state_dict() is rank 0's share of the state alone: every node has to save its own and load it "
                "again, or all call opt.save(folder) instead"
            )
        return run_state.state_dict(self._trained, self._run_state())

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Loads this node's `state_dict`; before the first step also that of a plain torch optimiser."""
        saved = run_state.load_state_dict(self._trained, self._run_state(), state_dict)
        if saved is not None:
            self._restore(saved)
        self._check_base()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        if hasattr(self, "buckets"):
            raise ValueError(_LATER)
        super().add_param_group(param_group)

    def __repr__(self) -> str:
        return f"DistributedOptimizer({self.algorithm.label} on {self.topology}, {self.base!r})"

    # -- inside --------------------------------------------------------------------------------------------------

    def _check_base(self) -> None:
        """Adopts a state that the base has loaded; a ValueError for other changes of the base."""
        if self.param_groups is not self.base.param_groups:
            self.param_groups, self.state = self.base.param_groups, self.base.state
        if [len(group["params"]) for group in self.param_groups] != self._lengths:
            raise ValueError(_LATER)
        if self._steps.plain and not validate.is_plain(self.base):
            raise ValueError("the SGD has momentum now: give it momentum before DistributedOptimizer is made.")
        if self.taken == 0:
            for bucket in self.buckets:
                bucket.check()
            if any(parameter.requires_grad for parameter in self._frozen_here):
                raise ValueError("a frozen parameter is trained now: unfreeze it before DistributedOptimizer is made.")

    def _step_locally(self) -> None:
        """One local step. The hooks of the wrapped optimiser run even if its own `step` is not called."""

        def step(base: torch.optim.Optimizer) -> None:
            self._steps.apply(self.param_groups, first=self.taken == 0)

        if self._steps.plain:
            torch.optim.Optimizer.profile_hook_step(step)(self.base)
        else:
            step(self.base)
            self.base.step()

    def _exchange_messages(self) -> None:
        """The round's exchange."""
        takes_part = self.membership.before_exchange()
        if self.membership.elastic:
            if not self._counts:  # a newcomer's: it counts the steps that the others did meanwhile as its own
                self.steps_taken += self.algorithm.tau * (self.membership.round - self.round)
                self._counts = True
            self.round = self.membership.round  # the members may have continued while this node was away
        chance = self.spec.communication_probability
        if chance is not None and not coin(np, self.seed, self.round, chance, np.float64):
            if self.active:
                self._steps.keep_end()
        elif self.active or (self.spec.server_fields and self._schedule.receives_server_state(self.round)):
            payloads = [*self._lr_sums(), *self._chunks(), *([self.buffers] if self.buffers.mixes else [])]
            exchange = self._exchange.run if self._overlap is None else self._overlap.finish
            if takes_part and self.membership.taking_part > 1:
                exchange(payloads, self._schedule_now().routes(self.round))
            else:
                self._exchange.alone(payloads)
        if not takes_part:
            self.round -= 1  # the members are about to begin the round that comes now

    def _open_round(self) -> None:
        self._began, self._local_steps = time.perf_counter(), self.membership.local_steps(self.algorithm.tau)
        self.membership.begin_round(self.round)
        if self.membership.elastic:
            self._send_model()
        self.active = bool(self._schedule.active(self.round)[self.rank])
        if self.active:
            self._guard.keep()
        if self._overlap is not None and self.active:
            self._overlap.start(self._chunks(), self._schedule.routes(self.round))

    def _begin(self) -> None:
        """All nodes of a new training compare their arguments, and start from rank 0's model."""
        validate.agree(self.membership.barrier("DistributedOptimizer(…)", self._signature()))
        self.membership.open_group()
        self._share_start()

    def _make_schedule(self) -> RouteSchedule:
        return RouteSchedule(self.topology, self.algorithm, self.rank, self.seed)

    def _schedule_now(self) -> RouteSchedule:
        """The routes between the nodes that take part in this round's exchange."""
        n, place = self.membership.taking_part, self.membership.place
        if n == self.nodes:
            return self._schedule
        if (n, place) not in self._schedules:
            made = validate.topology_of(self._given_topology, n)
            self._schedules[n, place] = RouteSchedule(made, self.algorithm, place, self.seed)
        return self._schedules[n, place]

    def _take_over_change(self) -> None:
        """The members have changed: makes a topology for them, and restores Σ_i c_i = 0."""
        self.topology = self._evaluation.topology = validate.topology_of(self._given_topology, self.nodes)
        check_runs(self.algorithm, self.topology, "trainer")
        self._schedule = self._make_schedule()
        newcomer.restore_sums(self.membership, self.buckets, self.spec, self._chunk)

    def _send_model(self) -> None:
        newcomer.send_model(self.membership, self._trained, self._frozen, self._run_state, self._extra)

    def _join(self) -> None:
        """A newcomer's start: it receives a member's state, and does not move in the exchange at which it joins."""
        self.buffers.start(finds_constants=False)
        state, self._extra = newcomer.receive_model(self.membership, self._trained, self._frozen(), self._signature())
        self.param_groups, self.state = self.base.param_groups, self.base.state
        self.round, self.steps_taken = state["round"], state["steps_taken"]
        self._open_round()
        with torch.no_grad():
            self._steps.stand_still(self.param_groups)
        self.taken = self.algorithm.tau
        self.end_round()

    def _weight(self) -> float:
        """This node's weight in the averaged model."""
        return self._schedule.weight(self.round if self.taken or self.round == 0 else self.round - 1)

    def _chunks(self) -> list[Chunk]:
        share = self.topology.participation
        places = [(bucket, part) for bucket in self.buckets for part in slices_of(bucket.size, self._chunk)]
        return [
            Chunk(self._steps, number, bucket, part, self.taken, self.round, share, self.active)
            for number, (bucket, part) in enumerate(places)
        ]

    def _lr_sums(self) -> list[LrSums]:
        """The sums of the stepsizes, if the method divides by them or half of the message was sent before."""
        if self._divides:
            why = (
                f"{self.algorithm.label} needs the same sum at all nodes; give them the same lr and as many steps a "
                "round, or use STGT, which does not divide by it"
            )
        elif self._overlap is not None and self._overlap.sends_directions:
            why = "early=True requires the same sum at all nodes; give all nodes the same, or leave early out"
        else:
            return []
        sums = [bucket.lr_sum / self._steps.share_made for bucket in self.buckets]
        sums = torch.tensor(sums, dtype=torch.float64, device=self.buckets[0].x.device)
        return [LrSums(sums, self.rank, self.round, why)]

    def _signature(self) -> dict[str, Any]:
        """What must be equal at all nodes; each entry has the name of what to change."""
        same_tau = "gamma" in self.spec.reads  # otherwise nodes may differ in tau
        return {
            "algorithm": to_plain(self.algorithm if same_tau else replace(self.algorithm, tau=1)),
            **self._graph(),
            "optimizer": "plain SGD" if self._steps.plain else type(self.base).__name__,
            "model": [bucket.layout() for bucket in self.buckets],
            "frozen": [list(parameter.shape) for parameter in self._frozen()],
            "buffers": self.buffers.layout(),
            **self._options,
        }

    def _graph(self) -> dict[str, Any]:
        """The part of the topology that must be equal at all nodes; if it depends on the number of nodes, its name."""
        if self.membership.elastic:
            return {"topology": getattr(self._given_topology, "__qualname__", str(self._given_topology))}
        name = f"{self.topology.name}, seed {self.topology.seed}"
        return {"topology": name, "weights": self._schedule.digest()}

    def _run_state(self) -> dict[str, Any]:
        """The counters and the signature: the part of this node's state that JSON can represent."""
        return {
            "node": self.rank,
            "nodes": self.nodes,
            "signature": json.loads(json.dumps(self._signature())),  # as a file returns it
            "warm": self._warm,
            "weight": self._weight(),
            "lr_sum": [bucket.lr_sum for bucket in self.buckets],
            "moving": self.buffers.agreed,
            **{name: getattr(self, name) for name in COUNTERS},
            **{name: getattr(self._exchange, name) for name in EXCHANGE_COUNTERS},
        }

    def _restore(self, saved: dict[str, Any]) -> None:
        """Restores the counters of `_run_state`, and starts their round."""
        self.param_groups, self.state = self.base.param_groups, self.base.state
        self._warm = saved["warm"]
        for name in COUNTERS:
            setattr(self, name, saved[name])
        for name in EXCHANGE_COUNTERS:
            setattr(self._exchange, name, saved[name])
        for bucket, lr_sum in zip(self.buckets, saved["lr_sum"], strict=True):
            bucket.lr_sum = lr_sum
        self.buffers.restore(saved["moving"])
        self._open_round()

    def _frozen(self) -> list[Tensor]:
        """The model's parameters that are not trained."""
        trained = {id(slot.parameter) for bucket in self.buckets for slot in bucket.slots}
        model = self.buffers.model
        return [] if model is None else [one.detach() for one in model.parameters() if id(one) not in trained]

    @torch.no_grad()
    def _share_start(self) -> None:
        """All nodes start from rank 0's model."""
        for bucket in self.buckets:
            self.membership.broadcast(bucket.x)
            bucket.state["x"].copy_(bucket.x)
        for parameter in self._frozen():
            parameter.copy_(self.membership.broadcast(parameter.contiguous()))
        if shared := self.buffers.shared:
            self.buffers.put(shared, self.membership.broadcast(self.buffers.flat(shared)))
        self.buffers.start(finds_constants=not self.membership.elastic)
