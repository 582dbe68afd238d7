"""The messages between server and clients: a client's reply as a typed value, its checks, and Flower's records.

train, to a client:  "view.x", "view.c", …   arrays: the model and the other mixed variables that it starts from
                     "untrained"             arrays: the buffers and frozen parameters that it does not have yet
                     "client_state.…"        arrays: its own state, if it may have lost that
                     "stgt"                  the method, the round, the hash of its last accepted reply
                     "config"                the user's config
its reply:           "end", "buffers"        arrays: its last model, and the buffers that it changed
                     "direction"             arrays: only if its optimiser is not plain SGD
                     "lr_sum"                the sum of the stepsizes, for each parameter
                     "metrics"               the user's metrics, and the mean loss
                     "stgt"                  its partition; or "fault", why it could not train; or "lost": its state
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict

from stgt._internal.digest import digest
from stgt.algorithms import Local
from stgt.algorithms.calls import Checked

Arrays = dict[str, np.ndarray]  # by parameter name
View = dict[str, Arrays]  # by variable name
Record = TypeVar("Record", ArrayRecord, ConfigRecord, MetricRecord)

HEADER, UNTRAINED, END, BUFFERS, DIRECTION, LR_SUM, METRICS, CONFIG = (
    "stgt", "untrained", "end", "buffers", "direction", "lr_sum", "metrics", "config",
)  # fmt: skip
VIEW, CLIENT_STATE = "view.", "client_state."
NUM_EXAMPLES = "num-examples"  # the metric that Flower's own strategies use as the weight
NO_NODE = 5  # Flower's error code: the node is not connected
UNAVAILABLE = (3, 4, NO_NODE)  # 3 and 4: the message or the reply is not available
SAME_VERSION = "use the same version of stgt on both sides."
REMEDY = "build the clients' ClientApp by stgt.flower.client_app and the server's strategy by stgt.flower.Strategy"
MAX_CHARACTERS = 1000  # of an error text
QUIET = np.errstate(all="ignore")  # values that are not finite are checked where they matter


class BadReply(ValueError):  # noqa: N818
    """Why a client is left out of a round; `reason` is a keyword for it.

    The text may quote the client. It is escaped and truncated, so that a client cannot forge log lines, send control
    characters to a terminal or fill the disk.
    """

    reason = "refused"

    def __init__(self, text: str):
        escaped = "".join(
            one if one.isprintable() else one.encode("unicode_escape").decode() for one in text[:MAX_CHARACTERS]
        )
        super().__init__(escaped + ("…" if len(text) > MAX_CHARACTERS else ""))


class Crashed(BadReply):
    """The client's own code failed; it may succeed in a later round."""

    reason = "crashed"


class StateLost(BadReply):
    """The client no longer has its state; the server sends it with the next message."""

    reason = "lost"


class Diverged(BadReply):
    """The client's values, or values computed from them, are not finite."""


class PartitionChanged(BadReply):
    """The node now serves another partition."""


FAULTS = {kind.__name__: kind for kind in (Crashed, Diverged)}  # the kinds that a client can report, by name


@dataclass(frozen=True)
class Reply:
    """A client's reply to a round.

    Attributes:
        end: its last model.
        lr_sum: the sum of the round's stepsizes, for each parameter.
        direction: the mean corrected gradient, if the optimiser is not plain SGD.
        buffers: the buffers that it changed.
        tied: other names of the same parameters.
        untrained_digest: of the buffers and frozen parameters that it had at the start of the round.
        metrics: the user's metrics, and the mean loss.
        size: bytes of its arrays.
    """

    end: Arrays
    lr_sum: Mapping[str, float]
    direction: Arrays | None = None
    buffers: Arrays = field(default_factory=dict)
    tied: Mapping[str, str] = field(default_factory=dict)
    untrained_digest: str = ""
    metrics: Mapping[str, Any] = field(default_factory=dict)
    size: int = 0

    def chained_hash(self, previous: str, r: int) -> str:
        """Identifies this reply to round r by a client whose last accepted reply has the hash `previous`.

        A client that was called twice for a round, or long ago, can so identify which of its replies was accepted.
        """
        return digest(previous, r, {name: float(self.lr_sum[name]) for name in self.end}, self.end, self.direction)

    @QUIET
    def mean_direction(self, start: np.ndarray, name: str) -> np.ndarray:
        """The mean corrected gradient of the client's steps: (start − end)/Σlr for plain SGD."""
        if self.direction is not None:
            return self.direction[name]
        return (start - self.end[name]) / float(self.lr_sum[name])

    def local(self, method: Checked, start: np.ndarray, name: str, r: int, participation: float) -> Local:
        """The round of one parameter as the method reads it. Client and server compute the same bits."""
        return method.local(
            start=start,
            end=self.end[name],
            direction=self.mean_direction(start, name),
            gamma=float(self.lr_sum[name]) / method.tau,
            round=r,
            participation=participation,
        )

    @property
    def structure(self) -> tuple[frozenset[str], frozenset[tuple[str, str]]]:
        """The parameters that it trains and those that it ties: all clients must have the same."""
        return frozenset(self.end), frozenset(self.tied.items())


# -- checks of a reply -------------------------------------------------------------------------------------------------


def check_reply(reply: Reply, model: Arrays) -> None:
    """A BadReply unless a reply fits the server's model and its numbers are usable.

    A buffer may contain inf and NaN, as a mask does, if the server's buffer has the same.
    """
    if not reply.end:
        raise BadReply("it trained nothing: give its optimiser model.parameters().")
    if reply.direction is not None and reply.direction.keys() != reply.end.keys():
        odd = min(reply.direction.keys() ^ reply.end.keys())
        raise BadReply(f"{odd} is in only one of its model and its direction: {SAME_VERSION}")
    buffers = model.keys() - reply.end.keys() - reply.tied.keys()
    for arrays, names in ((reply.end, model.keys()), (reply.direction or {}, model.keys()), (reply.buffers, buffers)):
        for name, array in arrays.items():
            if name not in names:
                raise BadReply(f"{name} is not in the server's model: give both sides the same one.")
            shape, dtype = model[name].shape, model[name].dtype
            if array.shape != shape or array.dtype != dtype:
                raise BadReply(
                    f"{name} has shape {array.shape} and type {array.dtype}, and at the server shape {shape} and type "
                    f"{dtype}: give both sides the same model."
                )
            if arrays is not reply.buffers:
                check_finite(array, f"{name} is not finite after the local steps: use a smaller lr.")
            elif not (_is_finite(array) | same_bits(array, model[name])).all():
                raise BadReply(
                    f"{name}, a buffer, has inf or NaN where the server's buffer does not: check the code that writes "
                    "it."
                )
    for other, name in reply.tied.items():
        specs = {(model[each].shape, model[each].dtype) for each in (other, name) if each in model}
        if name not in reply.end or other in reply.end or other not in model or len(specs) > 1:
            raise BadReply(
                f"it ties {other} to {name}, which the server's model does not allow: give both sides the same one."
            )
    for name in reply.end:
        if not 0.0 < reply.lr_sum.get(name, 0.0) < math.inf:
            raise BadReply(f"{name} was trained with lr={reply.lr_sum.get(name)}: use one above 0.")
        check_finite(
            reply.mean_direction(model[name], name), f"the mean direction of {name} overflows: use a smaller lr."
        )


def same_bits(one: np.ndarray, other: np.ndarray) -> np.ndarray:
    """Where two arrays of one shape and type are equal to the last bit; a NaN is equal to itself."""
    a, b = (np.ascontiguousarray(each).reshape(-1).view(np.uint8).reshape(-1, each.itemsize) for each in (one, other))
    return (a == b).all(axis=1).reshape(one.shape)


def differs(one: np.ndarray, other: np.ndarray) -> bool:
    """Do two arrays differ in shape, type or any bit?"""
    return one.shape != other.shape or one.dtype != other.dtype or not same_bits(one, other).all()


def check_finite(array: np.ndarray, text: str) -> None:
    """Raises Diverged with this text if a number is inf or NaN."""
    if not _is_finite(array).all():
        raise Diverged(text)


def _is_finite(array: np.ndarray) -> np.ndarray:
    return np.isfinite(array) if np.issubdtype(array.dtype, np.floating) else np.ones(array.shape, dtype=bool)


# -- Flower's records --------------------------------------------------------------------------------------------------


def to_record(arrays: Mapping[str, np.ndarray]) -> ArrayRecord:
    return ArrayRecord({name: Array(np.asarray(value, order="C")) for name, value in arrays.items()})


def from_record(record: ArrayRecord) -> Arrays:
    """The arrays of a record; a BadReply if one cannot be read."""
    found = {}
    for name, array in record.items():
        try:
            found[name] = array.numpy()
        except Exception as error:  # NumPy may raise any exception on bytes from outside
            raise BadReply(f"{name} cannot be read ({error}): {SAME_VERSION}") from None
        if not isinstance(found[name], np.ndarray):
            raise BadReply(f"{name} is not one array: {SAME_VERSION}")
    return found


def view_to_records(view: View, prefix: str = VIEW) -> dict[str, ArrayRecord]:
    return {prefix + key: to_record(arrays) for key, arrays in view.items()}


def view_from_records(content: RecordDict, prefix: str = VIEW) -> View:
    records = content.array_records
    return {key.removeprefix(prefix): from_record(one) for key, one in records.items() if key.startswith(prefix)}


def flatten(view: View) -> Arrays:
    """The arrays of a view under the names FIELD:NAME."""
    return {f"{key}:{name}": array for key, arrays in view.items() for name, array in arrays.items()}


def unflatten(arrays: Arrays) -> View:
    """The inverse of `flatten`."""
    found: View = {}
    for entry, array in arrays.items():
        key, name = entry.split(":", 1)
        found.setdefault(key, {})[name] = array
    return found


def size_of(content: RecordDict) -> int:
    """Bytes of all arrays of a message, as sent."""
    return sum(len(array.data) for record in content.array_records.values() for array in record.values())


def is_unavailable(message: Message) -> bool:
    """Did Flower itself reply for a client that is late or not connected?"""
    return message.has_error() and message.error.code in UNAVAILABLE


def read_header(message: Message, sender: str) -> dict[str, Any]:
    """The record "stgt" of a message; a BadReply if the sender failed, reports a fault, or does not use stgt."""
    if message.has_error():
        raise Crashed(f"{sender} failed: {str(message.error.reason).strip()}")
    record = message.content.get(HEADER) if message.has_content() else None
    if not isinstance(record, ConfigRecord):
        raise BadReply(f"{sender} does not use stgt: {REMEDY}.")
    if "fault" in record:
        raise FAULTS.get(str(record.get("kind")), BadReply)(str(record["fault"]))
    return dict(record)


def read_reply(message: Message, partition: int, r: int) -> Reply:
    """A client's reply to round r; a BadReply says why it cannot be used.

    This is the only place where a reply to a round is read. Whatever it contains, only BadReply is raised.
    """
    header, content = _client_header(message, partition), message.content
    if header.get("round") != r:
        raise BadReply("its reply is to another round.")
    metrics = _record(content, METRICS, MetricRecord)
    direction = from_record(_record(content, DIRECTION, ArrayRecord)) if DIRECTION in content else None
    reply = Reply(
        end=from_record(_record(content, END, ArrayRecord)),
        lr_sum={name: _number(name, value) for name, value in _record(content, LR_SUM, MetricRecord).items()},
        direction=direction,
        buffers=from_record(_record(content, BUFFERS, ArrayRecord)),
        tied=_pairs(header.get("tied")),
        untrained_digest=str(header.get(UNTRAINED, "")),
        metrics=dict(metrics),
        size=size_of(content),
    )
    missing = reply.end.keys() - reply.lr_sum.keys()
    if missing:
        raise BadReply(f"its reply lacks the stepsizes of {min(missing)}: {SAME_VERSION}")
    return reply


def read_evaluation(message: Message, partition: int) -> tuple[dict[str, Any], str]:
    """The metrics of a client that evaluated, and the digest of its untrained arrays; or a BadReply."""
    header = _client_header(message, partition)
    return dict(_record(message.content, METRICS, MetricRecord)), str(header.get(UNTRAINED, ""))


def read_partition(message: Message, partitions: int) -> int:
    """The partition of a client; a BadReply if it is not valid."""
    partition = read_header(message, "a client").get("partition")
    if not isinstance(partition, int) or isinstance(partition, bool):
        raise BadReply(f"a client sent partition={partition!r}: {SAME_VERSION}")
    if not 0 <= partition < partitions:
        raise BadReply(f"a client has partition-id={partition}: use 0 to {partitions - 1}.")
    return partition


def read_examples(message: Message, partition: int) -> int:
    """The number of examples of a client; a BadReply if it is not valid."""
    examples = _client_header(message, partition).get("examples")
    if not isinstance(examples, int) or isinstance(examples, bool) or examples < 1:
        raise BadReply(f"client {partition} reports {examples!r} examples: give a whole number of at least 1.")
    return examples


def _client_header(message: Message, partition: int) -> dict[str, Any]:
    """The header of a reply; a BadReply unless it is from the client of this partition, with its state."""
    header = read_header(message, "it")
    if header.get("partition") != partition:
        raise PartitionChanged(f"it is partition {header.get('partition')} now: it is asked again before it is called.")
    if header.get("lost"):
        raise StateLost(
            "it restarted without its state, which the server sends with its next call: give client_app a state_dir "
            "to keep the state on disk."
        )
    return header


def _record(content: RecordDict, name: str, kind: type[Record]) -> Record:
    record = content.get(name)
    if record is None:
        raise BadReply(f"its reply lacks {name!r}: {SAME_VERSION}")
    if not isinstance(record, kind):
        raise BadReply(f"{name!r} of its reply is not a {kind.__name__}: {SAME_VERSION}")
    return record


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadReply(f"{name} was trained with lr={value!r}: {SAME_VERSION}")
    return float(value)


def _pairs(given: Any) -> dict[str, str]:
    """The tied names, from a list of NAME=NAME."""
    if not isinstance(given, list) or not all(isinstance(one, str) and "=" in one for one in given):
        raise BadReply(f"its reply has tied={given!r}: {SAME_VERSION}")
    return dict(pair.split("=", 1) for pair in given)
