"""What a client keeps between rounds: its variables of the method's state, and the arrays that it does not train.

Both are in Flower's context and, on request, in files. Loading these files cannot execute code.

The server computes the same variables from the replies that it accepted, bit for bit, and so has a copy. If the model
is at the server (Scaffold), a client's variables follow from its own round. If each client has its own model (ST-GT),
they also need the mixed values, which the client receives with its next message.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from logging import WARNING
from pathlib import Path
from typing import Any

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, RecordDict
from flwr.common.logger import log

from stgt._internal import container
from stgt._internal.digest import digest
from stgt._internal.serialize import to_plain
from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import Checked
from stgt.algorithms.declare import VECTORS
from stgt.flower.methods import client_fields, server_only_fields
from stgt.flower.protocol import (
    QUIET,
    UNTRAINED,
    Arrays,
    Reply,
    View,
    flatten,
    from_record,
    to_record,
    unflatten,
    view_from_records,
    view_to_records,
)

NO_REPLY = ""  # the hash if no reply has been accepted yet
BEFORE, PENDING, STATE_NOTE = "stgt.before.", "stgt.pending.", "stgt.client_state"
UNTRAINED_RECORD, UNTRAINED_NOTE = f"stgt.{UNTRAINED}", f"stgt.{UNTRAINED}.note"
KIND = "state of a Flower client"  # of a file


# -- one round of one parameter ----------------------------------------------------------------------------------------


class NotReceived:
    """A placeholder for a mixed value that a client has not received yet, and for any result computed from it."""

    __array_ufunc__ = None  # NumPy then leaves the arithmetic to this class

    def _itself(self, *_: object) -> NotReceived:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _itself
    __pow__ = __lt__ = __gt__ = __le__ = __ge__ = _itself


def state_from_view(method: Checked, view: View, name: str) -> Arrays:
    """The state of one parameter in a view; variables that the view lacks have their initial value."""
    initial = method.init(view["x"][name])
    return initial | {field: view[field][name] for field in initial if field in view}


def next_client_state(
    method: Checked, state: Mapping[str, np.ndarray], local: Local, mixed: Mapping[str, np.ndarray] | None
) -> Arrays:
    """A client's variables of one parameter after its round. `mixed` is needed unless the model is at the server."""
    if method.spec.server_fields:  # the client does not wait for the mixture, so its variables cannot depend on it
        unknown = {field: NotReceived() for field in server_only_fields(method.spec)}
        pending = {sent.name: NotReceived() for sent in method.spec.messages}
        after = method.merge(method.readable({**state, **unknown}), local, pending)
    else:
        after = method.merge(method.readable(state), local, mixed or {})
    found = {field: after[field] for field in client_fields(method.spec)}
    if any(isinstance(value, NotReceived) for value in found.values()):
        raise ValueError(
            f"{method.label} computes a client's variable from the mixed values, which a client does not receive in "
            "the same round when the model is at the server: keep the variable at the server, or compute it from the "
            "client's own round."
        )
    return found


# -- the client's variables --------------------------------------------------------------------------------------------


class ClientState:
    """A client's variables before its last round, and what is needed to compute them after it.

    A round's change is pending until the server confirms that it accepted the reply. The server does so with its next
    message, which has the hash of the last accepted reply. So a reply that was lost, late or refused changes nothing. A
    client whose context is lost, or that receives an old message after a newer one, has no state with that hash. It
    reports this, and the server sends its copy of the client's variables.

    Args:
        records: of Flower's context.
        algorithm: the method.
        view: the view that the server sent.
        model: the digest of the names, shapes and types of the server's model.
        partition: the client's number.
        state_dir: folder for a copy on disk.
    """

    def __init__(
        self,
        records: RecordDict,
        algorithm: Algorithm,
        view: View,
        model: str,
        partition: int,
        state_dir: Path | str | None,
    ):
        self.records, self.method, self.view = records, Checked(algorithm), view
        self.fields = client_fields(self.method.spec)
        self.run = {"model": model, "algorithm": json.dumps(to_plain(algorithm))}
        self.path = None if state_dir is None else Path(state_dir) / f"partition-{partition}.safetensors"
        self.state: View = {}
        self.accepted = NO_REPLY

    def restore(self, accepted: str, server_copy: View) -> bool:
        """Restores the variables as the server has them; False if they are lost.

        Args:
            accepted: the hash of this client's last accepted reply.
            server_copy: the server's copy of the variables, if it was sent.
        """
        self.accepted = accepted
        if not self.fields or accepted == NO_REPLY:
            return True
        if server_copy:
            self.state = server_copy
            return True
        if self._restore_from_context():
            return True
        return self.path is not None and self._read_file(self.path) and self._restore_from_context()

    def _restore_from_context(self) -> bool:
        note = self.records.config_records.get(STATE_NOTE)
        if note is None:
            return False
        for key, value in self.run.items():
            if note[key] != value:
                raise ValueError(f"the client's state has another {key}: start a new run, and use another state_dir.")
        if self.accepted not in (note["before"], note["pending"]):
            return False
        self.state = view_from_records(self.records, BEFORE)
        if note["pending"] == self.accepted:
            self.state = self._after_round(view_from_records(self.records, PENDING))
        return True

    @QUIET
    def store(self, reply: Reply, r: int, participation: float) -> None:
        """Stores the variables at the start of this round, and what is needed to compute those after it."""
        if not self.fields:
            return
        stored: View = {}
        method = self.method
        for name in reply.end:
            state = self.of_parameter(name)
            local = reply.local(method, state["x"], name, r, participation)
            if method.spec.server_fields:
                later = next_client_state(method, state, local, None)
            else:  # the result depends on the mixed values
                later = {part: np.asarray(getattr(local, part)) for part in sorted(method.spec.reads)}
            for field, value in later.items():
                stored.setdefault(PENDING + field, {})[name] = value
            for field in self.fields:
                stored.setdefault(BEFORE + field, {})[name] = state[field]
        note = {**self.run, "before": self.accepted, "pending": reply.chained_hash(self.accepted, r)}
        self.records.update({**view_to_records(stored, ""), STATE_NOTE: ConfigRecord({**note})})
        if self.path is not None:
            container.write(self.path, KIND, flatten(stored), note, private=True)

    def of_parameter(self, name: str) -> Arrays:
        """The whole state of one parameter at the start of the round."""
        client_state = {field: arrays[name] for field, arrays in self.state.items()}
        return state_from_view(self.method, self.view, name) | client_state

    def _after_round(self, pending: View) -> View:
        """The variables after the round whose reply was accepted."""
        if self.method.spec.server_fields:
            return pending
        after: View = {field: {} for field in self.fields}
        for name in self.state[self.fields[0]]:
            state = {field: arrays[name] for field, arrays in self.state.items()}
            mixed = {field: arrays[name] for field, arrays in self.view.items()}
            parts = {part: arrays[name] for part, arrays in pending.items()}
            parts = {part: array if part in VECTORS else array.item() for part, array in parts.items()}
            state |= {"x": parts["start"]} if "start" in parts else {}
            local = self.method.local(**parts)
            for field, value in next_client_state(self.method, state, local, mixed).items():
                after[field][name] = value
        return after

    def _read_file(self, path: Path) -> bool:
        """Loads the file's content into the context; False if it is missing or damaged."""
        found = _read_or_warn(path)
        if found is None:
            return False
        arrays, note = found
        self.records.update({**view_to_records(unflatten(arrays), ""), STATE_NOTE: ConfigRecord(note)})
        return True


# -- the arrays that are not trained -----------------------------------------------------------------------------------


class UntrainedArrays:
    """Buffers and frozen parameters. The server sends them when they have changed; the client keeps them.

    Args:
        records: of Flower's context.
        partition: the client's number.
        state_dir: folder for a copy on disk.
    """

    def __init__(self, records: RecordDict, partition: int, state_dir: Path | str | None):
        self.records = records
        self.path = None if state_dir is None else Path(state_dir) / f"partition-{partition}.{UNTRAINED}.safetensors"

    def complete(self, content: RecordDict, wanted: str) -> Arrays | None:
        """All untrained arrays, sent or stored; None if they are not those of the server.

        Args:
            content: of the server's message.
            wanted: the digest of all of them; "" if the message has them with the model.
        """
        if not wanted:
            return {}
        sent = from_record(content.array_records.get(UNTRAINED, ArrayRecord()))
        if not sent and self._stored_digest() == wanted:
            return self._in_context()
        for stored in (dict, self._in_context, self._on_disk):
            arrays = {**stored(), **sent}
            if digest(arrays) == wanted:
                return arrays
        return None

    def store(self, arrays: Arrays, known_digest: str) -> str:
        """Stores all untrained arrays, so that they need not be sent again. Returns their digest.

        Args:
            arrays: all of them.
            known_digest: their digest, or "" if it must be computed.
        """
        found = known_digest or digest(arrays)
        if arrays and found != self._stored_digest():
            self.records[UNTRAINED_RECORD] = to_record(arrays)
            self.records[UNTRAINED_NOTE] = ConfigRecord({"digest": found})
            if self.path is not None:
                container.write(self.path, KIND, arrays, None, private=True)
        return found

    def _stored_digest(self) -> str:
        return str(self.records.config_records.get(UNTRAINED_NOTE, {}).get("digest", ""))

    def _in_context(self) -> Arrays:
        return from_record(self.records.array_records[UNTRAINED_RECORD]) if UNTRAINED_RECORD in self.records else {}

    def _on_disk(self) -> Arrays:
        found = None if self.path is None else _read_or_warn(self.path)
        return {} if found is None else found[0]


def _read_or_warn(path: Path) -> tuple[Arrays, Any] | None:
    """The arrays and the note of a file; None if it is missing or unusable. An unusable file is logged as a warning."""
    try:
        return container.read(path, KIND)
    except container.BadFile as error:
        if error.reason != "missing":
            log(WARNING, "%s", error)
        return None
