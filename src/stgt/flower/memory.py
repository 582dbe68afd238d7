"""What is a worker's own: it stays in Flower's context, survives between rounds, and is not sent.

A round's change waits until the server says that it took the reply in, which it does when it calls the worker again:
it names the reply by its mark. So a reply that was lost, late or refused leaves the worker where the server believes it
to be, and a worker that is not there, as its context went or an old message came after a newer one, knows that. It then
says so, and the server sends what it worked out the worker's own to be.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from stgt.algorithms import Algorithm, Local
from stgt.algorithms.declare import VECTORS
from stgt.flower.arrays import read_or_warn, save_arrays
from stgt.flower.fit import as_text, worker_fields
from stgt.flower.own import own_after, state_of
from stgt.flower.records import from_record, to_record
from stgt.flower.reply import QUIET, Arrays, Reply, View

KEPT, WAITING, NOTE = "stgt.kept.", "stgt.waiting.", "stgt.memory"
NOTHING = ""


class Memory:
    """The worker's fields as the server knows them, and what the last round would make of them.

    Args:
        records: Flower's, of the context.
        algorithm: whose state it is.
        view: what the server sent.
        model: the fingerprint of the server's model.
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
        self.records, self.algorithm, self.view = records, algorithm, view
        self.fields = worker_fields(algorithm)
        self.mark = {"model": model, "algorithm": as_text(algorithm)}
        self.path = None if state_dir is None else Path(state_dir) / f"partition-{partition}.safetensors"
        self.state: View = {}
        self.at = NOTHING

    def recall(self, accepted: str, copy: View) -> bool:
        """Brings the state to where the server believes it to be; False if that is not to be had.

        Args:
            accepted: the mark of this worker's last reply that was taken in.
            copy: what the server knows it to be, if it sent that.
        """
        self.at = accepted
        if not self.fields or accepted == NOTHING:
            return True
        if copy:
            self.state = copy
            return True
        if self._found(accepted):
            return True
        return self.path is not None and self._read(self.path) and self._found(accepted)

    def _found(self, accepted: str) -> bool:
        """Is the state in the context? Then it is ready for the round."""
        note = self.records.config_records.get(NOTE)
        if note is None:
            return False
        for key, value in self.mark.items():
            if note[key] != value:
                raise ValueError(
                    f"the client keeps the state of another {key}: start a new run, and use another state_dir."
                )
        if accepted not in (note["kept"], note["waiting"]):
            return False
        self.state = self._arrays(KEPT)
        if note["waiting"] == accepted:
            self.state = self._settled(self._arrays(WAITING))
        return True

    @QUIET
    def keep(self, reply: Reply, r: int, share: float) -> None:
        """Stores the state this round began with, and what is needed to go on from its end."""
        if not self.fields:
            return
        kept: View = {}
        waiting: View = {}
        algorithm = self.algorithm
        for name in reply.end:
            state = self.of(name)
            local = reply.local(algorithm, state["x"], name, r, share)
            if algorithm.held:
                later = own_after(algorithm, state, local, None)
            else:  # what comes of it depends on the mixture
                later = {part: np.asarray(getattr(local, part)) for part in sorted(algorithm.reads)}
            for field, value in later.items():
                waiting.setdefault(field, {})[name] = value
            for field in self.fields:
                kept.setdefault(field, {})[name] = state[field]
        for prefix, view in ((KEPT, kept), (WAITING, waiting)):
            for field, arrays in view.items():
                self.records[prefix + field] = to_record(arrays)
        self.records[NOTE] = ConfigRecord({**self.mark, "kept": self.at, "waiting": reply.mark(self.at, r)})
        if self.path is not None:
            self._write(self.path)

    def of(self, name: str) -> Arrays:
        """One parameter's whole state, as the round begins."""
        own = {field: arrays[name] for field, arrays in self.state.items()}
        return state_of(self.algorithm, self.view, name) | own

    def _settled(self, waiting: View) -> View:
        """The state after the round whose reply was taken in."""
        if self.algorithm.held:
            return waiting
        settled: View = {field: {} for field in self.fields}
        for name in self.state[self.fields[0]]:
            before = {field: arrays[name] for field, arrays in self.state.items()}
            heard = {field: arrays[name] for field, arrays in self.view.items()}
            parts = {part: arrays[name] for part, arrays in waiting.items()}
            parts = {part: array if part in VECTORS else array.item() for part, array in parts.items()}
            before |= {"x": parts["start"]} if "start" in parts else {}
            local = Local(self.algorithm.label, self.algorithm.reads, **parts)
            for field, value in own_after(self.algorithm, before, local, heard).items():
                settled[field][name] = value
        return settled

    def _arrays(self, prefix: str) -> View:
        records = self.records.array_records
        return {key.removeprefix(prefix): from_record(one) for key, one in records.items() if key.startswith(prefix)}

    def _write(self, path: Path) -> None:
        arrays: dict[str, np.ndarray] = {}
        for prefix in (KEPT, WAITING):
            for field, one in self._arrays(prefix).items():
                arrays |= {f"{prefix}{field}:{name}": array for name, array in one.items()}
        save_arrays(path, arrays, json.dumps(dict(self.records.config_records[NOTE])))

    def _read(self, path: Path) -> bool:
        """Brings the file's content into the context; False if it is missing or not whole."""
        found = read_or_warn(path)
        if found is None:
            return False
        arrays, note = found
        records: View = {}
        for key, array in arrays.items():
            record, name = key.split(":", 1)
            records.setdefault(record, {})[name] = array
        for record, one in records.items():
            self.records[record] = to_record(one)
        self.records[NOTE] = ConfigRecord(json.loads(note))
        return True
