"""A grid whose clients are called one after the other in this process: no Ray, quick to start, open to a debugger."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from queue import Empty, SimpleQueue
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from stgt._internal.checks import check_count
from stgt.flower.result import FederatedResult

FAILED = 2  # Flower's code for a ClientApp that raised an exception


class InProcessGrid(Grid):
    """The clients of `run_in_process`, each with a context that outlives the rounds.

    A client that takes longer than the timeout is late: its reply does not come, and while it is still at work it gets
    no other message, as a SuperNode would have it. The others do not wait for it.
    """

    def __init__(self, app: ClientApp, clients: int, run_config: Mapping[str, Any] | None = None):
        self.app = app
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = (
            0  # who makes messages in this process: the server
        )
        self.contexts = {
            node + 1: Context(
                run_id=0,
                node_id=node + 1,
                node_config={"partition-id": node, "num-partitions": clients},
                state=RecordDict(),
                run_config=dict(run_config or {}),
            )
            for node in range(check_count(clients, "clients"))
        }
        self._hand = _Hand()
        self._at_work: dict[int, threading.Event] = {}  # set when the node has done what it was late with

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self._within(message, timeout) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _within(self, message: Message, timeout: float | None) -> Message | None:
        """The reply to a message; None if it does not come in time."""
        node = message.metadata.dst_node_id
        if node in self._at_work and not self._at_work[node].is_set():
            return None
        done = threading.Event()
        found, came = self._hand.do(lambda: self._call(message), timeout, done)
        if not came:
            self._at_work[node], self._hand = done, _Hand()
        return found

    def _call(self, message: Message) -> Message | None:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as Flower does: a client's failure is a reply
            return Message(Error(code=FAILED, reason=f"{type(error).__name__}: {error}"), reply_to=message)

    # -- what else Flower's grid can do, and no strategy asks for ----------------------------------------------------

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        raise NotImplementedError

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        raise NotImplementedError


class _Hand:
    """A thread that does one thing after the other, so that whoever asked can stop waiting. It ends with its owner."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Task | None] = SimpleQueue()
        threading.Thread(target=_work, args=(self._tasks,), daemon=True).start()
        weakref.finalize(self, self._tasks.put, None)

    def do(self, task: Callable[[], Any], timeout: float | None, done: threading.Event) -> tuple[Any, bool]:
        """What the task returns, or raises; (None, False) if that takes longer. `done` is set when it is over."""
        answers: SimpleQueue[tuple[bool, Any]] = SimpleQueue()
        self._tasks.put((task, answers, done))
        try:
            well, found = answers.get(timeout=timeout)
        except Empty:
            return None, False
        if not well:
            raise found
        return found, True


_Task = tuple[Callable[[], Any], "SimpleQueue[tuple[bool, Any]]", threading.Event]


def _work(tasks: SimpleQueue[_Task | None]) -> None:
    while (one := tasks.get()) is not None:
        task, answers, done = one
        try:
            answers.put((True, task()))
        except BaseException as error:  # it is raised again where it was asked for
            answers.put((False, error))
        done.set()
        del one, task, answers, done  # while it waits it holds on to nothing


def run_in_process(
    strategy: Any, app: ClientApp, initial_arrays: Any, *, run_config: Mapping[str, Any] | None = None, **start: Any
) -> FederatedResult:
    """Runs a strategy with its clients in this process, as `flwr.simulation` does with Ray.

    Args:
        strategy: a `Strategy`; its topology says how many clients there are.
        app: the clients'.
        initial_arrays: the first model, ArrayRecord(model.state_dict()), or the model itself.
        run_config: what `context.run_config` holds.
        start: of `strategy.start`: num_rounds, timeout, train_config, evaluate_fn, ….
    """
    return strategy.start(
        grid=InProcessGrid(app, strategy.topology.n, run_config), initial_arrays=initial_arrays, **start
    )
