"""Membership: which nodes train together, in which order, and how one of them communicates with the others."""

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

RELEASE_TIMEOUT = 1.0  # seconds to wait for the backend to release a tensor
SEND, RECEIVE = dist.isend, dist.irecv
Operation = tuple[Callable[..., Any], Tensor, int, int]  # SEND or RECEIVE, the tensor, the peer's rank, a tag
Result = TypeVar("Result")

_unused: list[Any] = []  # process groups whose optimisers were deleted, possibly by another thread


class BrokenGroupError(RuntimeError):
    """The members' process group has failed, because one of them is lost. Only if members may change."""


def this_node() -> tuple[int, int]:
    """This node's rank and the number of nodes, before an optimiser exists."""
    if not dist.is_initialized():
        raise ValueError(
            "this node has no rank without a process group: call stgt.torch.init() first. With elastic=True ranks "
            "change: give ClockSampler(node=…), or split the data by ElasticSampler(…, opt)."
        )
    return dist.get_rank(), dist.get_world_size()


class Membership:
    """The nodes of one optimiser's training, and this node's rank among them. All other parts of the trainer use it.

    The members are those of torch's default process group, from the start of a training to its end. The exchange and
    the evaluation look them up each time. Anything that depends on the number of nodes or on a rank, such as the
    topology, the routes and a share of the data, is valid for one epoch.

    Args:
        name: of the optimiser, for messages.

    Attributes:
        members: the ids of the nodes, here torch's ranks, in the order of the topology's rows.
        rank: this node's place in that order.
        nodes: the number of nodes.
        epoch: a number that grows with every change of the members.
        round: the round of this node.
    """

    elastic = False  # may the members change?
    end: BaseException | None = None  # the exception with which this node stops after this round, if it does
    folder: Any = None  # of the last checkpoint that all nodes have
    run = 0
    events: Any = ()  # the last changes of the members
    newcomer = False  # is this node still without the model that the others have?

    def __init__(self, name: str = ""):
        if not dist.is_initialized():
            raise ValueError("there is no process group: call stgt.torch.init() before DistributedOptimizer.")
        self._detector = get_detector()
        self.members = tuple(range(self._detector.nodes))
        self.rank, self.nodes, self.epoch = self.members.index(self._detector.rank), len(self.members), 0
        self._name = f" of {name}" if name else ""
        self.round = 0
        self.on_change: Callable[[], None] = lambda: None  # called at all members when the members have changed
        self.on_request: Callable[[], None] = lambda: None  # sends a model to newcomers
        self._rounds_done = 0
        self._scope = 0  # the optimiser's number for the failure detector; 0 is common to all optimisers
        self._call = "DistributedOptimizer(…)"
        self._processes: Any = None

    def open_group(self) -> None:
        """Makes a process group for this optimiser only, so that its messages are not confused with another's."""
        while _unused:  # they are destroyed in the thread that makes new ones
            processes = _unused.pop()
            if dist.is_initialized() and processes in dist.distributed_c10d._world.pg_map:
                dist.destroy_process_group(processes)
        self._scope = next(self._detector.scopes)
        with self._waiting():
            self._processes = dist.new_group(list(self.members), timeout=BACKEND_TIMEOUT)
        weakref.finalize(self, _unused.append, self._processes).atexit = False

    # -- what the failure detector does --------------------------------------------------------------------------

    def progress(self) -> None:
        """Records a local step; raises the reported error if a node was lost since the last step."""
        self._detector.progress(self.round)

    def fail(self, error: BaseException) -> None:
        """Reports to the others why this node cannot continue."""
        self._detector.fail(error)

    @property
    def place(self) -> int:
        """This node's place among the nodes that take part in the round's exchange."""
        return self.rank

    @property
    def taking_part(self) -> int:
        """The number of nodes that take part in the round's exchange."""
        return self.nodes

    def local_steps(self, tau: int) -> int:
        """The number of this node's local steps in the next round."""
        return tau

    def computed(self, seconds: float, steps: int) -> None:
        """Records the time of a round's local steps."""

    def begin_round(self, r: int) -> None:
        """This node begins round r: the next one, or that of a loaded checkpoint."""
        self.round = self._detector.round = r

    def end_round(self) -> None:
        """Counts a completed round. Deadlocks are detected by this count; loading a checkpoint does not reset it."""
        self._rounds_done += 1
        self._detector.rounds[str(self._scope)] = self._rounds_done

    def before_exchange(self) -> bool:
        """Does this node take part in the exchange that ends its round? If members never change, it always does."""
        return True

    def together(self, do: Callable[[], Result], missed: Result | None = None) -> Any:
        """Makes a call that all members make. Returns `missed` if they have made it without this node."""
        return do()

    def announce(self, why: str) -> None:
        """Announces that this node will leave."""
        raise ValueError("a node cannot leave this training: begin it with init(elastic=True).")

    def asked(self) -> list[tuple[str, int]]:
        """The newcomers that wait for this node's model: the addresses of their stores, and the number of attempts."""
        return []

    def receive_model(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """The metadata and tensors that a member has sent to this newcomer."""
        raise NotImplementedError

    def ready(self, run: int) -> None:
        """This newcomer has a model of the run."""

    def metrics(self) -> dict[str, float]:
        """The additional metrics of a membership that changes."""
        return {}

    def saved(self, where: Any) -> None:
        """All nodes have a checkpoint of this round: errors mention it from now on."""
        self._detector.checkpoint = f"the checkpoint of round {self.round} in {where} is intact"

    def barrier(self, call: str, value: Any = None) -> list[Any]:
        """A call that all nodes must make: waits for all of them, and returns each node's value, by rank."""
        return self._detector.barrier(self._scope, call, value, self.round)

    @contextmanager
    def collective(self, call: str) -> Iterator[None]:
        """Inside a call that all nodes make: if it fails only at this node, the others receive the reason."""
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
        """The values of all nodes."""
        found = [value.new_empty(value.shape) for _ in self.members]
        with self._releasing(value, *found):
            dist.all_gather(found, value, group=self._processes)
        return found

    def post(self, operations: Sequence[Operation], peers: tuple[int, ...]) -> list[tuple[int | None, Any]]:
        """Begins to send and receive tensors. Returns the argument for `wait`.

        Args:
            operations: in the same order at both nodes, for each pair and tag.
            peers: the nodes of this exchange, whose heartbeats are checked meanwhile.
        """
        members, group = self.members, self._processes
        with self._exchanging(peers):
            works = dist.batch_isend_irecv(
                [dist.P2POp(do, value, members[peer], group, tag) for do, value, peer, tag in operations]
            )
        # A backend that combines a batch into one operation returns a single handle.
        known = len(works) == len(operations)
        return [(operations[i][2] if known else None, work) for i, work in enumerate(works)]

    def wait(self, works: Sequence[tuple[int | None, Any]], peers: tuple[int, ...]) -> None:
        """Waits until what `post` began is complete."""
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
        """A collective of torch. Before it returns, gloo's own thread has released the tensors.

        It releases them shortly after it reports the end. If the script ends meanwhile, that thread needs Python while
        it shuts down, and torch aborts the process.
        """
        users = sum(map(_users, tensors))
        with self._waiting():
            yield
        end = time.monotonic() + RELEASE_TIMEOUT
        while tensors[0].is_cpu and sum(map(_users, tensors)) > users and time.monotonic() < end:
            time.sleep(1e-5)  # lets the other thread run


def _users(tensor: Tensor) -> int:
    """The number of references to it in torch's own code."""
    return tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]
