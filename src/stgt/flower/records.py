"""What server and clients say to each other, as Flower's records: everything by name, nothing by position.

train, to a client:  "view.x", "view.c", …   arrays: what it starts from
                     "rest"                  arrays: what it lacks of buffers and frozen parameters
                     "own.…"                 arrays: what it keeps, if it may have lost it
                     "stgt"                  the method, the round, which of its replies was the last taken in
                     "config"                the user's own
its reply:           "end", "buffers"        arrays: its last model, and the buffers that it changed
                     "direction"             arrays: only if its optimiser is not plain SGD
                     "travelled"             the sum of the stepsizes of each parameter
                     "metrics"               the user's own, and the mean loss
                     "stgt"                  its partition; or "fault": why it could not; or "lost"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from stgt.flower.reply import SAME_VERSION, Arrays, BadReply, Crashed, Lost, Reply, View

HEADER, REST, END, BUFFERS, DIRECTION, TRAVELLED, METRICS, CONFIG = (
    "stgt", "rest", "end", "buffers", "direction", "travelled", "metrics", "config",
)  # fmt: skip
VIEW, OWN = "view.", "own."
REMEDY = "build the clients' ClientApp by stgt.flower.client_app and the server's strategy by stgt.flower.Strategy"
NO_NODE = 5  # Flower's code for a node that is not there
UNAVAILABLE = (3, 4, NO_NODE)  # and for a message or a reply that is not to be had
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)


class Moved(BadReply):
    """The node is another partition's now."""


@dataclass(frozen=True)
class Answer:
    """A client's reply to a round, read whole."""

    reply: Reply
    metrics: dict[str, Any]
    size: int  # bytes of its arrays


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The arrays of a record; a BadReply if one is not to be read."""
    found = {}
    for name, array in record.items():
        try:
            found[name] = array.numpy()
        except Exception as error:  # whatever bytes from elsewhere make NumPy say
            raise BadReply(f"{name} cannot be read ({error}): {SAME_VERSION}") from None
        if not isinstance(found[name], np.ndarray):
            raise BadReply(f"{name} is not one array: {SAME_VERSION}")
    return found


def view_records(view: View, prefix: str = VIEW) -> dict[str, ArrayRecord]:
    return {prefix + field: to_record(arrays) for field, arrays in view.items()}


def view_of(content: RecordDict, prefix: str = VIEW) -> View:
    records = content.array_records
    return {key.removeprefix(prefix): from_record(one) for key, one in records.items() if key.startswith(prefix)}


def header_of(message: Message, who: str) -> dict[str, Any]:
    """Our own record of a message; a BadReply if the other side failed, found a fault, or is not ours."""
    if message.has_error():
        raise Crashed(f"{who} failed: {str(message.error.reason).strip()}")
    record = message.content.get(HEADER) if message.has_content() else None
    if not isinstance(record, ConfigRecord):
        raise BadReply(f"{who} is not one of stgt's: {REMEDY}.")
    if "fault" in record:
        raise (Crashed if record.get("crashed") else BadReply)(str(record["fault"]))
    return dict(record)


def read_answer(message: Message, partition: int, r: int) -> Answer:
    """A client's reply to round r; a BadReply that says why it cannot be taken in.

    Nothing of a reply is read elsewhere, and whatever it holds, nothing else is raised.
    """
    said = _said(message, partition)
    if said.get("round") != r:
        raise BadReply("its reply is to another round.")
    content = message.content
    metrics = _found(content, METRICS, MetricRecord)
    direction = from_record(_found(content, DIRECTION, ArrayRecord)) if DIRECTION in content else None
    reply = Reply(
        end=from_record(_found(content, END, ArrayRecord)),
        travelled={name: _number(name, value) for name, value in _found(content, TRAVELLED, MetricRecord).items()},
        direction=direction,
        buffers=from_record(_found(content, BUFFERS, ArrayRecord)),
        tied=_pairs(said.get("tied")),
        rest=str(said.get("rest", "")),
    )
    missing = reply.end.keys() - reply.travelled.keys()
    if missing:
        raise BadReply(f"its reply lacks the stepsizes of {min(missing)}: {SAME_VERSION}")
    return Answer(reply, dict(metrics), size_of(content))


def read_evaluation(message: Message, partition: int) -> tuple[dict[str, Any], str]:
    """The numbers of a client that evaluated, and the digest of what it holds beside what is trained; or a BadReply."""
    said = _said(message, partition)
    return dict(_found(message.content, METRICS, MetricRecord)), str(said.get("rest", ""))


def read_partition(message: Message, partitions: int) -> int:
    """Which partition a client is; a BadReply if it is none."""
    partition = header_of(message, "a client").get("partition")
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise BadReply(f"a client says partition={partition!r}: {SAME_VERSION}")
    if not 0 <= partition < partitions:
        raise BadReply(f"a client has partition-id={partition}: use 0 to {partitions - 1}.")
    return partition


def read_examples(message: Message, partition: int) -> int:
    """How many examples a client has; a BadReply if it does not say so."""
    examples = _said(message, partition).get("examples")
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 1:
        raise BadReply(f"client {partition} says that it has {examples!r} examples: give a whole number of at least 1.")
    return examples


def _said(message: Message, partition: int) -> dict[str, Any]:
    """The header of a reply by the client of this partition, which has not lost what it kept."""
    said = header_of(message, "it")
    if said.get("partition") != partition:
        raise Moved(f"it is partition {said.get('partition')} now: it is asked again before it is called.")
    if said.get("lost"):
        raise Lost(
            "it has started again without what it kept, and gets that from the server with its next call: give "
            "client_app a state_dir, and it keeps its state on disk."
        )
    return said


def _found(content: RecordDict, name: str, kind: type[Record]) -> Record:
    record = content.get(name)
    if record is None:
        raise BadReply(f"its reply lacks {name!r}: {SAME_VERSION}")
    if not isinstance(record, kind):
        raise BadReply(f"{name!r} of its reply is no {kind.__name__}: {SAME_VERSION}")
    return record


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReply(f"{name} was trained with lr={value!r}: {SAME_VERSION}")
    return float(value)


def _pairs(given: Any) -> dict[str, str]:
    """The names that are tied, from a list of NAME=NAME."""
    if not isinstance(given, list) or not all(isinstance(one, str) and "=" in one for one in given):
        raise BadReply(f"its reply says tied={given!r}: {SAME_VERSION}")
    return dict(pair.split("=", 1) for pair in given)


def is_unavailable(message: Message) -> bool:
    """Does Flower itself answer in the client's place, which is late or gone?"""
    return message.has_error() and message.error.code in UNAVAILABLE


def reply_to(message: Message, **records: Any) -> Message:
    return Message(content=RecordDict(records), reply_to=message)


def header(**values: Any) -> ConfigRecord:
    return ConfigRecord(values)


def size_of(content: RecordDict) -> int:
    """Bytes of all arrays in a message, as they travel."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def fingerprint(kinds: Mapping[str, tuple[tuple[int, ...], np.dtype]]) -> str:
    """Of a model: names, shapes and types."""
    return hashlib.sha256(
        repr([(name, shape, str(dtype)) for name, (shape, dtype) in sorted(kinds.items())]).encode()
    ).hexdigest()
