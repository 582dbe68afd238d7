"""A grid that calls its clients one after the other in this process: no Ray, a fast start, easy to debug."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from stgt._internal.checks import check_count
from stgt.flower.result import FederatedResult

CLIENT_APP_RAISED = 2  # Flower's error code


class InProcessGrid(Grid):
    """The clients of `run_in_process`, each with a context for the whole run.

    A client that takes longer than the timeout is late: its reply is dropped. It receives no other message until it has
    finished, as at a SuperNode. The other clients do not wait for it.
    """

    def __init__(self, app: ClientApp, clients: int, run_config: Mapping[str, Any] | None = None):
        self.app = app
        TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 0  # the sender of messages: the server
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
        self._thread = _TaskThread()
        self._busy: dict[int, Future[Message]] = {}  # the pending replies of nodes that were late

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        replies = [self._call_within(message, timeout) for message in messages]
        return [reply for reply in replies if reply is not None]

    def _call_within(self, message: Message, timeout: float | None) -> Message | None:
        """The reply to a message; None if it is late."""
        node = message.metadata.dst_node_id
        if node in self._busy and not self._busy[node].done():
            return None
        reply = self._thread.submit(lambda: self._call(message))
        try:
            return reply.result(timeout)
        except TimeoutError:
            self._busy[node], self._thread = reply, _TaskThread()
            return None

    def _call(self, message: Message) -> Message:
        try:
            return self.app(message, self.contexts[message.metadata.dst_node_id])
        except Exception as error:  # as in Flower, a client's failure is a reply
            return Message(Error(code=CLIENT_APP_RAISED, reason=f"{type(error).__name__}: {error}"), reply_to=message)

    # -- abstract methods of Flower's Grid that no strategy calls ----------------------------------------------------

    def _never_called(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    set_run: Any = _never_called
    run: Any = property(_never_called)
    create_message: Any = _never_called
    push_messages: Any = _never_called
    pull_messages: Any = _never_called


class _TaskThread:
    """A thread that runs one task after the other, so that its caller can stop waiting. It ends with its owner."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        threading.Thread(target=_run_tasks, args=(self._tasks,), daemon=True).start()
        weakref.finalize(self, self._tasks.put, None)

    def submit(self, task: Callable[[], Any]) -> Future[Any]:
        future: Future[Any] = Future()
        self._tasks.put((future, task))
        return future


def _run_tasks(tasks: SimpleQueue[Any]) -> None:
    while (one := tasks.get()) is not None:
        future, task = one
        try:
            future.set_result(task())
        except BaseException as error:  # raised again in the thread of the caller
            future.set_exception(error)
        del one, future, task  # so that nothing is kept alive while the thread waits


def run_in_process(
    strategy: Any, app: ClientApp, initial_arrays: Any, *, run_config: Mapping[str, Any] | None = None, **start: Any
) -> FederatedResult:
    """Runs a strategy with its clients in this process, as `flwr.simulation` does with Ray.

    Args:
        strategy: a `Strategy`; its topology has the number of clients.
        app: the clients' ClientApp.
        initial_arrays: the initial model, ArrayRecord(model.state_dict()), or the model itself.
        run_config: the content of `context.run_config`.
        start: arguments of `strategy.start`: num_rounds, timeout, train_config, evaluate_fn, ….
    """
    return strategy.start(
        grid=InProcessGrid(app, strategy.topology.n, run_config), initial_arrays=initial_arrays, **start
    )
