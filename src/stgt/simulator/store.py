"""Traces in a file: an npz archive of plain arrays and one JSON text, with a checksum over all of it.

Nothing in it can execute code. What a file of an older format lacks is added here when it is read, so that it loads for
ever; a file of a newer format than this library knows is refused.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Any, cast

import numpy as np

from stgt._internal.files import write_atomically, writing
from stgt.oracles import Oracle
from stgt.problems.base import Problem
from stgt.simulator.description import Saved, algorithm_from, described, known_level, oracle_from
from stgt.simulator.metrics import Measured
from stgt.simulator.standing import Standing
from stgt.simulator.trace import Trace
from stgt.topology import Topology

KIND, FORMAT = "stgt trace", 1
TEXT = "description"  # the name of the JSON text among the arrays
SMALL = 512  # nodes up to which ρ is worked out for the file, if it is not known yet


def save(traces: Sequence[Trace], path: Path) -> Path:
    """Writes traces whole or not at all; returns the path."""
    arrays = {f"{i}/{name}": array for i, trace in enumerate(traces) for name, array in _arrays(trace).items()}
    text = {"kind": KIND, "format": FORMAT, "traces": [_described(trace) for trace in traces]}
    text = json.dumps({**text, "checksum": _checksum(text, arrays)})

    def write(file: Path) -> None:
        with file.open("wb") as stream:
            np.savez(stream, **{TEXT: np.frombuffer(text.encode(), np.uint8)}, **arrays)  # pyright: ignore

    with writing(path):
        return write_atomically(path, write, durable=True)


def load(path: Path) -> list[Trace]:
    """Reads what `save` wrote; a ValueError says what is wrong with the file."""
    if not path.is_file():
        raise ValueError(f"{path}: there is no such file; give one that trace.save or checkpoint= wrote.")
    unfit = f"{path} is damaged, cut off, or no trace: take another copy of the file."
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {name: archive[name] for name in archive.files}
        text = json.loads(arrays.pop(TEXT).tobytes().decode())
        known = text["kind"] == KIND and isinstance(text["format"], int) and text["format"] >= 1
    except Exception:  # of zipfile, zlib, json and NumPy, each with a few of its own
        raise ValueError(unfit) from None
    if not known:
        raise ValueError(unfit)
    if text["format"] > FORMAT:
        raise ValueError(
            f"{path} has format {text['format']}, and this version of stgt reads up to {FORMAT}: use a newer stgt."
        )
    if text.pop("checksum", None) != _checksum(text, arrays):
        raise ValueError(f"{path} is damaged or was edited, as its checksum is wrong: take another copy of the file.")
    try:
        found = [_trace(one, _of(arrays, f"{i}/")) for i, one in enumerate(text["traces"])]
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(unfit) from error
    if not found:
        raise ValueError(unfit)
    return found


def _checksum(text: dict[str, Any], arrays: dict[str, np.ndarray]) -> str:
    digest = blake2b(json.dumps(text, sort_keys=True).encode(), digest_size=16)
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].shape} {arrays[name].dtype.str}".encode())
        digest.update(np.ascontiguousarray(arrays[name]).tobytes())
    return digest.hexdigest()


def _arrays(trace: Trace) -> dict[str, np.ndarray]:
    standing = trace.standing
    found = {"seconds": trace.seconds, "links": standing.links, "diverged_at": standing.diverged_at}
    for group, values in (("values", trace.values), ("state", standing.state), ("memory", standing.memory)):
        found |= {f"{group}/{name}": value for name, value in values.items()}
    return found if standing.ahead is None else {**found, "ahead": standing.ahead}


def _described(trace: Trace) -> dict[str, Any]:
    topology, level = dict(described(trace.topology, trace.rounds)), known_level(trace)
    has_rho = "rho" in topology or trace.topology.n <= SMALL or "rho" in vars(trace)
    return {
        "algorithm": described(trace.algorithm, trace.rounds),
        "problem": {**described(trace.problem), "level": None if np.isnan(level) else level},
        "topology": {**topology, "rho": trace.rho if has_rho else None},
        "oracle": described(trace.oracle),
        "origin": trace.origin,
        "seeds": list(trace.seeds),
        "rounds": trace.rounds,
        "measured": list(trace.measured.names),
        "own": [name for name, _ in trace.measured.own],
        "engine": trace.engine,
        "dtype": trace.dtype,
        "interrupted": trace.interrupted,
        "absent": trace.absent,
        "notes": list(trace.notes),
    }


def _trace(one: dict[str, Any], arrays: dict[str, np.ndarray]) -> Trace:
    return Trace(
        algorithm=cast(Any, algorithm_from(one["algorithm"])),
        problem=cast(Problem, Saved("problem", one["problem"])),
        topology=cast(Topology, Saved("topology", one["topology"])),
        oracle=cast(Oracle, oracle_from(one["oracle"])),
        origin=one["origin"],
        seeds=tuple(one["seeds"]),
        values=_of(arrays, "values/"),
        seconds=arrays["seconds"],
        standing=Standing(
            rounds=one["rounds"],
            state=_of(arrays, "state/"),
            memory=_of(arrays, "memory/"),
            ahead=arrays.get("ahead"),
            diverged_at=arrays["diverged_at"],
            links=arrays["links"],
        ),
        measured=Measured(tuple(one["measured"]), tuple((name, None) for name in one["own"])),
        engine=one["engine"],
        dtype=one["dtype"],
        interrupted=one["interrupted"],
        absent=one["absent"],
        notes=tuple(one["notes"]),
    )


def _of(arrays: dict[str, np.ndarray], prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}
