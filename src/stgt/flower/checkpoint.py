"""The server's state as files: the last two rounds' and, beside them, what each client keeps.

NAME.safetensors            the state after the last round
NAME.previous.safetensors   and after the last round before it that counted, should that file be damaged
NAME.own/3-0f….safetensors  the copy of what client 3 keeps, by the mark of its last reply that was taken in; a round
                            writes those of its own clients
NAME.history.json           what became of each round
"""

from __future__ import annotations

import json
import os
from logging import WARNING
from pathlib import Path
from typing import Any

from flwr.common.logger import log

from stgt.flower.arrays import load_arrays, save_arrays
from stgt.flower.fit import as_text
from stgt.flower.ledger import NOTHING, Ledger
from stgt.flower.records import fingerprint
from stgt.flower.reply import Arrays, View, digest

REST = "rest"


class Checkpoint:
    """Where the server's state is written to after every round, and read from.

    Args:
        path: of the file.
        seed, weights: of the run.
    """

    def __init__(self, path: Path | str, seed: int, weights: str):
        self.path, self.seed, self.weights = Path(path).expanduser(), seed, weights
        self.previous = self.path.with_name(f"{self.path.stem}.previous{self.path.suffix}")
        self.history = self.path.with_name(f"{self.path.stem}.history.json")
        self.damaged = self.path.with_name(f"{self.path.stem}.damaged{self.path.suffix}")
        self.folder = self.path.with_name(f"{self.path.stem}.own")
        self._needed: set[Path] = set()  # the copies that the last file names

    def exists(self) -> bool:
        return self.path.exists() or self.previous.exists()

    def save(self, ledger: Ledger, done: int, unit: float, counted: bool) -> None:
        """Writes everything the next round depends on, with the number of rounds done.

        Args:
            ledger: the state.
            done: rounds.
            unit: the number of examples that has the weight 1.
            counted: did the last of them? Else the state is that of the file, and the file before it stays.
        """
        for worker, own in ledger.own.items():
            path = self._own(worker, ledger.accepted[worker])
            if not path.exists():
                arrays = {f"{field}:{name}": array for field, one in own.items() for name, array in one.items()}
                save_arrays(path, arrays, digest(arrays))
        arrays = {f"{REST}::{name}": value for name, value in ledger.rest.items()}
        for r, view in ledger.views.items():
            for field, one in view.items():
                arrays |= {f"{r}:{field}:{name}": value for name, value in one.items()}
        note = {
            **self._mark(ledger),
            "done": done,
            "unit": unit,
            "usual": ledger.usual,
            "at": list(ledger.at.values()),
            "accepted": list(ledger.accepted.values()),
            "trained": None if ledger.trained is None else sorted(ledger.trained),
            "tied": ledger.tied,
            "digest": digest(arrays),
        }
        if counted and self.path.exists():
            os.replace(self.path, self.previous)
        save_arrays(self.path, arrays, json.dumps(note))
        if counted:
            self._tidy(ledger)

    def load(self, ledger: Ledger) -> tuple[int, float]:
        """Brings a new ledger to where the files say; returns the number of rounds done, and the unit."""
        faults = []
        for path in filter(Path.exists, (self.path, self.previous)):
            try:
                arrays, note = _checked(path)
                own = self._read_own(note["accepted"])
            except ValueError as error:
                faults.append(str(error))
                continue
            self._fill(ledger, path, arrays, note, own)
            if faults:
                log(WARNING, "%s Going on from %s, an earlier round.", faults[0], path)
                os.replace(self.path, self.damaged)  # or it would take the place of the good one
            self._needed = {self._own(worker, mark) for worker, mark in ledger.accepted.items()}
            return note["done"], note["unit"]
        raise ValueError(faults[0])

    def _fill(self, ledger: Ledger, path: Path, arrays: Arrays, note: dict[str, Any], own: dict[int, View]) -> None:
        for key, value in self._mark(ledger).items():
            if note.get(key) != value:
                raise ValueError(
                    f"checkpoint {path} is of another {key}: give another file, or the {key} it was made with."
                )
        ledger.views, ledger.rest = {}, {}
        for key, value in arrays.items():
            r, field, name = key.split(":", 2)
            if r == REST:
                ledger.rest[name] = value
            else:
                ledger.views.setdefault(int(r), {}).setdefault(field, {})[name] = value
        ledger.at = dict(enumerate(note["at"]))
        ledger.accepted = dict(enumerate(note["accepted"]))
        ledger.tied = note["tied"]
        ledger.trained = None if note["trained"] is None else frozenset(note["trained"])
        ledger.changed = dict.fromkeys(ledger.rest, 0)
        ledger.own, ledger.usual = own, note["usual"]
        ledger.restarted()

    def _own(self, worker: int, mark: str) -> Path:
        return self.folder / f"{worker}-{mark[:16]}.safetensors"

    def _read_own(self, accepted: list[str]) -> dict[int, View]:
        found: dict[int, View] = {}
        for worker, mark in enumerate(accepted):
            if mark != NOTHING:
                arrays, said = load_arrays(self._own(worker, mark))
                if said != digest(arrays):
                    raise ValueError(f"{self._own(worker, mark)} is damaged: bring another copy.")
                own = found.setdefault(worker, {})
                for key, array in arrays.items():
                    field, name = key.split(":", 1)
                    own.setdefault(field, {})[name] = array
        return found

    def _tidy(self, ledger: Ledger) -> None:
        """Removes the copies that neither of the two rounds needs."""
        now = {self._own(worker, mark) for worker, mark in ledger.accepted.items()}
        for path in set(self.folder.glob("*.safetensors")) - now - self._needed:
            path.unlink(missing_ok=True)
        self._needed = now

    def _mark(self, ledger: Ledger) -> dict[str, str | int]:
        return {
            "algorithm": as_text(ledger.algorithm),
            "topology": f"{ledger.topology}, seed {ledger.topology.seed}",
            "seed": self.seed,
            "weights": self.weights,
            "model": fingerprint(ledger.kinds),
        }


def _checked(path: Path) -> tuple[Arrays, dict[str, Any]]:
    """The arrays and the note of a file; a ValueError unless they are those that were written."""
    arrays, text = load_arrays(path)
    try:
        note = json.loads(text)
        whole = note["digest"] == digest(arrays)
    except (ValueError, KeyError, TypeError):
        raise ValueError(f"{path} is no checkpoint of this version of stgt: give another file.") from None
    if not whole:
        raise ValueError(f"{path} cannot be read (wrong digest): remove it to start anew, or bring another copy.")
    return arrays, note
