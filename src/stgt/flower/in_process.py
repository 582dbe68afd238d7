"""A grid whose clients are called one after the other in this process: no Ray, quick to start, open to a debugger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from flwr.app import Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result
from flwr.supercore.task_identity import TaskIdentity

from stgt.checks import check_count

FAILED = 2  # Flower's code for a ClientApp that raised an exception


class InProcessGrid(Grid):
    """The clients of `run_in_process`, each with a context that outlives the rounds."""

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

    def get_node_ids(self) -> Iterable[int]:
        return list(self.contexts)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> Iterable[Message]:
        return [self._call(message) for message in messages]

    def _call(self, message: Message) -> Message:
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


def run_in_process(
    strategy: Any, app: ClientApp, initial_arrays: Any, *, run_config: Mapping[str, Any] | None = None, **start: Any
) -> Result:
    """Runs a strategy with its clients in this process, as `flwr.simulation` does with Ray.

    Args:
        strategy: a `Strategy`; its topology says how many clients there are.
        app: the clients'.
        initial_arrays: the first model, ArrayRecord(model.state_dict()).
        run_config: what `context.run_config` holds.
        start: of `strategy.start`: num_rounds, train_config, evaluate_fn, ….
    """
    return strategy.start(
        grid=InProcessGrid(app, strategy.topology.n, run_config), initial_arrays=initial_arrays, **start
    )
