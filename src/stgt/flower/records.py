"""What server and clients say to each other, as Flower's records: everything by name, nothing by position.

train, to a client:  "view.x", "view.c", …   arrays: what it starts from
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
from typing import Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

from stgt.flower.ledger import Arrays, View

HEADER = "stgt"
VIEW = "view."
REMEDY = "build the clients' ClientApp by stgt.flower.client_app and the server's strategy by stgt.flower.Strategy"
UNAVAILABLE = (3, 4, 5)  # Flower's codes for a message, a reply or a node that is not to be had


class FailedError(ValueError):
    """The other side crashed or is out of reach; it may be well the next time."""


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    return {name: array.numpy() for name, array in record.items()}


def view_records(view: View) -> dict[str, ArrayRecord]:
    return {VIEW + field: to_record(arrays) for field, arrays in view.items()}


def view_of(content: RecordDict) -> View:
    records = content.array_records
    return {key.removeprefix(VIEW): from_record(one) for key, one in records.items() if key.startswith(VIEW)}


def header_of(message: Message, who: str) -> dict[str, Any]:
    """Our own record of a message; a ValueError if the other side failed, found a fault, or is not ours."""
    if message.has_error():
        raise FailedError(f"{who} failed: {str(message.error.reason).strip()}")
    record = message.content.config_records.get(HEADER)
    if record is None:
        raise ValueError(f"{who} is not one of stgt's: {REMEDY}.")
    if "fault" in record:
        raise ValueError(str(record["fault"]))
    return dict(record)


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


def fingerprint(arrays: Mapping[str, np.ndarray]) -> str:
    """Of a model: names, shapes and types."""
    kinds = [(name, array.shape, str(array.dtype)) for name, array in sorted(arrays.items())]
    return hashlib.sha256(repr(kinds).encode()).hexdigest()
