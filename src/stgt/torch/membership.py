"""Membership: which nodes train together, in which order, and all that one of them does with the others."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch.distributed as dist
from torch import Tensor

from stgt.torch.failure_detector import LostNodeError
from stgt.torch.node_status import Wait
from stgt.torch.process_group import BACKEND_TIMEOUT, get_detector

RELEASE_TIMEOUT = 1.0  # seconds after which a backend that keeps a tensor is no longer waited for
SEND, RECEIVE = dist.isend, dist.irecv
Operation = tuple[Callable[..., Any], Tensor, int, int]  # SEND or RECEIVE, the tensor, the peer's rank, a tag
Result = TypeVar("Result")

_unused: list[Any] = []  # process groups whose optimisers are gone; Python may find that out in any thread


class BrokenGroupError(RuntimeError):
    """The members' process group does not work any more, as one of them is lost; only where members may change."""


def this_node() -> tuple[int, int]:
    """This node's rank, and how many nodes there are, where no optimiser is made yet."""
    if not dist.is_initialized():
        raise ValueError(
            "this node has no number before a process group is there: call stgt.torch.init() first. With elastic=True "
            "numbers change: give ClockSampler(node=…), or split the data by ElasticSampler(…, opt)."
        )
    return dist.get_rank(), dist.get_world_size()


class Membership:
    """The nodes of one optimiser's training, and this node's place among them. All else in the trainer asks it.

    The members are those of torch's default process group, from the start of a training to its end. The exchange and
    the evaluation ask for them each time. What is made for a number of nodes or for a place among them, such as the
    topology, the routes and a share of the data, belongs to one epoch.

    Args:
        name: of the optimiser, for messages.

    Attributes:
        members: the ids of the nodes, here torch's ranks, in the order of the topology's rows.
        rank: this node's place in that order.
        nodes: how many there are.
        epoch: a number that grows with every change of the members.
        round: the one that this node is in.
    """

    elastic = False  # may the members change?
    end: BaseException | None = None  # with what this node stops after this round, if it does
    folder: Any = None  # of the last checkpoint that all nodes have
    run = 0
    events: Any = ()  # the last changes of the members
    newcomer = False  # does this node still lack a model that the others have?

    def __init__(self, name: str = ""):
        if not dist.is_initialized():
            raise ValueError("there is no process group: call stgt.torch.init() before DistributedOptimizer.")
        self._detector = get_detector()
        self.members = tuple(range(self._detector.nodes))
        self.rank, self.nodes, self.epoch = self.members.index(self._detector.rank), len(self.members), 0
        self._name = f" of {name}" if name else ""
        self.round = 0
        self.on_change: Callable[[], None] = lambda: None  # is called at all members when there are new ones
        self.on_request: Callable[[], None] = lambda: None  # sends a model to newcomers
        self._rounds_done = 0
        self._scope = 0  # whose barriers and rounds the failure detector counts; 0 is all optimisers' together
        self._call = "DistributedOptimizer(…)"
        self._processes: Any = None

    def open_group(self) -> None:
        """Makes a process group of this optimiser's own, so that its messages are not mixed up with another's."""
        while _unused:  # destroyed by the thread that makes new ones
            processes = _unused.pop()
            if dist.is_initialized() and processes in dist.distributed_c10d._world.pg_map:
                dist.destroy_process_group(processes)
        self._scope = next(self._detector.scopes)
        with self._waiting():
            self._processes = dist.new_group(list(self.members), timeout=BACKEND_TIMEOUT)
        weakref.finalize(self, _unused.append, self._processes).atexit = False

    # -- the failure detector's service --------------------------------------------------------------------------

    def progress(self) -> None:
        """Records a local step; raises the reported error if a node was lost meanwhile."""
        self._detector.progress(self.round)

    def fail(self, error: BaseException) -> None:
        """Reports to the others why this node cannot go on."""
        self._detector.fail(error)

    @property
    def place(self) -> int:
        """This node's place among those that take part in the round's exchange."""
        return self.rank

    @property
    def taking_part(self) -> int:
        """How many nodes take part in the round's exchange."""
        return self.nodes

    def local_steps(self, tau: int) -> int:
        """How many local steps this node makes in the next round."""
        return tau

    def computed(self, seconds: float, steps: int) -> None:
        """Records how long a round's local steps have taken."""

    def begin_round(self, r: int) -> None:
        """This node is in round r: the next one, or that of a loaded checkpoint."""
        self.round = self._detector.round = r

    def end_round(self) -> None:
        """Counts a round that is done. Deadlocks are found by this count, which loading does not take back."""
        self._rounds_done += 1
        self._detector.rounds[str(self._scope)] = self._rounds_done

    def before_exchange(self) -> bool:
        """Does this node take part in the exchange that ends its round? It does, where the members never change."""
        return True

    def together(self, do: Callable[[], Result], missed: Result | None = None) -> Any:
        """Makes a call that all members make. `missed` is returned if they have made it without this node."""
        return do()

    def announce(self, why: str) -> None:
        """This node is going to leave."""
        raise ValueError("a node cannot leave this training: begin it with init(elastic=True).")

    def asked(self) -> list[tuple[str, int]]:
        """The newcomers that wait for this node's model: the addresses of their stores, and which attempt it is."""
        return []

    def receive_model(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """What a member has sent to this newcomer."""
        raise NotImplementedError

    def ready(self, run: int) -> None:
        """This newcomer has a model of the run."""

    def metrics(self) -> dict[str, float]:
        """What a membership that changes has to add to the optimiser's metrics."""
        return {}

    def saved(self, where: Any) -> None:
        """All nodes have a checkpoint of this round: an error names it from now on."""
        self._detector.checkpoint = f"the checkpoint of round {self.round} in {where} is intact"

    def barrier(self, call: str, value: Any = None) -> list[Any]:
        """A call that all nodes must make: waits for all of them, and returns the value that each gave, by rank."""
        return self._detector.barrier(self._scope, call, value, self.round)

    @contextmanager
    def collective(self, call: str) -> Iterator[None]:
        """Inside a call that all nodes make: if it fails at this node alone, the others receive the reason."""
        before, self._call = self._call, call
        try:
            yield
        except LostNodeError:
            raise
        except BaseException as error:
            self.fail(error)
            raise
        finally:
            self._call = before

    # -- tensors -------------------------------------------------------------------------------------------------

    def sum(self, value: Tensor) -> Tensor:
        """Σ over the nodes, in place."""
        with self._releasing(value):
            dist.all_reduce(value, group=self._processes)
        return value

    def broadcast(self, value: Tensor) -> Tensor:
        """The first node's value, in place."""
        with self._releasing(value):
            dist.broadcast(value, src=self.members[0], group=self._processes)
        return value

    def gather(self, value: Tensor) -> list[Tensor]:
        """The value of each node."""
        found = [value.new_empty(value.shape) for _ in self.members]
        with self._releasing(value, *found):
            dist.all_gather(found, value, group=self._processes)
        return found

    def post(self, operations: Sequence[Operation], peers: tuple[int, ...]) -> list[tuple[int | None, Any]]:
        """Begins to send and receive tensors; returns what `wait` takes.

        Args:
            operations: in an order that all nodes have in common for each pair and tag.
            peers: the nodes of this exchange, whose signs of life count meanwhile.
        """
        members, group = self.members, self._processes
        with self._exchanging(peers):
            works = dist.batch_isend_irecv(
                [dist.P2POp(do, value, members[peer], group, tag) for do, value, peer, tag in operations]
            )
        # A backend that joins a batch into one piece of work returns a single handle.
        known = len(works) == len(operations)
        return [(operations[i][2] if known else None, work) for i, work in enumerate(works)]

    def wait(self, works: Sequence[tuple[int | None, Any]], peers: tuple[int, ...]) -> None:
        """Ends what `post` has begun."""
        with self._exchanging(peers) as wait:
            for wait.awaited, work in works:
                work.wait()

    def _exchanging(self, peers: tuple[int, ...]) -> Any:
        call = f"the exchange of round {self.round}{self._name}"
        return self._detector.waiting(
            Wait(call, "exchange", self._scope, 0, self._rounds_done, peers, None, self._processes)
        )

    def _waiting(self) -> Any:
        return self._detector.waiting(Wait(self._call, "torch", self._scope, group=self._processes))

    @contextmanager
    def _releasing(self, *tensors: Tensor) -> Iterator[None]:
        """A collective of torch's, at whose end gloo's own thread has released the tensors.

        It releases them a little after it reports the end. If the script ends meanwhile, that thread needs Python,
        which is shutting down, and torch aborts the process.
        """
        users = sum(map(_users, tensors))
        with self._waiting():
            yield
        end = time.monotonic() + RELEASE_TIMEOUT
        while tensors[0].is_cpu and sum(map(_users, tensors)) > users and time.monotonic() < end:
            time.sleep(1e-5)  # lets the other thread run


def _users(tensor: Tensor) -> int:
    """How many references to it torch's own code holds."""
    return tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]
