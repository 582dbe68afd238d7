"""The arrays that a client does not train, buffers and frozen parameters: they are sent when they have changed, and the
client keeps them from one round to the next."""

from __future__ import annotations

from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, RecordDict

from stgt.flower.arrays import read_or_warn, save_arrays
from stgt.flower.records import REST, from_record, to_record
from stgt.flower.reply import Arrays, digest

PLACE, NOTE = f"stgt.{REST}", f"stgt.{REST}.note"


class Rest:
    """What a client holds of them.

    Args:
        records: Flower's, of the context.
        partition: the client's number.
        state_dir: folder for a copy on disk.
    """

    def __init__(self, records: RecordDict, partition: int, state_dir: Path | str | None):
        self.records = records
        self.path = None if state_dir is None else Path(state_dir) / f"partition-{partition}.{REST}.safetensors"

    def whole(self, content: RecordDict, wanted: str) -> Arrays | None:
        """All of them, of which some were sent; None if they are not what the server has.

        Args:
            content: of the server's message.
            wanted: the digest of all of them; "" if there are none, or if they came with the model.
        """
        if not wanted:
            return {}
        sent = from_record(content.array_records.get(REST, ArrayRecord()))
        if not sent and self._mark() == wanted:
            return self._at_hand()
        for found in (dict, self._at_hand, self._on_disk):
            whole = {**found(), **sent}
            if digest(whole) == wanted:
                return whole
        return None

    def keep(self, rest: Arrays, mark: str) -> str:
        """Stores all of them, so that they need not be sent again. Returns their digest, `mark` if that is known."""
        mark = mark or digest(rest)
        if rest and mark != self._mark():
            self.records[PLACE], self.records[NOTE] = to_record(rest), ConfigRecord({"digest": mark})
            if self.path is not None:
                save_arrays(self.path, rest, "")
        return mark

    def _mark(self) -> str:
        return str(self.records.config_records.get(NOTE, {}).get("digest", ""))

    def _at_hand(self) -> Arrays:
        return from_record(self.records.array_records[PLACE]) if PLACE in self.records else {}

    def _on_disk(self) -> Arrays:
        found = None if self.path is None else read_or_warn(self.path)
        return {} if found is None else found[0]
