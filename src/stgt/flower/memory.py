"""What is a worker's own: it stays in Flower's context, survives between rounds, and never leaves the client.

A round's change waits until the server says that it took the reply in, which it does when it calls the worker again:
it names the reply by its mark. So a reply that was lost, late or refused leaves the worker where the server believes it
to be, and a worker that is not there, as its context went or an old message came after a newer one, knows that.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from flwr.app import ConfigRecord, RecordDict

from stgt.algorithms import Algorithm, Local
from stgt.algorithms.calls import hear, readable
from stgt.algorithms.declare import VECTORS
from stgt.flower.arrays import load_arrays, save_arrays
from stgt.flower.fit import as_text, is_of, unsent, worker_fields
from stgt.flower.ledger import NOTHING, QUIET, Arrays, Reply, View, local_of, state_of
from stgt.flower.records import fingerprint, from_record, to_record

KEPT, WAITING, NOTE = "stgt.kept.", "stgt.waiting.", "stgt.memory"


class Unheard:
    """Stands for what a worker has not heard when its round ends, and for all that is computed of it."""

    __array_ufunc__ = None  # NumPy leaves the arithmetic to this class

    def _itself(self, *_: object) -> Unheard:
        return self

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __neg__ = _itself
    __pow__ = __lt__ = __le__ = __gt__ = __ge__ = _itself


class Memory:
    """The worker's fields as the server knows them, and what the last round would make of them.

    Args:
        records: Flower's, of the context.
        algorithm: whose state it is.
        view: what the server sent.
        partition: the client's number.
        state_dir: folder for a copy on disk.
    """

    def __init__(
        self, records: RecordDict, algorithm: Algorithm, view: View, partition: int, state_dir: Path | str | None
    ):
        self.records, self.algorithm, self.view = records, algorithm, view
        self.fields = worker_fields(algorithm)
        self.mark = {"model": fingerprint(view["x"]), "algorithm": as_text(algorithm)}
        self.path = None if state_dir is None else Path(state_dir) / f"partition-{partition}.safetensors"
        self.state: View = {}
        self.at = NOTHING

    def recall(self, accepted: str) -> bool:
        """Brings the state to where the server believes it to be; False if that is not to be had.

        Args:
            accepted: the mark of this worker's last reply that was taken in.
        """
        self.at = accepted
        if not self.fields or accepted == NOTHING or self._found(accepted):
            return True
        if self.path is None or not self.path.exists():
            return False
        self._read(self.path)
        return self._found(accepted)

    def _found(self, accepted: str) -> bool:
        """Is the state in the context? Then it is ready for the round."""
        note = self.records.config_records.get(NOTE)
        if note is None:
            return False
        for key, value in self.mark.items():
            if note[key] != value and not (key == "algorithm" and is_of(str(note[key]), self.algorithm)):
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
        unheard = {sent.name: Unheard() for sent in algorithm.exchanges}
        unknown = {field: Unheard() for field in unsent(algorithm)}
        for name in reply.end:
            state = self.of(name)
            local = local_of(algorithm, state["x"], reply, name, r, share)
            if algorithm.held:  # the worker is gone when the mixture is there, so its own cannot wait for it
                after = hear(algorithm, readable(algorithm, {**state, **unknown}), local, unheard)
                later = {field: after[field] for field in self.fields}
                if any(isinstance(value, Unheard) for value in later.values()):
                    raise ValueError(
                        f"{algorithm.label} makes what a worker keeps depend on what was mixed, which the worker does "
                        "not hear when a server holds the model: keep it at the server, or make it from the worker's "
                        "own round."
                    )
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
            after = hear(self.algorithm, readable(self.algorithm, before), local, heard)
            for field in self.fields:
                settled[field][name] = after[field]
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

    def _read(self, path: Path) -> None:
        arrays, note = load_arrays(path)
        records: View = {}
        for key, array in arrays.items():
            record, name = key.split(":", 1)
            records.setdefault(record, {})[name] = array
        for record, one in records.items():
            self.records[record] = to_record(one)
        self.records[NOTE] = ConfigRecord(json.loads(note))
