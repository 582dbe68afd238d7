"""All nodes as one optimiser sees them: a process group of its own, and a roll-call before what needs all of them."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch.distributed as dist
from torch import Tensor

from stgt.torch.status import Wait
from stgt.torch.watch import LostNodeError, Watch
from stgt.torch.world import BACKEND_TIMEOUT

LETS_GO = 1.0  # seconds after which a backend that keeps a tensor is no longer waited for
_out_of_use: list[Any] = []  # process groups whose optimisers are gone; Python may find that out in any thread


def end_groups() -> None:
    """Ends the process groups of optimisers that are gone; called by the thread that makes new ones."""
    while _out_of_use:
        processes = _out_of_use.pop()
        if dist.is_initialized() and processes in dist.distributed_c10d._world.pg_map:
            dist.destroy_process_group(processes)


class Group:
    """A process group of one optimiser's own, so that its messages meet no other's.

    Args:
        watch: over all processes.
        owner: the optimiser; the group ends with it.
    """

    def __init__(self, watch: Watch, owner: Any):
        self._name = f" of {owner.name}" if owner.name else ""
        self.watch, self.rank, self.nodes = watch, watch.rank, watch.nodes
        self.scope = watch.new_scope()
        self.round = 0
        self._ended = 0
        self._call = "DistributedOptimizer(…)"
        with self._waiting():
            self.processes: Any = dist.new_group(timeout=BACKEND_TIMEOUT)
        weakref.finalize(owner, _out_of_use.append, self.processes).atexit = False

    def at_round(self, r: int) -> None:
        """The optimiser is in round r: after the one before, or back there from a checkpoint."""
        self.round = self.watch.round = r

    def end_round(self) -> None:
        """One more round is done. Who waits for whom follows from this count: loading takes `round` back, not it."""
        self._ended += 1
        self.watch.rounds[str(self.scope)] = self._ended

    def meet(self, call: str, said: Any = None) -> list[Any]:
        """A call that all nodes must make: waits for all of them, and returns what each has said."""
        return self.watch.meet(self.scope, call, said, self.round)

    @contextmanager
    def talking(self, call: str) -> Iterator[None]:
        """Inside a call that all nodes make; if it fails at this node alone, the others hear why."""
        before, self._call = self._call, call
        try:
            yield
        except LostNodeError:
            raise
        except BaseException as error:
            self.watch.fail(error)
            raise
        finally:
            self._call = before

    def exchange(self, peers: tuple[int, ...]) -> Wait:
        """What this node waits in while it talks with its neighbours."""
        call = f"the exchange of round {self.round}{self._name}"
        return Wait(call, "exchange", self.scope, 0, self._ended, peers, None, self.processes)

    def sum(self, value: Tensor) -> Tensor:
        """Σ over the nodes, in place."""
        with self._collective(value):
            dist.all_reduce(value, group=self.processes)
        return value

    def largest(self, value: Tensor) -> Tensor:
        """The largest of the nodes', in place."""
        with self._collective(value):
            dist.all_reduce(value, op=dist.ReduceOp.MAX, group=self.processes)
        return value

    def from_first(self, value: Tensor) -> Tensor:
        """Rank 0's, in place."""
        with self._collective(value):
            dist.broadcast(value, src=0, group=self.processes)
        return value

    def gather(self, value: Tensor) -> list[Tensor]:
        """That of each node."""
        found = [value.new_empty(value.shape) for _ in range(self.nodes)]
        with self._collective(value, *found):
            dist.all_gather(found, value, group=self.processes)
        return found

    @contextmanager
    def _collective(self, *tensors: Tensor) -> Iterator[None]:
        """A collective of torch's, at whose end gloo's own thread has let go of the tensors.

        It does so a little later than it says that all is done. If the script ends meanwhile, that thread needs Python,
        which is shutting down, and torch aborts the process.
        """
        users = sum(map(_users, tensors))
        with self._waiting():
            yield
        end = time.monotonic() + LETS_GO
        while tensors[0].is_cpu and sum(map(_users, tensors)) > users and time.monotonic() < end:
            time.sleep(1e-5)  # in which the other thread can have the interpreter

    def _waiting(self) -> Any:
        return self.watch.waiting(Wait(self._call, "torch", self.scope, group=getattr(self, "processes", None)))


def _users(tensor: Tensor) -> int:
    """How many hold on to it in torch's own code."""
    return tensor._use_count()  # pyright: ignore[reportAttributeAccessIssue]
