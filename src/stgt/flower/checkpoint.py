"""The server's state as a file."""

from __future__ import annotations

import json
from pathlib import Path

from stgt.flower.arrays import load_arrays, save_arrays
from stgt.flower.fit import as_text, is_of
from stgt.flower.ledger import Ledger
from stgt.flower.records import fingerprint

REST = "rest"


def save_ledger(path: Path, ledger: Ledger, seed: int, done: int) -> Path:
    """Writes everything the next round depends on, with the number of rounds done."""
    arrays = {f"{REST}::{name}": value for name, value in ledger.rest.items()}
    for r, view in ledger.views.items():
        for field, one in view.items():
            arrays |= {f"{r}:{field}:{name}": value for name, value in one.items()}
    note = {
        **_mark(ledger, seed),
        "done": done,
        "at": list(ledger.at.values()),
        "accepted": list(ledger.accepted.values()),
        "trained": None if ledger.trained is None else sorted(ledger.trained),
        "tied": ledger.tied,
    }
    return save_arrays(path, arrays, json.dumps(note))


def load_ledger(path: Path, ledger: Ledger, seed: int) -> int:
    """Brings a new ledger to where the file says; returns the number of rounds done."""
    arrays, text = load_arrays(path)
    note = json.loads(text)
    for key, value in _mark(ledger, seed).items():
        if note.get(key) != value and not (key == "algorithm" and is_of(note[key], ledger.algorithm)):
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
    return note["done"]


def _mark(ledger: Ledger, seed: int) -> dict[str, str | int]:
    return {
        "algorithm": as_text(ledger.algorithm),
        "topology": f"{ledger.topology}, seed {ledger.topology.seed}",
        "seed": seed,
        "model": fingerprint(ledger.view(0)["x"]),
    }
